"""Constraints that keep the tokenizer's own tokenization (docs/PROPER_TOKENS.md).

A token sequence is proper if the tokenizer produces exactly that sequence from the text it spells.
A regex constrains only the text. If any token sequence that spells a matching text is allowed, the
model may spell the text in ways that it never saw in training. This package allows only proper
sequences, and imports no engine:

- `tokenizer` reads the settings that decide which sequences are proper, and refuses tokenizers with
  features that are not modelled;
- `merges` decides which two tokens may be adjacent (the article's DirectMerge);
- `pretokenizer` decides where tokens must be cut, and `nfc` which texts normalization leaves alone;
- `prepared` builds everything that depends only on the tokenizer;
- `rules` and `language` build the automaton of the constraint, and `compiler` does so in a bounded
  process;
- `product` walks through all of them at once (the article's CartesianMerge): `row_finder` finds the
  next tokens, using `kernels`, on `threads` for which a scheduler waits within `time_limits`.

Source: Tran-Thien, "Fast, High-Fidelity LLM Decoding with Regex Constraints".
"""

__version__ = "0.1.0"
