"""Sets and classes of Unicode code points, and a byte automaton that decodes UTF-8 into classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Regex, normalizers

from proper_tokens.arrays import AnyArray, Bools, Int32s, Int64s, UInt64s

SIZE = 0x110000
_SCALARS = np.array([c for c in range(SIZE) if not 0xD800 <= c < 0xE000], np.uint32)
_MARKS = ("\x01", "\x02")
BAD, ROOT = -1, 0
"""Entries of a decoder: a byte that UTF-8 does not allow there, and the node between characters."""

Set = Bools
"""[SIZE] bool: whether a code point is in it."""


def matched_by(pattern: str, among: Set | None = None) -> Set:
    """The code points that a pattern for one character matches.

    This uses the regex engine of the tokenizers library itself, because Unicode versions differ
    between libraries.

    Args:
        pattern: a regex in the dialect of that engine.
        among: the code points to check; None for all.
    """
    codes = _SCALARS if among is None else np.flatnonzero(among).astype(np.uint32)
    text = codes.tobytes().decode("utf-32-le", "replace")
    found = np.zeros(SIZE, bool)
    for mark in _MARKS:  # twice, because replacing a mark by itself changes nothing
        changed = normalizers.Replace(Regex(pattern), mark).normalize_str(text)
        after = np.frombuffer(changed.encode("utf-32-le"), np.uint32)
        if len(after) != len(codes):
            raise ValueError(f"pattern must match single characters, got {pattern}")
        found[codes[after != codes]] = True
        if among is not None and not among[[1, 2]].any():
            break
        text, codes = "\x01", np.array([1], np.uint32)
    return found


def classes_of(sets: Sequence[AnyArray]) -> tuple[Int32s, Int64s]:
    """The coarsest partition of the code points on whose classes every array is constant.

    Args:
        sets: [SIZE] arrays of values.

    Returns:
        The class of each code point, [SIZE] int32, and one code point of each class.
    """
    starts = np.zeros(SIZE, bool)
    starts[0] = True
    for values in sets:
        starts[1:] |= values[1:] != values[:-1]
    begin = np.flatnonzero(starts)
    rows = np.stack([np.asarray(values)[begin].astype(np.int64) for values in sets], axis=1)
    _, first, classes = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    lengths = np.diff(np.append(begin, SIZE))
    return np.repeat(classes.ravel().astype(np.int32), lengths), begin[first]


def decoder_of(classes: Int32s) -> Int32s:
    """The minimal byte automaton of UTF-8 that ends each character with its class.

    Args:
        classes: [SIZE] int32: the class of each code point.

    Returns:
        [nodes, 256] int32, from node and byte to the next node, `BAD`, or -2 - class at the end of
        a character. `ROOT` is the first node.
    """
    nodes: list[Int32s] = [np.full(256, BAD, np.int32)]
    known: dict[bytes, int] = {}

    def node_of(row: Int32s) -> int:
        """The node that reads one of the 64 continuation bytes, given their entries."""
        key = row.tobytes()
        if key not in known:
            known[key] = len(nodes)
            node = np.full(256, BAD, np.int32)
            node[0x80:0xC0] = row
            nodes.append(node)
        return known[key]

    last = np.empty(SIZE >> 6, np.int32)
    ends = (-2 - classes).reshape(-1, 64)
    for i, row in enumerate(ends):
        last[i] = BAD if 0xD800 <= i << 6 < 0xE000 else node_of(row)
    root = nodes[ROOT]
    root[:0x80] = ends[:2].ravel()
    root[0xC2:0xE0] = last[2:32]
    for lead in range(16):
        row = last[lead << 6 : (lead + 1) << 6].copy()
        if lead == 0:
            row[:32] = BAD  # overlong encodings
        root[0xE0 + lead] = node_of(row)
    middle = [node_of(row) for row in last.reshape(-1, 64)]
    for lead in range(5):
        row = np.full(64, BAD, np.int32)
        part = middle[lead << 6 : (lead + 1) << 6]
        row[: len(part)] = part
        if lead == 0:
            row[:16] = BAD
        root[0xF0 + lead] = node_of(row)
    return np.stack(nodes)


def reachable_classes(decoder: Int32s, n_classes: int) -> UInt64s:
    """[nodes, words] uint64: for each node, the classes its unfinished character may still have."""
    reach = np.zeros((len(decoder), -(-n_classes // 64)), np.uint64)
    for node in (*range(ROOT + 1, len(decoder)), ROOT):  # each follows those that it leads to
        entries = np.unique(decoder[node])
        for c in (-2 - entries[entries < BAD]).tolist():
            reach[node, c >> 6] |= np.uint64(1 << (c & 63))
        reach[node] |= np.bitwise_or.reduce(reach[entries[entries > ROOT]], axis=0)
    return reach
