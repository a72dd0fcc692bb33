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

import numpy as np

from proper_tokens.arrays import AnyArray, Int32s, Int64s
from proper_tokens.codepoints import SIZE
from proper_tokens.kernels.packing import ADDED_BITS, PRETOKEN_BITS
from proper_tokens.kernels.tables import IN_BYTES, LENGTH
from proper_tokens.kernels.tries import BYTE as TRIE_BYTE
from proper_tokens.kernels.tries import DEPTH, LONGEST, SKIP, TOKEN
from proper_tokens.merges import BYTE, UNREACHABLE, WHOLE
from proper_tokens.nfc import STARTS
from proper_tokens.pretokenizer import FLAGS

Arrays = Mapping[str, AnyArray]


class Damaged(ValueError):
    """A file must not be used; the message says why."""


def read_arrays(path: Path) -> dict[str, AnyArray]:
    """Read the arrays of a tokenizer.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: another user may have written the file, or its content is not what `write_arrays`
            wrote.
    """
    try:
        content = _own_content(path)
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        check_arrays(arrays)
    except (FileNotFoundError, Damaged):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types for damaged files
        raise Damaged(f"{type(error).__name__}: {error}") from error
    return arrays


def write_arrays(path: Path, arrays: Arrays) -> None:
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


def check_arrays(arrays: Arrays) -> None:
    """Check that arrays are valid for a tokenizer, so that no kernel reads out of bounds.

    Args:
        arrays: arrays in the format of `prepared.prepared_arrays`.

    Raises:
        Damaged: they are not valid.
        KeyError: one is missing.
    """
    begin = _check_tokens(arrays)
    _check_characters(arrays)
    _check_relation(arrays, np.diff(begin))


def _array(arrays: Arrays, name: str, dtype: type, *shape: int | None) -> AnyArray:
    """One of the arrays, checked for type and shape; None in a shape means any length."""
    found = arrays[name]
    _require(found.dtype == dtype and found.flags.c_contiguous, f"{name} is {found.dtype}")
    same = len(shape) == found.ndim and all(
        wanted in (None, size) for wanted, size in zip(shape, found.shape, strict=True)
    )
    _require(same, f"{name} has the shape {found.shape}")
    return found


def _check_tokens(arrays: Arrays) -> Int64s:
    """Check what is known of each token; return where their bytes begin."""
    content = _array(arrays, "content", np.uint8, None)
    begin = _rising("begin", _array(arrays, "begin", np.int64, None), len(content))
    size = len(begin) - 1
    for name in ("plain", "marked", "odd"):
        _check_trie(name, _array(arrays, name, np.int32, None, 4), size)
    _within("byte_ids", _array(arrays, "byte_ids", np.int64, 256), 0, size)
    own = _array(arrays, "character_ids", np.int64, None, 2)
    _within("character_ids", own[:, 0], 0, SIZE)
    _within("character_ids", own[:, 1], 0, size)
    _require((np.diff(own[:, 0]) > 0).all(), "character_ids does not rise")
    _within("added", _array(arrays, "added", np.int64, None), 0, size)
    _array(arrays, "is_raw", np.bool_, size)

    goto = _array(arrays, "goto", np.int32, None, 257)
    _require(0 < len(goto) <= 1 << ADDED_BITS, "goto has too many states, or none")
    _within("goto", goto[:, :LENGTH], 0, len(goto))
    _within("goto", goto[:, LENGTH], 0, SIZE)
    return begin


def _check_characters(arrays: Arrays) -> None:
    """Check the pre-tokenizer and the classes of characters."""
    pretokens = _array(arrays, "pretokens", np.int32, None, None, FLAGS)
    states = len(pretokens)
    _require(0 < states <= 1 << PRETOKEN_BITS, "pretokens has too many states, or none")
    _within("pretokens", pretokens, -1, states)
    kinds = pretokens.shape[1]
    _within("general", _array(arrays, "general", np.int32, kinds), 0, kinds)
    _within("torn", _array(arrays, "torn", np.int32, states), 0, states)
    _array(arrays, "may_end", np.bool_, states)
    changes = _array(arrays, "changes", np.bool_, None, None)
    characters = _array(arrays, "characters", np.int32, None, 5)
    limits = (
        (0, kinds), (-1, STARTS), (0, changes.shape[1]), (0, changes.shape[0]),
        (0, IN_BYTES + 1),
    )  # fmt: skip
    for column, (low, high) in zip(characters.T, limits, strict=True):
        _within("characters", column, low, high)
    class_begin = _array(arrays, "class_begin", np.int64, None)
    _require(len(class_begin) > 0 and class_begin[0] == 0, "class_begin does not begin with 0")
    _require((np.diff(class_begin) > 0).all(), "class_begin does not rise")
    _within("class_begin", class_begin, 0, SIZE)
    value = _array(arrays, "class_value", np.int32, len(class_begin))
    _within("class_value", value, 0, len(characters))


def _check_relation(arrays: Arrays, lengths: Int64s) -> None:
    """Check the merge relation, given the bytes of each token."""
    size = len(lengths)
    parts = _array(arrays, "relation.parts", np.int64, None, 2)
    merges = len(parts)
    _within("relation.parts", parts, 0, size)
    made = _array(arrays, "relation.made", np.int64, size)
    _within("relation.made", made, WHOLE, merges)
    _within("relation.time", _array(arrays, "relation.time", np.int64, size), UNREACHABLE, merges)
    of_parts = parts[made[made >= 0]]
    _require((made[of_parts] >= BYTE).all(), "relation.made has parts that are not made")
    # Otherwise, a walk down the parts of a token might not terminate.
    is_shorter = lengths[of_parts] < lengths[made >= 0, None]
    _require(is_shorter.all(), "relation.made does not fall from a token to its parts")
    pairs = _array(arrays, "relation.pairs", np.int64, merges, 2)
    _within("relation.pairs", pairs[:, 0], 0, size)
    _within("relation.pairs", pairs[:, 1], 0, merges)
    _rising("relation.first", _array(arrays, "relation.first", np.int64, size + 1), merges)
    _rising("relation.begin", _array(arrays, "relation.begin", np.int64, size + 1), merges)
    cleared = _array(arrays, "relation.cleared", np.int64, merges, 4)
    order = _array(arrays, "relation.order", np.int32, None)
    _within("relation.cleared", cleared[:, 2:], 0, len(order) + 1)
    _within("relation.order", order, 0, size)
    for name in ("relation.merged", "relation.reachable"):
        _array(arrays, name, np.uint32, -(-size // 32))


def _check_trie(name: str, trie: Int32s, size: int) -> None:
    """Check a trie of `Tables` for a vocabulary of a given size."""
    number, depth = np.arange(len(trie)), trie[:, DEPTH]
    _within(name, trie[:, TRIE_BYTE], 0, 256)
    _within(name, depth, 1, LONGEST + 1)
    _require((np.diff(depth, prepend=0) <= 1).all(), f"{name} skips a depth")
    _require((trie[:, SKIP] > number).all(), f"{name} leads back")
    _within(name, trie[:, SKIP], 0, len(trie) + 1)
    _within(name, trie[:, TOKEN], -1, size)


def _rising(name: str, values: AnyArray, last: int) -> AnyArray:
    """Check that values rise from 0 to a given last value."""
    _require(len(values) > 0 and values[0] == 0 and values[-1] == last, f"{name} has other ends")
    _require((np.diff(values) >= 0).all(), f"{name} falls")
    return values


def _within(name: str, values: AnyArray, low: int, high: int) -> None:
    """Check that `low` <= value < `high` for all values."""
    if values.size:
        _require(low <= values.min() and values.max() < high, f"{name} leaves its range")


def _require(is_right: bool | np.bool_, problem: str) -> None:
    if not is_right:
        raise Damaged(problem)
