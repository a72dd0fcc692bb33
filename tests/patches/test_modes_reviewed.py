"""No server argument and no speculative algorithm of upstream goes unlooked at."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from patches_tool.modes import modes, reviewed
from releases import PATCHES


def test_every_mode_of_the_release_was_reviewed() -> None:
    """A new one: say in bounds/modes.py whether the penalties are exact in it, then list it. A
    listed one that the release does not have: delete its line.
    """
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    names = [f"sglang/{file.relative_to(root).as_posix()}" for file in root.glob("srt/**/*.py")]
    ours = {"argument lz_max_window_size", "argument lz_observe_loops"}
    ours |= {"argument lz_history_memory", "argument prepare_proper_tokens"}
    ours |= {"argument lz_loop_finish_reason"}
    found = modes(names, lambda name: (root.parent / name).read_bytes())
    assert ours < set(found)
    assert set(found) - ours == set(reviewed(PATCHES))
