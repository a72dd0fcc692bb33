"""Check that the functions of upstream that will run still call ours.

The seal says that the files are ours. A plugin, a monkey patch or another copy of sglang may still
put a function of its own in the place of one that a patch changed, and the penalty would be
ignored without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MappingProxyType

_OPENAI = "sglang.srt.entrypoints.openai"

# By function, as module and name: the calls that our patches put into it.
HOOKS = MappingProxyType(
    {
        ("sglang.srt.model_executor.forward_batch_info", "ForwardBatch.init_new"): ("plan_step",),
        (
            "sglang.srt.model_executor.model_runner",
            "ModelRunner._init_post_memory_pool_components",
        ): ("reserve_windows",),
        ("sglang.srt.model_executor.model_runner", "ModelRunner.sample"): ("apply_step",),
        ("sglang.srt.speculative.eagle_utils", "eagle_sample"): (
            "verify_step",
            "accept_step",
            "keep_min_p",
        ),
        ("sglang.srt.managers.schedule_batch", "Req.update_finish_state"): ("after_step",),
        (
            "sglang.srt.constrained.grammar_manager",
            "GrammarManager.process_req_with_grammar",
        ): ("guard_thinking", "grammar_key"),
        (
            "sglang.srt.constrained.grammar_manager",
            "GrammarManager.__init__",
        ): ("serve_proper_tokens",),
        (
            "sglang.srt.speculative.ngram_worker",
            "NGRAMWorker._prepare_for_speculative_decoding",
        ): ("offer_forced_tokens",),
        ("sglang.srt.speculative.eagle_worker_common", "run_eagle_verify"): ("force_drafts",),
        (
            "sglang.srt.managers.tokenizer_manager",
            "TokenizerManager._create_tokenized_object",
        ): ("admit",),
        ("sglang.srt.entrypoints.api_contract", "generate_contract_error"): ("without_lz_fields",),
        (
            "sglang.srt.entrypoints.grpc_bridge",
            "RuntimeHandle._run_openai_request",
        ): ("check_json",),
        (
            f"{_OPENAI}.serving_completions",
            "OpenAIServingCompletion._build_sampling_params",
        ): ("given_fields",),
        (f"{_OPENAI}.protocol", "ChatCompletionRequest.to_sampling_params"): ("given_fields",),
        (f"{_OPENAI}.protocol", "ResponsesRequest.to_sampling_params"): ("given_fields",),
        (
            "sglang.srt.entrypoints.anthropic.serving",
            "AnthropicServing._convert_to_chat_completion_request",
        ): ("given_fields",),
        (
            "sglang.srt.entrypoints.ollama.serving",
            "OllamaServing._convert_options_to_sampling_params",
        ): ("given_fields",),
    }
)


def check() -> None:
    """Refuse to go on in a process in which upstream would not call us.

    Raises:
        ValueError: one sentence that names the function.
    """
    if problems := missing():
        raise ValueError(
            f"{problems[0]}, so lz_penalty would be ignored: something replaced the function after "
            "it was imported; start without that plugin (SGLANG_PLUGINS) or hook."
        )


def missing() -> list[str]:
    """One clause for each function in this process's modules that lacks a call of ours.

    A function passes if it makes the call itself or may call one that does: what it wraps, or its
    base class's method. Whether a wrapper really calls what it holds cannot be told.
    Modules that are not imported here are not looked at.
    """
    found = []
    for (module, name), calls in HOOKS.items():
        if module not in sys.modules:
            continue
        made = set().union(*map(_names, _functions(sys.modules[module], name)))
        found += [
            f"{module}.{name} does not call sglang_lz's {call}"
            for call in calls
            if call not in made
        ]
    return found


def _functions(holder: object, name: str) -> Iterator[FunctionType]:
    """The function of that dotted name, and those that it goes on to."""
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
        # An override goes on by super() or by the base class's name.
        if not any(last in function.__code__.co_names for function in functions):
            return


def _wrapped(value: object, name: str, seen: set[int]) -> Iterator[FunctionType]:
    """A function and what it wraps: kept in its closure or its defaults, or among its globals under
    the same name; what a partial, a callable object or a cache of functools holds.

    Not by `__wrapped__` of a function: what replaces another may name it there, and never call it.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, FunctionType):
        yield value
        cells = (value.__closure__ or ()) + tuple(map(CellType, value.__defaults__ or ()))
        inner = [cell.cell_contents for cell in cells if _is_filled(cell)]
        used = (value.__globals__.get(other) for other in value.__code__.co_names)
        inner += [other for other in used if getattr(other, "__name__", None) == name]
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    else:
        inner = [getattr(value, attribute, None) for attribute in ("__func__", "__wrapped__")]
        inner += [vars(type(value)).get("__call__"), *getattr(value, "__dict__", {}).values()]
    for other in inner:
        if callable(other) and not isinstance(other, type):
            yield from _wrapped(other, name, seen)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(function: FunctionType) -> set[str]:
    """Every name that a function's code mentions, that of functions inside it included."""

    def of(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from of(constant)

    return set(of(function.__code__))
