"""server/startup-check: a function of upstream's that does not hold our calls is found.

Plugins replace and wrap functions with upstream's own registry here, as they do in a server.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from patches_tool.patchset import PatchSet
from releases import PATCHES
from sglang_lz.scheduler import hooks

SAMPLE = "sglang.srt.model_executor.model_runner.ModelRunner.sample"
VERIFY = "sglang.srt.speculative.eagle_utils.eagle_sample"

# Imported where they are used by what is no function, or checked by another call in the same one.
NOT_CALLS = {
    "GenerateSamplingParams",  # an annotation
    "OllamaOptions",
    "RequestFields",  # base classes
    "RequestFieldsInOptions",
    "LZParams",  # types of fields
    "HistoryParams",
    "UNPENALISED",  # sampling parameters
    "RepetitionDetection",
    "other_fields",  # without it the LZ fields raise a TypeError
    "gate",  # a module, of which a route's dependency and `check_json` are called
    "guard",  # a module, of which `after_step` and what makes and shows a guard are called
    "resent_fields",  # without it the prefill server sees a request of its own defaults
    "check_server",  # which does the checking
    "naming_field",  # without it a refusal does not name the field
    "samples_on_cpu",  # without it upstream takes the likeliest token on a CPU
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Upstream's registry of hooks, empty; what it changes is put back."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    for function in hooks.HOOKS:
        module, name = f"sglang.srt.{function}".split(":")
        holder: Any = importlib.import_module(module)
        *parents, last = name.split(".")
        for parent in parents:
            holder = getattr(holder, parent)
        monkeypatch.setattr(holder, last, vars(holder)[last])
        if parents:
            owner = importlib.import_module(module)
            monkeypatch.setattr(owner, parents[0], getattr(owner, parents[0]))
    HookRegistry.reset()
    yield HookRegistry
    HookRegistry.reset()


@pytest.mark.usefixtures("registry")
def test_every_call_of_the_patches_is_there() -> None:
    assert hooks.missing() == []


def test_no_call_of_a_patch_is_forgotten() -> None:
    """A patch that calls something new needs an entry."""
    imported = set()
    for patch in PatchSet.load(PATCHES).patches:
        if patch.group in ("sampling", "requests", "guard", "proper", "server"):
            for names in re.findall(rb"^\+ *from sglang_lz\S* import (.*)$", patch.data, re.M):
                imported |= set(names.decode().split(", "))
    known = {call for calls in hooks.HOOKS.values() for call in calls.split()}
    assert imported - NOT_CALLS == known - {
        "check_json",
        "before_finish",
        "after_step",
    }  # imported with their modules


@pytest.mark.parametrize("target", [SAMPLE, VERIFY])
def test_a_replaced_function_is_found(registry: Any, target: str) -> None:
    registry.register(target, lambda *args, **kwargs: None, _type("REPLACE"))
    registry.apply_hooks()
    found = hooks.missing()
    assert found
    assert all(text.startswith(f"{target} does not call sglang_lz's ") for text in found)


@pytest.mark.parametrize("kind", ["BEFORE", "AFTER", "AROUND"])
@pytest.mark.parametrize("target", [SAMPLE, VERIFY])
def test_a_wrapper_is_accepted(registry: Any, target: str, kind: str) -> None:
    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    registry.register(target, around, _type(kind))
    registry.apply_hooks()
    assert hooks.missing() == []


def _type(name: str) -> Any:
    from sglang.srt.plugins.hook_registry import HookType

    return HookType[name]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_replacing_class_must_call_the_original(registry: Any, goes_on: bool) -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    class Calls(ModelRunner):
        def sample(self, *args: Any) -> Any:
            return super().sample(*args)

    class Ignores(ModelRunner):
        def sample(self, *args: Any) -> Any:
            return None

    registry.register(SAMPLE.rsplit(".", 1)[0], Calls if goes_on else Ignores, _type("REPLACE"))
    registry.apply_hooks()
    assert len(hooks.missing()) == (0 if goes_on else 2)


original: Any = None


def keeping(*args: Any) -> Any:
    """A patch by hand, which keeps the original among its module's globals."""
    return original(*args)


def test_a_patch_by_hand_may_keep_the_original(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.speculative import eagle_utils

    monkeypatch.setitem(globals(), "original", eagle_utils.eagle_sample)
    monkeypatch.setattr(eagle_utils, "eagle_sample", keeping)
    assert hooks.missing() == []
    monkeypatch.setitem(globals(), "original", print)
    assert len(hooks.missing()) == 3


def test_nothing_is_imported_to_look_for_a_function(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's modules keep objects that import a module when asked for any attribute."""
    from sglang.srt.speculative import eagle_utils
    from sglang.utils import LazyImport

    lazy = LazyImport("not_installed", "anything")
    function = eagle_utils.eagle_sample
    monkeypatch.setitem(function.__globals__, function.__code__.co_names[0], lazy)
    assert hooks.missing() == []
    monkeypatch.setattr(eagle_utils, "eagle_sample", lambda *args, inner=lazy: inner(*args))
    assert len(hooks.missing()) == 3


def test_naming_the_original_is_not_calling_it(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.speculative import eagle_utils

    @functools.wraps(eagle_utils.eagle_sample)
    def pretends(*args: Any) -> None:
        return None

    monkeypatch.setattr(eagle_utils, "eagle_sample", pretends)
    assert len(hooks.missing()) == 3


def test_a_copy_without_the_call_is_found(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an sglang that stands before ours on Python's path."""
    from sglang.srt.speculative import eagle_utils

    source = Path(eagle_utils.__file__).read_text()
    stripped = re.sub(r"^.*(verify_step|accept_step).*\n", "", source, flags=re.M)
    copy = ModuleType(eagle_utils.__name__)
    copy.__file__ = eagle_utils.__file__
    exec(compile(stripped, "copy", "exec"), copy.__dict__)
    monkeypatch.setitem(hooks.sys.modules, eagle_utils.__name__, copy)
    assert [text.rsplit(" ", 1)[1] for text in hooks.missing()] == ["verify_step", "accept_step"]


class Caller:
    def __init__(self, original: Any) -> None:
        self.wrapped = original

    def __call__(self, *args: Any) -> Any:
        return self.wrapped(*args)


def in_partial(original: Any) -> Any:
    return functools.partial(lambda wrapped, *args: wrapped(*args), original)


@pytest.mark.parametrize("wrap", [in_partial, Caller, functools.lru_cache])
def test_other_wrappers_are_looked_through(
    registry: Any, monkeypatch: pytest.MonkeyPatch, wrap: Any
) -> None:
    from sglang.srt.speculative import eagle_utils

    monkeypatch.setattr(eagle_utils, "eagle_sample", wrap(eagle_utils.eagle_sample))
    assert hooks.missing() == []
