"""Checks that the upstream functions that will run still call ours.

The seal shows that the files on disk are ours. A plugin, a monkey patch or another copy of sglang
may still replace a function that one of our patches changed. The penalty would then be silently
ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from inspect import getattr_static
from types import CellType, CodeType, FunctionType, MethodType

HOOKS = {
    "model_executor.forward_batch_info:ForwardBatch.init_new": "plan_step",
    "model_executor.model_runner:ModelRunner._init_post_memory_pool_components": "reserve_windows",
    "model_executor.model_runner:ModelRunner.sample": "apply_step forbid_step",
    "managers.scheduler:Scheduler.init_req_max_new_tokens": "abort_unservable",
    "managers.scheduler:Scheduler._get_new_batch_prefill_raw": "with_room",
    "managers.scheduler:Scheduler.get_next_batch_to_run": "pause_late",
    "managers.scheduler:Scheduler.process_batch_result": "discard_late",
    "disaggregation.decode:SchedulerDisaggregationDecodeMixin._get_new_prebuilt_batch": (
        "takes_room"
    ),
    "speculative.eagle_utils:eagle_sample": "verify_step forbid_nodes accept_step",
    "speculative.dflash_worker_v2:DFlashWorkerV2.forward_batch_generation": (
        "verify_block forbid_nodes accept_block"
    ),
    "speculative.dspark_components.dspark_worker_v2:DSparkWorkerV2._forward_decode": (
        "has_penalty verify_block forbid_nodes accept_block"
    ),
    "managers.schedule_batch:Req.update_finish_state": "before_finish after_step",
    "constrained.grammar_manager:GrammarManager.process_req_with_grammar": (
        "guard_thinking grammar_key"
    ),
    "constrained.grammar_manager:GrammarManager.__init__": "serve_proper_tokens",
    "speculative.ngram_worker:NGRAMWorker._prepare_for_speculative_decoding": "offer_forced_tokens",
    "managers.tokenizer_manager:TokenizerManager._create_tokenized_object": "admit",
    "entrypoints.api_contract:generate_contract_error": "without_our_fields",
    "entrypoints.grpc_bridge:RuntimeHandle._run_openai_request": "check_json",
    "entrypoints.openai.serving_completions:OpenAIServingCompletion._build_sampling_params": (
        "given_fields"
    ),
    "entrypoints.openai.protocol:ChatCompletionRequest.to_sampling_params": "given_fields",
    "entrypoints.openai.protocol:ResponsesRequest.to_sampling_params": "given_fields",
    "entrypoints.anthropic.serving:AnthropicServing._convert_to_chat_completion_request": (
        "given_fields"
    ),
    "entrypoints.ollama.serving:OllamaServing._convert_options_to_sampling_params": "ollama_params",
}
"""For each function of upstream, as its module in `sglang.srt` and its name, the calls that our
patches add to it."""


def check() -> None:
    """Refuse to start in a process where upstream would not call our functions.

    Raises:
        ValueError: one sentence that names the function.
    """
    if problems := missing():
        raise ValueError(
            f"{problems[0]}, so lz_penalty would be ignored: something replaced the function after "
            "it was imported; start without that plugin (SGLANG_PLUGINS) or hook."
        )


def missing() -> list[str]:
    """One clause for each function in this process's modules that lacks one of our calls.

    A function passes if it makes the call itself, or may call a function that does: one that it
    wraps, or its base class's method. We cannot tell whether a wrapper really calls what it holds.
    Modules that are not imported in this process are not checked.
    """
    found = []
    for function, calls in HOOKS.items():
        module, name = f"sglang.srt.{function}".split(":")
        if module not in sys.modules:
            continue
        made = set().union(*map(_names, _functions(sys.modules[module], name)))
        found += [
            f"{module}.{name} does not call sglang_lz's {call}"
            for call in calls.split()
            if call not in made
        ]
    return found


def _functions(holder: object, name: str) -> Iterator[FunctionType]:
    """The function with that dotted name, and the functions that it may call in turn."""
    *parents, last = name.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    if not isinstance(holder, type):
        yield from _wrapped(getattr(holder, last), last, set())
        return
    for base in holder.__mro__:
        if last not in vars(base):
            continue
        functions = list(_wrapped(vars(base)[last], last, set()))
        yield from functions
        # An override calls its base by super() or by the base class's name.
        if not any(last in function.__code__.co_names for function in functions):
            return


def _wrapped(value: object, name: str, seen: set[int]) -> Iterator[FunctionType]:
    """A function and the functions that it wraps. Those may be in its closure, its defaults, or its
    globals under the same name, or inside a partial, a callable object or a functools cache.

    The `__wrapped__` attribute of a function does not count: a replacement may set it to the
    original function without ever calling it.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
        yield value
        cells = (value.__closure__ or ()) + tuple(map(CellType, value.__defaults__ or ()))
        inner = [cell.cell_contents for cell in cells if _is_filled(cell)]
        used = (value.__globals__.get(other) for other in value.__code__.co_names)
        inner += [other for other in used if _name_of(other) == name]
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, staticmethod | classmethod | MethodType):
        inner = [value.__func__]
    else:
        inner = [vars(type(value)).get("__call__"), *getattr(value, "__dict__", {}).values()]
        if getattr_static(value, "__wrapped__", None) is not None:
            inner.append(getattr(value, "__wrapped__", None))
    for other in inner:
        if callable(other) and not isinstance(other, type):
            yield from _wrapped(other, name, seen)


def _name_of(value: object) -> object:
    """A function's name, or the `__name__` that another object or its class stores.

    It is looked up without `getattr`, because upstream's `LazyImport` imports its module when asked
    for an attribute that it does not have, which takes time and fails if the module is not
    installed.
    """
    if isinstance(value, FunctionType | MethodType):
        return value.__name__
    return getattr_static(value, "__name__", None)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(function: FunctionType) -> set[str]:
    """Every name that occurs in a function's code, including functions nested inside it."""

    def of(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from of(constant)

    return set(of(function.__code__))
