"""The walks and searches of `product`, compiled for the CPU.

A text is packed into one number, from the highest bits down: the state of the language, the state
of the pre-tokenizer, the character under way (a node of the decoder), the flag of its first byte,
and the added token under way.

In loops, arrays are taken out of their tuple first: numba counts a reference at each access.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_lz.compiled import compiled, unlocked
from sglang_lz.proper.merges import MergeRelation, stay_apart
from sglang_lz.proper.nfc import STARTS
from sglang_lz.proper.pretokenizer import APART, BROKEN, WITHIN

DEAD, ALIVE, OPEN, ALWAYS, FULL = 0, 1, 2, 3, -9
"""What a search finds; `OPEN` is under way, `ALWAYS` is alive whatever the last token is, and
`FULL` asks for a larger memo."""
UNKNOWN, NONE = -2, -1
NEAREST = 12
"""How many tokens that lead nearest to an accepting state a search tries first."""
LONGEST = 512
"""Bytes of the longest token."""
_SPREAD, _OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
LANGUAGE_BITS, PRETOKEN_BITS, NODE_BITS, FLAG_BITS, ADDED_BITS = 15, 12, 11, 2, 13
BYTE, DEPTH, SKIP, TOKEN = 0, 1, 2, 3
LENGTH = 256
IN_LANGUAGE, IN_PRETOKENIZER, COMBINING, MARK, STARTER = 0, 1, 2, 3, 4
ANY = -1
"""In place of a state of NFC and a last token: whatever they are."""


class Tables(NamedTuple):
    """All automata of a product.

    Attributes:
        content: bytes of all tokens in a row; `begin`: [V + 1] int64, where each begins.
        plain: tokens that begin with a whole character that NFC never changes, and in which no text
            of an added token can begin, as a trie in depth-first order: [nodes, 4] int32: the byte
            that leads to a node, its depth from 1 on, the next node that is not below it, and the
            token that ends there, or -1.
        marked: the others that begin with such a character, likewise.
        odd: all other tokens, likewise.
        byte_ids: [256] int64: the token of each byte.
        added: [] int64: the added tokens that are text.
        is_raw: [V] bool: whether nothing is normalized across the ends of an added token.
        goto: [states, 257] int32: the automaton of the added tokens' texts (Aho-Corasick), and at
            `LENGTH` the bytes of the longest such text that ends there.
        pretokens, may_end: the pre-tokenizer's table, and whether a text may end.
        changes: what NFC changes together.
        relation: the merge relation.
        decoder: [nodes, 256] int32: UTF-8 into classes of characters.
        reach, can: the classes that a character under way may have, and that the language takes.
        takes: [states, flags, words] uint64: those that the pre-tokenizer takes.
        language, accepts, distance: the language's automaton.
        characters: [classes, 5] int32: the class in the language and in the pre-tokenizer, and what
            `nfc.Normalization` has of each.
        nearest: [language's states, NEAREST] int64: the tokens to try first, found when needed.
    """

    content: npt.NDArray[np.uint8]
    begin: npt.NDArray[np.int64]
    plain: npt.NDArray[np.int32]
    marked: npt.NDArray[np.int32]
    odd: npt.NDArray[np.int32]
    byte_ids: npt.NDArray[np.int64]
    added: npt.NDArray[np.int64]
    is_raw: npt.NDArray[np.bool_]
    goto: npt.NDArray[np.int32]
    pretokens: npt.NDArray[np.int32]
    may_end: npt.NDArray[np.bool_]
    changes: npt.NDArray[np.bool_]
    relation: MergeRelation
    decoder: npt.NDArray[np.int32]
    reach: npt.NDArray[np.uint64]
    can: npt.NDArray[np.uint64]
    takes: npt.NDArray[np.uint64]
    language: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int32]
    characters: npt.NDArray[np.int32]
    nearest: npt.NDArray[np.int64]


class Memo(NamedTuple):
    """What searches have found, by text, state of NFC and last token: an open-addressing table.

    Attributes:
        text, rest: [size] int64: the key; -1 in `text` is empty.
        found: [size] int8.
        used: [1] int64: how many entries are.
    """

    text: npt.NDArray[np.int64]
    rest: npt.NDArray[np.int64]
    found: npt.NDArray[np.int8]
    used: npt.NDArray[np.int64]


def new_memo(size: int) -> Memo:
    """An empty memo of a power of two entries."""
    return Memo(
        np.full(size, -1, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int8),
        np.zeros(1, np.int64),
    )


def grown(memo: Memo) -> Memo:
    """A memo of twice the size with the same findings."""
    larger = new_memo(2 * len(memo.text))
    _copy(memo, larger)
    return larger


@compiled
def trie_array(content, ends, ids):
    """A trie, as `Tables.plain`, of tokens that are sorted by their bytes."""
    trie = np.empty((len(content), 4), np.int32)
    n = 0
    for k in range(len(ids)):
        begin, size = ends[k], ends[k + 1] - ends[k]
        common = 0
        if k:
            before, length = ends[k - 1], ends[k] - ends[k - 1]
            while (
                common < min(size, length) and content[before + common] == content[begin + common]
            ):
                common += 1
        for j in range(common, size):
            trie[n, BYTE] = content[begin + j]
            trie[n, DEPTH] = j + 1
            trie[n, TOKEN] = -1
            n += 1
        trie[n - 1, TOKEN] = ids[k]
    trie = trie[:n].copy()
    trie[:, SKIP] = n
    open_at = np.zeros(LONGEST + 1, np.int64)
    deepest = 0
    for i in range(n):
        for d in range(trie[i, DEPTH], deepest + 1):
            trie[open_at[d], SKIP] = i
        deepest = trie[i, DEPTH]
        open_at[deepest] = i
    return trie


@compiled
def _copy(memo, larger):
    for i in range(len(memo.text)):
        if memo.text[i] >= 0 and (memo.found[i] == ALIVE or memo.found[i] == DEAD):
            _put(larger, memo.text[i], memo.rest[i], memo.found[i])


@compiled
def _slot(texts, rests, text, rest):
    """Where a key is, or where it would be."""
    size = len(texts) - 1
    at = np.uint64(text) * _SPREAD + np.uint64(rest) * _OTHER
    i = np.int64((at ^ (at >> np.uint64(29))) & np.uint64(size))
    while texts[i] >= 0 and (texts[i] != text or rests[i] != rest):
        i = (i + 1) & size
    return i


@compiled
def _get(texts, rests, found, text, rest):
    """A finding, or -1."""
    i = _slot(texts, rests, text, rest)
    return found[i] if texts[i] >= 0 else np.int8(-1)


@compiled
def _put(memo, text, rest, found):
    i = _slot(memo.text, memo.rest, text, rest)
    if memo.text[i] < 0:
        memo.text[i] = text
        memo.rest[i] = rest
        memo.used[0] += 1
    memo.found[i] = found


@compiled
def packed(language, pretoken, node, flag, added):
    """A text of its parts."""
    text = (np.int64(language) << PRETOKEN_BITS) | pretoken
    text = (((text << NODE_BITS) | node) << FLAG_BITS) | flag
    return (text << ADDED_BITS) | added


@compiled
def unpacked(text):
    """State of the language, of the pre-tokenizer, node, flag, and added token under way."""
    added = text & ((1 << ADDED_BITS) - 1)
    text >>= ADDED_BITS
    flag = text & ((1 << FLAG_BITS) - 1)
    text >>= FLAG_BITS
    node = text & ((1 << NODE_BITS) - 1)
    text >>= NODE_BITS
    return text >> PRETOKEN_BITS, text & ((1 << PRETOKEN_BITS) - 1), node, flag, added


@compiled
def _ends(accepts, ends, text):
    language, pretoken, node, _, _ = unpacked(text)
    return node == 0 and accepts[language] and ends[pretoken]


@compiled
def may_end(tables, text):
    """Whether a text may end."""
    return _ends(tables.accepts, tables.may_end, text)


@compiled
def _read(goto, decoder, can, reach, states, characters, changes, language, node, added, nfc, byte):
    """What does not depend on cuts, after a byte; the class of the character that it ends, or -1.

    A negative state of the language: the byte may not come.
    """
    added = goto[added, byte]
    if goto[added, LENGTH] > 0:
        return -1, 0, 0, 0, -1
    entry = decoder[node, byte]
    if entry >= 0:
        for w in range(can.shape[1]):
            if can[language, w] & reach[entry, w]:
                return language, entry, added, nfc, -1
        return -1, 0, 0, 0, -1
    if entry == -1:
        return -1, 0, 0, 0, -1
    c = -2 - entry
    nfc = _compose(characters, changes, nfc, c)
    language = states[language, characters[c, IN_LANGUAGE]] if nfc >= 0 else -1
    return language, 0, added, nfc, c


@compiled
def _compose(characters, changes, nfc, c):
    """The state of NFC after a character; -1 if NFC would change the text."""
    combining, mark = characters[c, COMBINING], characters[c, MARK]
    starter, before = nfc // STARTS, nfc % STARTS
    if combining == 0:
        if mark and before == 0 and changes[starter, mark]:
            return np.int64(-1)
        return np.int64(characters[c, STARTER]) * STARTS
    if combining < 0 or before > combining:
        return np.int64(-1)
    if before < combining and mark and changes[starter, mark]:
        return np.int64(-1)
    return np.int64(starter) * STARTS + combining


@compiled
def _split(pretokens, takes, reach, characters, pretoken, node, flag, cut, after, c):
    """State of the pre-tokenizer and flag after a byte; a negative state is none.

    Args:
        node, after: the character under way before and after the byte.
        cut: the flag of the cut before the byte.
        c: the class of the character that the byte ends, or -1.
    """
    if node:
        if cut == BROKEN:  # within a character the pre-tokenizer does not cut
            return -1, 0
    else:
        flag = cut
    if c >= 0:
        return pretokens[pretoken, characters[c, IN_PRETOKENIZER], flag], 0
    for w in range(takes.shape[2]):
        if takes[pretoken, flag, w] & reach[after, w]:
            return pretoken, flag
    return -1, 0


@compiled
def _run(tables, text, nfc, token, cut):
    """The text and the state of NFC behind a token after a cut; a negative text is none."""
    goto, decoder, can, reach = tables.goto, tables.decoder, tables.can, tables.reach
    states, characters, changes = tables.language, tables.characters, tables.changes
    pretokens, takes, content = tables.pretokens, tables.takes, tables.content
    language, pretoken, node, flag, added = unpacked(text)
    for i in range(tables.begin[token], tables.begin[token + 1]):
        language, after, added, nfc, c = _read(
            goto, decoder, can, reach, states, characters, changes,
            language, node, added, nfc, content[i],
        )  # fmt: skip
        if language < 0:
            return np.int64(-1), np.int64(0)
        pretoken, flag = _split(
            pretokens, takes, reach, characters, pretoken, node, flag, cut, after, c
        )
        if pretoken < 0:
            return np.int64(-1), np.int64(0)
        node, cut = after, WITHIN
    return packed(language, pretoken, node, flag, added), np.int64(nfc)


@compiled
def _run_added(tables, text, nfc, token):
    """The text and the state of NFC behind an added token; a negative text is none."""
    goto, decoder, content = tables.goto, tables.decoder, tables.content
    states, characters, changes = tables.language, tables.characters, tables.changes
    language, pretoken, node, _, added = unpacked(text)
    if node or not tables.may_end[pretoken]:
        return np.int64(-1), np.int64(0)
    is_raw = tables.is_raw[token]
    nfc = np.int64(0) if is_raw else np.int64(nfc)
    first = tables.begin[token]
    for i in range(first, tables.begin[token + 1]):
        entry = decoder[node, content[i]]
        added = goto[added, content[i]]
        if goto[added, LENGTH] > i - first + 1:  # another one began before it
            return np.int64(-1), np.int64(0)
        if entry >= 0:
            node = entry
            continue
        if not is_raw:
            nfc = _compose(characters, changes, nfc, -2 - entry)
        language = states[language, characters[-2 - entry, IN_LANGUAGE]]
        if nfc < 0 or language < 0:
            return np.int64(-1), np.int64(0)
        node = 0
    return packed(language, 0, 0, WITHIN, added), nfc


@compiled
def _cut(relation, last, token):
    """The flag of the cut between two tokens."""
    return APART if last < 0 or stay_apart(relation, last, token) else BROKEN


@compiled
def step(tables, text, nfc, last, token):
    """The text and the state of NFC behind a token; a negative text if it may not come."""
    for added in tables.added:
        if added == token:
            return _run_added(tables, text, nfc, token)
    if not tables.relation.reachable[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
        return np.int64(-1), np.int64(0)
    return _run(tables, text, nfc, token, _cut(tables.relation, last, token))


@compiled
def walk(tables, trie, text, nfc):
    """Where each token of a trie leads.

    Returns:
        [found, 4] int64: token, the text after a cut that the merges make, the text after one that
        they do not make (negative is none), and the state of NFC.
    """
    goto, decoder, can, reach = tables.goto, tables.decoder, tables.can, tables.reach
    states, characters, changes = tables.language, tables.characters, tables.changes
    pretokens, takes = tables.pretokens, tables.takes
    found = np.empty((256, 4), np.int64)
    n = 0
    # By depth: language, node, added token, NFC; pre-tokenizer and flag after each kind of cut.
    path = np.empty((LONGEST + 1, 8), np.int64)
    path[0, 0], path[0, 4], path[0, 1], path[0, 5], path[0, 2] = unpacked(text)
    path[0, 3], path[0, 6], path[0, 7] = nfc, path[0, 4], path[0, 5]
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        node = path[d - 1, 1]
        language, after, added, after_nfc, c = _read(
            goto, decoder, can, reach, states, characters, changes,
            path[d - 1, 0], node, path[d - 1, 2], path[d - 1, 3], trie[i, BYTE],
        )  # fmt: skip
        if language < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1], path[d, 2], path[d, 3] = language, after, added, after_nfc
        for kind in range(2):
            pretoken, flag = path[d - 1, 4 + 2 * kind], path[d - 1, 5 + 2 * kind]
            if pretoken >= 0:
                cut = WITHIN if d > 1 else APART + kind
                pretoken, flag = _split(
                    pretokens, takes, reach, characters, pretoken, node, flag, cut, after, c
                )
            path[d, 4 + 2 * kind], path[d, 5 + 2 * kind] = pretoken, flag
        if path[d, 4] < 0 and path[d, 6] < 0:
            i = trie[i, SKIP]
            continue
        if trie[i, TOKEN] >= 0:
            if n == len(found):
                more = np.empty((4 * n, 4), np.int64)
                more[:n] = found
                found = more
            found[n, 0], found[n, 3] = trie[i, TOKEN], after_nfc
            for kind in range(2):
                pretoken, flag = path[d, 4 + 2 * kind], path[d, 5 + 2 * kind]
                found[n, 1 + kind] = (
                    packed(language, pretoken, after, flag, added) if pretoken >= 0 else -1
                )
            n += 1
        i += 1
    return found[:n]


@unlocked
def nfc_behind(tables):
    """The state of NFC behind each plain token: [V] int32, -1 where NFC would change the token.

    Such a token begins with a character that NFC never changes, so what stands before is all one.
    """
    trie, decoder = tables.plain, tables.decoder
    characters, changes = tables.characters, tables.changes
    behind = np.full(len(tables.begin) - 1, -1, np.int32)
    path = np.empty((LONGEST + 1, 2), np.int64)
    path[0, 0], path[0, 1] = 0, 0
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        entry = decoder[path[d - 1, 0], trie[i, BYTE]]
        nfc = path[d - 1, 1]
        if entry < -1:
            nfc = _compose(characters, changes, nfc, -2 - entry)
        if entry == -1 or nfc < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1] = max(entry, 0), nfc
        if trie[i, TOKEN] >= 0:
            behind[trie[i, TOKEN]] = nfc
        i += 1
    return behind


@unlocked
def cuts_behind(tables, nfc, pretoken):
    """Where the pre-tokenizer stands behind each plain token.

    Args:
        nfc: what `nfc_behind` returns.
        pretoken: its state before the token, between two characters.

    Returns:
        [V] int32: the number of each token's kind; and [kinds, 2] int16: its state and the flag of
        the character under way, packed, after a cut that the merges make and after one that they do
        not, -1 where a token of the kind may not come.
    """
    trie, decoder, reach = tables.plain, tables.decoder, tables.reach
    pretokens, takes, characters = tables.pretokens, tables.takes, tables.characters
    kinds = np.zeros(len(nfc), np.int32)
    behind = np.full((len(nfc) + 2, 2), -1, np.int16)  # the first kind may not come at all
    n = 1
    # By depth: the character under way; state and flag after each kind of cut.
    path = np.empty((LONGEST + 1, 5), np.int64)
    path[0, 0], path[0, 1], path[0, 2], path[0, 3], path[0, 4] = 0, pretoken, 0, pretoken, 0
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        token = trie[i, TOKEN]
        node = path[d - 1, 0]
        entry = decoder[node, trie[i, BYTE]]
        if entry == -1:
            i = trie[i, SKIP]
            continue
        path[d, 0] = max(entry, 0)
        for kind in range(2):
            before, flag = path[d - 1, 1 + 2 * kind], path[d - 1, 2 + 2 * kind]
            if before >= 0:
                cut = WITHIN if d > 1 else APART + kind
                c = -2 - entry if entry < -1 else -1
                before, flag = _split(
                    pretokens, takes, reach, characters, before, node, flag, cut, path[d, 0], c
                )
            path[d, 1 + 2 * kind], path[d, 2 + 2 * kind] = before, flag
        if token >= 0 and nfc[token] >= 0:
            for kind in range(2):
                before, flag = path[d, 1 + 2 * kind], path[d, 2 + 2 * kind]
                behind[n, kind] = (before << FLAG_BITS) | flag if before >= 0 else -1
            k = 0
            while behind[k, 0] != behind[n, 0] or behind[k, 1] != behind[n, 1]:
                k += 1
            kinds[token] = k
            n += k == n
        i += 1
    return kinds, behind[:n].copy()


@compiled
def _walk_language(tables, language):
    """The plain tokens that the language takes in one of its states.

    Returns:
        [found, 3] int32: token, state of the language behind it, and the character under way.
    """
    trie, decoder, states = tables.plain, tables.decoder, tables.language
    can, reach = tables.can, tables.reach
    classes = tables.characters[:, IN_LANGUAGE].copy()
    ascii = np.empty(128, np.int32)
    for byte in range(128):
        ascii[byte] = classes[-2 - decoder[0, byte]]
    found = np.empty((len(trie), 3), np.int32)
    n = 0
    path = np.empty((LONGEST + 1, 2), np.int32)
    path[0, 0], path[0, 1] = language, 0
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        after = path[d - 1, 0]
        node = np.int32(0)
        if trie[i, BYTE] < 128:  # most are, and it need not wait for the byte before
            after = states[after, ascii[trie[i, BYTE]]]
        else:
            entry = decoder[path[d - 1, 1], trie[i, BYTE]]
            if entry < -1:
                after = states[after, classes[-2 - entry]]
            else:
                node = entry
                may = False
                if entry >= 0:
                    for w in range(can.shape[1]):
                        may |= can[after, w] & reach[entry, w] != 0
                if not may:
                    after = np.int32(-1)
        if after < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1] = after, node
        found[n, 0], found[n, 1], found[n, 2] = trie[i, TOKEN], after, node
        n += trie[i, TOKEN] >= 0  # no branch: half of the nodes end a token, none knows which
        i += 1
    return found[:n]


@compiled
def _walk_plain(tables, cuts, nfc, text):
    """What `walk` returns of the plain tokens, sooner.

    Args:
        cuts: what `cuts_behind` returns for the text's state of the pre-tokenizer.
        nfc: what `nfc_behind` returns.
        text: neither a character nor an added token is under way.
    """
    taken = _walk_language(tables, unpacked(text)[0])
    kinds, behind = cuts
    found = np.empty((len(taken), 4), np.int64)
    n = 0
    for i in range(len(taken)):
        token = taken[i, 0]
        found[n, 0], found[n, 3] = token, nfc[token]
        for kind in range(2):
            found[n, 1 + kind] = _placed(taken[i, 1], behind[kinds[token], kind], taken[i, 2])
        n += found[n, 1] >= 0 or found[n, 2] >= 0
    return found[:n]


@compiled
def _placed(language, cut, node):
    """A text of what `_walk_language` and `cuts_behind` return; a negative text is none."""
    if cut < 0:
        return np.int64(-1)
    return packed(language, cut >> FLAG_BITS, node, cut & ((1 << FLAG_BITS) - 1), 0)


@compiled
def _find_nearest(tables, language):
    """The tokens that lead from a state of the language nearest to an accepting one."""
    nearest, distance = tables.nearest[language], tables.distance
    ends = np.empty(NEAREST, np.int64)
    n = 0
    taken = _walk_language(tables, language)
    for i in range(len(taken)):
        after = taken[i, 1]
        if (
            taken[i, 2] == 0
            and distance[after] < distance[language]
            and (n < NEAREST or distance[after] < ends[n - 1])
        ):
            j = n if n < NEAREST else NEAREST - 1
            while j > 0 and ends[j - 1] > distance[after]:
                nearest[j], ends[j] = nearest[j - 1], ends[j - 1]
                j -= 1
            nearest[j], ends[j] = taken[i, 0], distance[after]
            n = min(n + 1, NEAREST)
    nearest[n:] = NONE


@compiled
def _rest(n_tokens, nfc, last):
    """The part of a memo's key that is not the text."""
    return nfc * np.int64(n_tokens + 1) + last + 1


@compiled
def _known(accepts, ends, texts, rests, found, text, rest):
    """What is known of a state: `ALIVE`, `DEAD`, `OPEN`, or another number."""
    if _ends(accepts, ends, text) or _get(texts, rests, found, text, ANY) == ALIVE:
        return np.int8(ALIVE)
    return _get(texts, rests, found, text, rest)


@compiled
def _next_child(decoder, can, takes, reach, n_added, text, i):
    """The next child that `_child` may find, from the i-th on."""
    language, pretoken, node, flag, _ = unpacked(text)
    first = NEAREST + 256 + n_added
    if node:  # only bytes go on with a character, and none of them counts for all
        i = max(i, first + NEAREST + 128)
    while i < 2 * first:
        byte = i % first - NEAREST
        if not 0 <= byte < 256:
            if not node:
                return i
        elif i >= first or byte < 128:
            entry = decoder[node, byte]
            for w in range(can.shape[1]):
                may = can[language, w]
                if node:
                    may &= takes[pretoken, flag, w]
                if entry >= 0:
                    may &= reach[entry, w]
                elif entry == -1 or (-2 - entry) >> 6 != w:
                    continue
                else:
                    may &= np.uint64(1) << np.uint64((-2 - entry) & 63)
                if may:
                    return i
        i += 1
    return i


@compiled
def _child(tables, text, nfc, last, i):
    """The i-th state to look at behind a state, of those that `_next_child` counts.

    Twice a token that leads near the end, a byte or an added token: first those behind which
    nothing depends on the last token, as if the merges did not make the cut, then after the cut
    that they make.

    Returns:
        Text, state of NFC and token of the child (a negative text is none), and whether it counts
        for every last token.
    """
    first = NEAREST + 256 + len(tables.added)
    language, _, _, _, _ = unpacked(text)
    is_strong = i < first
    i %= first
    token = np.int64(-1)
    if i < NEAREST:
        if tables.nearest[language, 0] == UNKNOWN:
            _find_nearest(tables, language)
        token = tables.nearest[language, i]
    elif i < NEAREST + 256:
        token = tables.byte_ids[i - NEAREST]  # of ASCII where it counts for all: NFC leaves it
    else:
        token = tables.added[i - NEAREST - 256]
        if tables.is_raw[token] == is_strong:
            after, after_nfc = _run_added(tables, text, nfc, token)
            return after, after_nfc, np.int64(-1), is_strong
        token = np.int64(-1)
    if token < 0:
        return np.int64(-1), np.int64(0), np.int64(0), False
    cut = BROKEN if is_strong else _cut(tables.relation, last, token)
    after, after_nfc = _run(tables, text, nfc, token, cut)
    return after, after_nfc, token, is_strong


@compiled
def search(tables, memo, text, nfc, last):
    """Whether a text can end after some tokens: `ALIVE` or `DEAD`; `FULL` if the memo is."""
    accepts, ends, n_tokens = tables.accepts, tables.may_end, len(tables.begin)
    texts, rests, findings = memo.text, memo.rest, memo.found
    start = _rest(n_tokens, nfc, last)
    known = _known(accepts, ends, texts, rests, findings, text, start)
    if known in (ALIVE, DEAD):
        return np.int64(known)
    if 4 * (memo.used[0] + 2) > len(texts):
        return np.int64(FULL)
    decoder, can, takes, reach = tables.decoder, tables.can, tables.takes, tables.reach
    n_added = len(tables.added)
    first = 2 * (NEAREST + 256 + n_added)
    # The path: text, state of NFC, last token, next child, and where its own tokens begin and end.
    path = np.empty((64, 7), np.int64)
    seen = np.empty((256, 2), np.int64)
    found = np.empty((0, 4), np.int64)
    n_seen = 1
    n = 1
    path[0, 0], path[0, 1], path[0, 2], path[0, 3] = text, nfc, last, 0
    path[0, 4], path[0, 5], path[0, 6] = -1, 0, 0
    seen[0, 0], seen[0, 1] = text, start
    _put(memo, text, start, OPEN)
    is_alive = False
    is_full = False
    while n and not is_alive:
        top = path[n - 1]
        i = _next_child(decoder, can, takes, reach, n_added, top[0], top[3])
        if i >= first:
            if top[4] < 0:
                behind = walk(tables, tables.plain, top[0], top[1])
                marked = walk(tables, tables.marked, top[0], top[1])
                odd = walk(tables, tables.odd, top[0], top[1])
                top[4] = len(found)
                found = np.concatenate((found, behind, marked, odd))
                top[5] = len(found)
            if i - first >= top[5] - top[4]:
                found = found[: top[4]]
                n -= 1
                continue
        top[3] = i + 1
        if i < first:
            after, after_nfc, token, is_strong = _child(tables, top[0], top[1], top[2], i)
        else:
            row = found[top[4] + i - first]
            token, after_nfc, is_strong = row[0], row[3], False
            after = row[1] if _cut(tables.relation, top[2], token) == APART else row[2]
        if after < 0:
            continue
        rest = _rest(n_tokens, after_nfc, token)
        known = _known(accepts, ends, texts, rests, findings, after, rest)
        if known == ALIVE:
            top[6] = is_strong
            is_alive = True
            break
        if known in (DEAD, OPEN):
            continue
        if 4 * (memo.used[0] + 2) > len(texts):
            is_full = True
            break
        top[6] = is_strong
        if n == len(path):
            longer = np.empty((2 * n, 7), np.int64)
            longer[:n] = path
            path = longer
        if n_seen == len(seen):
            more = np.empty((2 * n_seen, 2), np.int64)
            more[:n_seen] = seen
            seen = more
        path[n, 0], path[n, 1], path[n, 2], path[n, 3] = after, after_nfc, token, 0
        path[n, 4], path[n, 5], path[n, 6] = -1, 0, 0
        seen[n_seen, 0], seen[n_seen, 1] = after, rest
        n_seen += 1
        _put(memo, after, rest, OPEN)
        n += 1
    # What the search has left behind is dead if nothing was found, else it may lead to the path.
    for j in range(n_seen):
        _put(memo, seen[j, 0], seen[j, 1], UNKNOWN if is_alive or is_full else DEAD)
    if is_full:
        return np.int64(FULL)
    for j in range(n if is_alive else 0):
        _put(memo, path[j, 0], _rest(n_tokens, path[j, 1], path[j, 2]), ALIVE)
        if path[j, 6]:
            _put(memo, path[j, 0], ANY, ALIVE)
    return np.int64(ALIVE if is_alive else DEAD)


@compiled
def _finishes(tables, memo, text, nfc, last):
    """Whether the first bytes that go on with the character under way lead to a text that lives.

    That spares most searches. If it is false, nothing is known.
    """
    first = NEAREST + 256 + len(tables.added)
    i = first
    while unpacked(text)[2]:
        i = _next_child(
            tables.decoder, tables.can, tables.takes, tables.reach, len(tables.added), text, i
        )
        if i >= 2 * first:
            return False
        token = tables.byte_ids[i - first - NEAREST]
        i += 1
        if _cut(tables.relation, last, token) == APART:
            after, after_nfc = _run(tables, text, nfc, token, APART)
            if after >= 0:
                text, nfc, last, i = after, after_nfc, token, first
                if not unpacked(text)[2]:
                    is_known = _get(memo.text, memo.rest, memo.found, text, ANY) == ALIVE
                    return is_known or _ends(tables.accepts, tables.may_end, text)
    return False


@compiled
def _lives(tables, memo, text, nfc, last):
    """Whether a text can end: `DEAD`, `ALIVE`, `ALWAYS` or `FULL`."""
    accepts, ends = tables.accepts, tables.may_end
    texts, rests, found = memo.text, memo.rest, memo.found
    if _ends(accepts, ends, text) or _get(texts, rests, found, text, ANY) == ALIVE:
        return np.int64(ALWAYS)
    if _finishes(tables, memo, text, nfc, last):
        return np.int64(ALIVE)
    lives = search(tables, memo, text, nfc, last)
    if lives == ALIVE and _get(texts, rests, found, text, ANY) == ALIVE:
        return np.int64(ALWAYS)
    return lives


@unlocked
def live_tokens(tables, memo, trie, text, nfc):
    """The tokens of a trie behind which a text can end.

    Returns:
        Each token times four, plus 1 if it lives after a cut that the merges make, plus 2 if after
        one that they do not. A single `FULL`: the memo is full.
    """
    found = walk(tables, trie, text, nfc)
    live = found[:, 0] * 4
    for i in range(len(found)):
        for kind in range(2):
            after = found[i, 1 + kind]
            if after >= 0:
                lives = _lives(tables, memo, after, found[i, 3], found[i, 0])
                if lives == FULL:
                    return np.full(1, FULL, np.int64)
                live[i] |= (lives != DEAD) << kind
    return live[live & 3 != 0]


@unlocked
def live_plain(tables, memo, cuts, nfc, text, apart, broken):
    """Add to A and B the plain tokens behind which a text can end.

    Args:
        cuts, nfc, text: as those of `_walk_plain`.
        apart, broken: [words] uint32.

    Returns:
        Nothing, or a single `FULL`: the memo is full.
    """
    taken = _walk_language(tables, unpacked(text)[0])
    kinds, behind = cuts
    # What counts for every last token, by where the text is and the kind of its cuts. It lives
    # after none of two cuts, the first, the second or both.
    keys = np.full(1024, -1, np.int64)
    settled = np.zeros(1024, np.uint32)
    for i in range(len(taken)):
        token = np.int64(taken[i, 0])
        cut = np.int64(kinds[token])
        key = (((np.int64(taken[i, 1]) << NODE_BITS) | taken[i, 2]) << 32) | cut
        where = np.uint64(key) * _SPREAD >> np.uint64(54)
        live = settled[where]
        if keys[where] != key:
            live = np.uint32(0)
            is_settled = True
            for kind in range(2):
                after = _placed(taken[i, 1], behind[cut, kind], taken[i, 2])
                if after >= 0:
                    lives = _lives(tables, memo, after, np.int64(nfc[token]), token)
                    if lives == FULL:
                        return np.full(1, FULL, np.int64)
                    live |= np.uint32(lives != DEAD) << np.uint32(kind)
                    is_settled = is_settled and lives == ALWAYS
            if is_settled:
                keys[where], settled[where] = key, live
        bit = np.uint32(token & 31)
        apart[token >> 5] |= (live & np.uint32(1)) << bit
        broken[token >> 5] |= (live >> np.uint32(1)) << bit
    return np.empty(0, np.int64)


@unlocked
def live_added(tables, memo, text, nfc):
    """The added tokens behind which a text can end, as `live_tokens` returns them."""
    live = np.empty(len(tables.added), np.int64)
    n = 0
    for token in tables.added:
        after, after_nfc = _run_added(tables, text, nfc, token)
        if after < 0:
            continue
        lives = search(tables, memo, after, after_nfc, np.int64(-1))
        if lives == FULL:
            return np.full(1, FULL, np.int64)
        if lives == ALIVE:
            live[n] = 4 * token + 3
            n += 1
    return live[:n].copy()


@unlocked
def texts_behind(tables, trie, text, nfc, allowed):
    """Where the tokens of a trie lead that are in a mask: [n, 2] int64, text and state of NFC."""
    return _behind(walk(tables, trie, text, nfc), allowed)


@unlocked
def texts_behind_plain(tables, cuts, nfc, text, allowed):
    """What `texts_behind` returns of the plain tokens; arguments as those of `_walk_plain`."""
    return _behind(_walk_plain(tables, cuts, nfc, text), allowed)


@compiled
def _behind(found, allowed):
    """What `texts_behind` returns of what `walk` returned."""
    behind = np.empty((2 * len(found), 2), np.int64)
    recent = np.full(4096, -1, np.int64)  # what was found lately: most tokens lead to few states
    n = 0
    for i in range(len(found)):
        token = found[i, 0]
        if not allowed[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
            continue
        for kind in range(2):
            after = found[i, 1 + kind]
            at = np.int64(
                (np.uint64(after) * _SPREAD + np.uint64(found[i, 3]) * _OTHER) >> np.uint64(52)
            )
            if after < 0 or (
                recent[at] >= 0
                and behind[recent[at], 0] == after
                and behind[recent[at], 1] == found[i, 3]
            ):
                continue
            recent[at] = n
            behind[n, 0], behind[n, 1] = after, found[i, 3]
            n += 1
    return behind[:n].copy()


@compiled
def set_bits(mask, live, kinds):
    """Add to a mask the tokens that live after one of some kinds of cuts."""
    for i in range(len(live)):
        if live[i] & kinds:
            token = live[i] >> 2
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@compiled
def combine(mask, broken, row, odd, relation, last):
    """Narrow a mask, which holds A, to the tokens that may follow a last token."""
    for i in range(len(mask)):
        mask[i] = (mask[i] & row[i]) | (broken[i] & ~row[i])
    for i in range(len(odd)):
        token = odd[i] >> 2
        kinds = odd[i] & 3
        if kinds == 3 or kinds & (1 if row[token >> 5] >> np.uint32(token & 31) & 1 else 2):
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
