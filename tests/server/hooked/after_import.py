"""For a sitecustomize: change modules right after their import, in every process of a server."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder in front of all others that hands modules to their hooks; `insert` puts it there."""

    def __init__(self, hooks: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.hooks = hooks

    def insert(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders find, its loader followed by the hook."""
        if name not in self.hooks:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.insert()
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_hook(module: ModuleType) -> None:
                load(module)
                self.hooks[name](module)

            spec.loader.exec_module = load_and_hook  # type: ignore[method-assign]
        return spec


def fork_children(engine: ModuleType) -> None:
    """Where LZ_TEST_FORK says so: a server's processes begin with what the first has imported.

    Upstream spawns them, and each imports the same for ten seconds.
    """
    if not os.environ.get("LZ_TEST_FORK"):
        return
    configure = engine._set_envs_and_config

    def configure_to_fork(*args: Any) -> None:
        configure(*args)
        multiprocessing.set_start_method("fork", force=True)

    engine._set_envs_and_config = configure_to_fork
