"""Constraints that keep the tokenizer's own tokenization (docs/PROPER_TOKENS.md).

A token sequence is proper if it is what the tokenizer makes of the text that it spells. A regex
constrains text; enforced on any tokens that spell the text, it also lets a model respell it as it
was never trained to. Here only proper sequences are allowed:

- `tokenizer` reads what decides which sequences are proper, and refuses what is not modelled;
- `merges` tells which two tokens may stand side by side (the article's DirectMerge);
- `pretokenizer` and `nfc` tell where tokens must be cut, and which texts are left as they are;
- `language` has the automaton of the constraint;
- `product` walks through all of them at once (the article's CartesianMerge), in `kernels`;
- `prepared` keeps what belongs to a tokenizer, `rules` reads a request's constraint, and `backend`
  serves both in SGLang;
- `drafts` offers forced tokens to speculation, and `admission` reads the request field.

Source: Tran-Thien, "Fast, High-Fidelity LLM Decoding with Regex Constraints".
"""
