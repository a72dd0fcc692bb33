"""The walks and searches of `product`, compiled for the CPU.

- `tables` has the arrays of all automata, `tries` and `packing` their tries and packed states;
- `walk` walks one token or a trie through them, `plain_walk` does so faster for most tokens;
- `pushdown` makes the states of a recursive language as they are needed;
- `endings` and `token_search` decide whether the text can still end; `memo` keeps their `results`;
- `masks` finds all tokens after which it can, and makes masks of them.

Machine code holds that of the functions that it calls, and the constants of their modules, but
numba compiles a function again only if its own file has another time. So if one module changes, the
others must get another time or another `NUMBA_CACHE_DIR` too, as the scripts and tests give them.
"""
