"""Constraints that keep the tokenizer's own tokenization (docs/PROPER_TOKENS.md).

A token sequence is proper if the tokenizer produces exactly that sequence from the text it spells.
A regex constrains only the text. If any token sequence that spells a matching text is allowed, the
model may spell the text in ways that it never saw in training. This package allows only proper
sequences:

- `tokenizer` reads the settings that decide which sequences are proper, and refuses tokenizers with
  features that are not modelled;
- `merges` decides which two tokens may be adjacent (the article's DirectMerge);
- `pretokenizer` decides where tokens must be cut, and `nfc` which texts normalization leaves alone;
- `language` builds the automaton of the constraint;
- `product` walks through all of them at once (the article's CartesianMerge), using `kernels`;
- `prepared` caches everything that depends only on the tokenizer, `rules` reads a request's
  constraint, and `backend` connects both to SGLang;
- `drafts` offers forced tokens to speculative decoding, and `request_field` reads
  `proper_tokens`.

Source: Tran-Thien, "Fast, High-Fidelity LLM Decoding with Regex Constraints".
"""
