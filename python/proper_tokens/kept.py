"""The cache files of prepared tokenizers: writing them, and checking that they can be trusted.

Compiled code reads these arrays without bounds checks, so a wrong index would crash the process. A
file that another user may have written is not read, and the content of a file is checked completely
before it is used.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proper_tokens import kernels
from proper_tokens.codepoints import SIZE
from proper_tokens.merges import BYTE, UNREACHABLE, WHOLE
from proper_tokens.nfc import STARTS
from proper_tokens.pretokenizer import FLAGS

Arrays = Mapping[str, npt.NDArray[Any]]


class Damaged(ValueError):
    """A file must not be used; the message says why."""


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a tokenizer.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: another user may have written the file, or its content is not what `keep` wrote.
    """
    try:
        content = _own_content(path)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        check(arrays)
    except (FileNotFoundError, Damaged):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types for damaged files
        raise Damaged(f"{type(error).__name__}: {error}") from error
    return arrays


def keep(path: Path, arrays: Arrays) -> None:
    """Write a file atomically, readable by this user only.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
        try:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _own_content(path: Path) -> bytes:
    """The content of a file that only this user may have written."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _check_owner(folder, path.parent)
        # A symbolic link may point to a file that others can write, and reading a pipe may block.
        number = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise Damaged("it is no file")
            _check_owner(number, path)
            return file.read()
    finally:
        os.close(folder)


def _check_owner(number: int, path: Path) -> None:
    found = os.fstat(number)
    if found.st_uid != os.geteuid():
        raise Damaged(f"{path} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Damaged(f"others may write to {path} (chmod go-w mends that)")


def check(arrays: Arrays) -> None:
    """Check that arrays are valid for a tokenizer, so that no kernel reads out of bounds.

    Args:
        arrays: arrays in the format of `prepared.prepared_arrays`.

    Raises:
        Damaged: they are not valid.
        KeyError: one is missing.
    """

    def array(name: str, dtype: type, *shape: int | None) -> npt.NDArray[Any]:
        """One of the arrays, checked for type and shape; None in a shape means any length."""
        found = arrays[name]
        _require(found.dtype == dtype and found.flags.c_contiguous, f"{name} is {found.dtype}")
        same = len(shape) == found.ndim and all(
            wanted in (None, size) for wanted, size in zip(shape, found.shape, strict=True)
        )
        _require(same, f"{name} has the shape {found.shape}")
        return found

    begin = _rising("begin", array("begin", np.int64, None), len(array("content", np.uint8, None)))
    size = len(begin) - 1
    for name in ("plain", "marked", "odd"):
        _check_trie(name, array(name, np.int32, None, 4), size)
    _within("byte_ids", array("byte_ids", np.int64, 256), 0, size)
    own = array("character_ids", np.int64, None, 2)
    _within("character_ids", own[:, 0], 0, SIZE)
    _within("character_ids", own[:, 1], 0, size)
    _require((np.diff(own[:, 0]) > 0).all(), "character_ids does not rise")
    _within("added", array("added", np.int64, None), 0, size)
    array("is_raw", np.bool_, size)

    goto = array("goto", np.int32, None, 257)
    _require(0 < len(goto) <= 1 << kernels.ADDED_BITS, "goto has too many states, or none")
    _within("goto", goto[:, : kernels.LENGTH], 0, len(goto))
    _within("goto", goto[:, kernels.LENGTH], 0, SIZE)

    pretokens = array("pretokens", np.int32, None, None, FLAGS)
    states = len(pretokens)
    _require(0 < states <= 1 << kernels.PRETOKEN_BITS, "pretokens has too many states, or none")
    _within("pretokens", pretokens, -1, states)
    kinds = pretokens.shape[1]
    _within("general", array("general", np.int32, kinds), 0, kinds)
    _within("torn", array("torn", np.int32, states), 0, states)
    array("may_end", np.bool_, states)
    changes = array("changes", np.bool_, None, None)
    characters = array("characters", np.int32, None, 5)
    limits = (
        (0, kinds), (-1, STARTS), (0, changes.shape[1]), (0, changes.shape[0]),
        (0, kernels.IN_BYTES + 1),
    )  # fmt: skip
    for column, (low, high) in zip(characters.T, limits, strict=True):
        _within("characters", column, low, high)
    class_begin = array("class_begin", np.int64, None)
    _require(len(class_begin) > 0 and class_begin[0] == 0, "class_begin does not begin with 0")
    _require((np.diff(class_begin) > 0).all(), "class_begin does not rise")
    _within("class_begin", class_begin, 0, SIZE)
    value = array("class_value", np.int32, len(class_begin))
    _within("class_value", value, 0, len(characters))

    parts = array("relation.parts", np.int64, None, 2)
    merges = len(parts)
    _within("relation.parts", parts, 0, size)
    made = array("relation.made", np.int64, size)
    _within("relation.made", made, WHOLE, merges)
    _within("relation.time", array("relation.time", np.int64, size), UNREACHABLE, merges)
    of_parts = parts[made[made >= 0]]
    _require((made[of_parts] >= BYTE).all(), "relation.made has parts that are not made")
    # Otherwise, a walk down the parts of a token might not terminate.
    lengths = np.diff(begin)
    is_shorter = lengths[of_parts] < lengths[made >= 0, None]
    _require(is_shorter.all(), "relation.made does not fall from a token to its parts")
    pairs = array("relation.pairs", np.int64, merges, 2)
    _within("relation.pairs", pairs[:, 0], 0, size)
    _within("relation.pairs", pairs[:, 1], 0, merges)
    _rising("relation.first", array("relation.first", np.int64, size + 1), merges)
    _rising("relation.begin", array("relation.begin", np.int64, size + 1), merges)
    cleared, order = (
        array("relation.cleared", np.int64, merges, 4), array("relation.order", np.int32, None)
    )  # fmt: skip
    _within("relation.cleared", cleared[:, 2:], 0, len(order) + 1)
    _within("relation.order", order, 0, size)
    for name in ("relation.merged", "relation.reachable"):
        array(name, np.uint32, -(-size // 32))


def _check_trie(name: str, trie: npt.NDArray[np.int32], size: int) -> None:
    """Check a trie of `kernels.Tables` for a vocabulary of a given size."""
    number, depth = np.arange(len(trie)), trie[:, kernels.DEPTH]
    _within(name, trie[:, kernels.BYTE], 0, 256)
    _within(name, depth, 1, kernels.LONGEST + 1)
    _require((np.diff(depth, prepend=0) <= 1).all(), f"{name} skips a depth")
    _require((trie[:, kernels.SKIP] > number).all(), f"{name} leads back")
    _within(name, trie[:, kernels.SKIP], 0, len(trie) + 1)
    _within(name, trie[:, kernels.TOKEN], -1, size)


def _rising(name: str, values: npt.NDArray[Any], last: int) -> npt.NDArray[Any]:
    """Check that values rise from 0 to a given last value."""
    _require(len(values) > 0 and values[0] == 0 and values[-1] == last, f"{name} has other ends")
    _require((np.diff(values) >= 0).all(), f"{name} falls")
    return values


def _within(name: str, values: npt.NDArray[Any], low: int, high: int) -> None:
    """Check that `low` <= value < `high` for all values."""
    if values.size:
        _require(low <= values.min() and values.max() < high, f"{name} leaves its range")


def _require(is_right: bool | np.bool_, problem: str) -> None:
    if not is_right:
        raise Damaged(problem)
