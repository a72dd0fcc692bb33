"""The arrays of all automata of a product.

Compiled functions get them as references (`references.reference`). Loops use arrays that were taken
out of them beforehand, because numba updates a reference count each time a field is accessed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proper_tokens.arrays import Bools, Int32s, Int64s, UInt8s, UInt64s
from proper_tokens.merges import MergeRelation
from proper_tokens.pretokenizer import FLAGS
from proper_tokens.references import Reference

LENGTH = 256
"""The last column of `Tables.goto`."""
IN_LANGUAGE, IN_PRETOKENIZER, COMBINING, MARK, STARTER, SPELT = 0, 1, 2, 3, 4, 5
"""Columns of `Tables.characters`."""
IN_ONE, IN_BYTES = 1, 2
"""How BPE with byte fallback spells a character: never in the tokens of its bytes, of which it has
several, because it has a token; or only in those, which never merge."""
UNEXPLORED = -2
"""The entry in `Tables.language` for a configuration that was not needed yet."""
STACKS, CONFIGURATIONS, ITEMS, CROWDED = 0, 1, 2, 3
"""Places in `Pushdown.used`."""


class Pushdown(NamedTuple):
    """A pushdown automaton, and its configurations as far as they were needed.

    A configuration is what can be known after some characters: a set of items, each of which is a
    state of `language.Language` and a stack. A stack is a number that stands for the state to
    return to and the stack below; 0 is the empty stack. The configurations are the states of the
    language in `Tables`, whose arrays have room for them. Only searches that hold the product's
    lock add configurations. They write an entry of the table last, so that other threads can read
    it.

    Attributes:
        table, ends, distance: as in `language.Language`; `can`: as in `Tables`, by its states.
        reads: [states] bool: whether a state reads any character.
        call_begin: [states + 1] int32: where each state's calls begin in `calls`; `calls`: [n, 2]
            int32, the rule's initial state, and the state behind the call or -1.
        stacks: [room, 4] int32: return, stack below, depth, and distance to the end.
        stack_slots: [a power of two] int32: an open-addressing hash table of stacks plus one.
        items: [room] int64: the items of each configuration in ascending order, packed; `begin`:
            [room + 1] int64, where those of each configuration begin.
        slots: [a power of two] int32: as `stack_slots`, of configurations.
        depth: [room] int32: the depth of the highest stack of each configuration.
        found: [MOST_ITEMS] int64: room for a configuration under way.
        used: [4] int64: how many stacks, configurations and items there are, and whether there was
            no room for one.
        work: `Memo.work`.
    """

    table: Int32s
    can: UInt64s
    ends: Bools
    distance: Int32s
    reads: Bools
    call_begin: Int32s
    calls: Int32s
    stacks: Int32s
    stack_slots: Int32s
    items: Int64s
    begin: Int64s
    slots: Int32s
    depth: Int32s
    found: Int64s
    used: Int64s
    work: Int64s


class Tables(NamedTuple):
    """All automata of a product. Those from `decoder` on depend on the language.

    Attributes:
        content: the concatenated bytes of all tokens; `begin`: [V + 1] int64, where each begins.
        plain: a trie (`tries`) of the tokens that begin with a whole character that NFC never
            changes, and in which no text of an added token can begin.
        marked: a trie of the other tokens that begin with such a character.
        odd: a trie of all other tokens.
        byte_ids: [256] int64: the token of each byte, or of the ASCII character that it is.
        added: [] int64: the added tokens that are text.
        is_raw: [V] bool: whether nothing is normalized across the ends of an added token.
        goto: [states, 257] int32: the Aho-Corasick automaton of the added tokens' texts; column
            `LENGTH` holds the number of bytes of the longest such text that ends in a state.
        pretokens, torn, may_end: the pre-tokenizer's table, its state in place of another if there
            is a token boundary within the last character, and whether a text may end in a state.
        changes: `nfc.Normalization.changes`.
        is_inert: [V] bool: whether a token is in `plain` or `marked`.
        relation: the merge relation; `made_by`: [M] int64: the token that each merge makes.
        pushdown: what makes further states of the language.
        decoder: [nodes, 256] int32: decodes UTF-8 into classes of characters.
        reach, can: the classes that the unfinished character may still have, by node, and those
            that the language accepts, by state.
        takes: [states, flags, words] uint64: the classes that the pre-tokenizer accepts.
        language, accepts, distance: the language's automaton; `UNEXPLORED` where a configuration is
            not known yet.
        characters: [classes, 6] int32: the class in the language, the class in the pre-tokenizer,
            the three properties in `nfc.Normalization`, and `IN_ONE`, `IN_BYTES` or 0.
        spelling: [classes, 5] int32: the number of bytes and the bytes of each character that
            occurs in an added token's text, which has a class of its own; 0 for other classes.
        samples: [classes, 5] int32: the number of tokens that BPE begins with on one character of
            each class, and these tokens.
        leading: [] int64: the classes that suffice to decide whether the text can end. Any other
            class leads only where one of these leads as well, and leaves no more options open.
    """

    content: UInt8s
    begin: Int64s
    plain: Int32s
    marked: Int32s
    odd: Int32s
    byte_ids: Int64s
    added: Int64s
    is_raw: Bools
    goto: Int32s
    pretokens: Int32s
    torn: Int32s
    may_end: Bools
    changes: Bools
    is_inert: Bools
    relation: MergeRelation
    made_by: Int64s
    pushdown: Pushdown
    decoder: Int32s = np.zeros((1, 256), np.int32)
    reach: UInt64s = np.zeros((1, 1), np.uint64)
    can: UInt64s = np.zeros((1, 1), np.uint64)
    takes: UInt64s = np.zeros((1, FLAGS, 1), np.uint64)
    language: Int32s = np.zeros((1, 1), np.int32)
    accepts: Bools = np.zeros(1, np.bool_)
    distance: Int32s = np.zeros(1, np.int32)
    characters: Int32s = np.zeros((1, 6), np.int32)
    spelling: Int32s = np.zeros((1, 5), np.int32)
    samples: Int32s = np.zeros((1, 5), np.int32)
    leading: Int64s = np.zeros(0, np.int64)


class PushdownReference(Reference, of=Pushdown):
    """The `pushdown` of compiled functions."""


class TablesReference(Reference, of=Tables):
    """The `tables` of compiled functions."""
