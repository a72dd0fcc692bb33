"""fixes/detokenizer and fixes/outputs, in process.

What a real server answers is in tests/server/test_outputs.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from proper_files import KINDS, file_of, with_whole_tokens
from sglang_lz.fixes import answers
from sglang_lz.fixes.detokenizer import MOST_KEPT, REPLACEMENT

LENGTH = {"type": "length", "length": 0}
BYTE_LEVEL = ("demo", "llama3")
TOKENIZERS = (*BYTE_LEVEL, *KINDS)
"""Byte-level BPE, and SentencePiece's with byte fallback."""
TEXTS = ("ab你好 世。", "日本語 e", "\U0001f389ü é", "a.b  c\n", "\U0001f468‍\U0001f469")


@cache
def tokenizer_of(name: str, model_path: str) -> Any:
    if name == "demo":
        return AutoTokenizer.from_pretrained(model_path)
    text = with_whole_tokens() if name == "llama3" else file_of(name)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(text), clean_up_tokenization_spaces=False
    )


class Detokenizer:
    """Upstream's, without its process, and what it sends for one request."""

    def __init__(self, tokenizer: Any, **flags: bool) -> None:
        from sglang.srt.managers.detokenizer_manager import DetokenizerManager

        self.manager: Any = object.__new__(DetokenizerManager)
        self.manager.tokenizer, self.manager.vocab_size = tokenizer, len(tokenizer)
        self.manager.decode_status = {}
        self.manager.disable_tokenizer_batch_decode = flags.get("one_by_one", False)
        self.manager.is_tool_call_parser_gpt_oss, self.manager.tool_close_token_ids = False, set()
        self.skips = flags.get("skips", True)

    def send(self, tokens: list[int], reason: Any = None, prompt: Sequence[int] = ()) -> str:
        """The text that the tokens of one step send; the first step has the prompt's, too."""
        batch = SimpleNamespace(
            rids=["r"],
            decoded_texts=[""],
            decode_ids=[[*prompt, *tokens]],
            read_offsets=[len(prompt)],
            finished_reasons=[reason],
            no_stop_trim=[False],
            skip_special_tokens=[self.skips],
            spaces_between_special_tokens=[True],
        )
        (sent,) = self.manager._decode_batch_token_id_output(batch)
        return str(sent)

    def stream(self, prompt: list[int], tokens: list[int], ends: Sequence[int]) -> str:
        """All the text, where the steps end after these numbers of tokens."""
        sent = ""
        for begin, end in zip((0, *ends), ends, strict=False):
            reason = LENGTH if end == len(tokens) else None
            sent += self.send(tokens[begin:end], reason, () if begin else prompt)
        return sent


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stream_is_the_whole_text_at_any_number_of_tokens_a_step(
    name: str, model_path: str
) -> None:
    tokenizer, rng = tokenizer_of(name, model_path), random.Random(name)
    any_token = range(len(tokenizer))
    changing = 0
    for trial in range(240):
        tokens = rng.choices(any_token, k=rng.randint(1, 50))
        if trial % 3 == 1:
            tokens = tokenizer.encode("".join(rng.choices(TEXTS, k=4)), add_special_tokens=False)
        elif trial % 3 == 2:
            tokens = rng.choices(tokens[:3], k=40)
        prompt = rng.choices(any_token, k=5)
        detokenizer = Detokenizer(tokenizer, skips=rng.random() < 0.7, one_by_one=trial % 8 == 0)
        whole = detokenizer.stream(prompt, tokens, [len(tokens)])
        interval = rng.randint(1, 9)
        for ends in (
            range(1, len(tokens) + 1),
            [*range(interval, len(tokens), interval), len(tokens)],
            sorted(
                {*rng.sample(range(1, len(tokens) + 1), rng.randint(1, len(tokens))), len(tokens)}
            ),
        ):
            assert detokenizer.stream(prompt, tokens, list(ends)) == whole, tokens
        changing += REPLACEMENT in whole
        options = {"skip_special_tokens": detokenizer.skips}
        before, full = (tokenizer.decode(ids, **options) for ids in (prompt, prompt + tokens))
        if full.startswith(before) and (name in BYTE_LEVEL or REPLACEMENT not in full):
            assert whole == full.removeprefix(before)
    assert changing > 20


@pytest.mark.parametrize("name", ["demo", "replace"])
def test_invalid_utf8_is_shown_and_not_decoded_again(name: str, model_path: str) -> None:
    tokenizer = tokenizer_of(name, model_path)
    bad = [token for token in range(len(tokenizer)) if tokenizer.decode([token]) == REPLACEMENT]
    for token in random.Random(name).sample(bad, 8):
        detokenizer, sent = Detokenizer(tokenizer), ""
        for count in range(1, 300):
            sent += detokenizer.send([token], prompt=[] if count > 1 else [5])
            assert len(sent) >= count - 4 or REPLACEMENT not in tokenizer.decode([token] * count)
            assert len(detokenizer.manager.decode_status["r"].decode_ids) <= 2 * MOST_KEPT + 2


def test_tokens_without_text_are_not_decoded_again(model_path: str) -> None:
    tokenizer = tokenizer_of("demo", model_path)
    detokenizer = Detokenizer(tokenizer)
    for _ in range(100):
        assert detokenizer.send([tokenizer.eos_token_id]) == ""
        assert len(detokenizer.manager.decode_status["r"].decode_ids) <= MOST_KEPT + 1
    assert detokenizer.send(tokenizer.encode("é", add_special_tokens=False), LENGTH) == "é"


def tool(parameters: Any, strict: bool | None) -> Any:
    from sglang.srt.entrypoints.openai.protocol import Function, Tool

    given = {} if strict is None else {"strict": strict}
    return Tool(function=Function(name="f", parameters=parameters, **given))


def schemas_in(value: Any) -> list[Any]:
    """The schemas of arguments in what upstream makes of a tool choice."""
    if isinstance(value, list):
        return [one for item in value for one in schemas_in(item)]
    if not isinstance(value, dict):
        return []
    names = ("schema", "json_schema", "parameters")
    found = [value[name] for name in names if isinstance(value.get(name), (dict, bool))]
    return found or [one for item in value.values() for one in schemas_in(item)]


@pytest.mark.parametrize("strict", [None, False, True])
@pytest.mark.parametrize("parameters", [None, {}, {"description": "Any."}], ids=str)
@pytest.mark.parametrize(
    "parser", ["hermes", "qwen25", "deepseekv32", "deepseekv4", "qwen3_coder", None]
)
def test_the_arguments_of_a_tool_without_a_schema_are_an_object(
    parser: str | None, parameters: Any, strict: bool | None
) -> None:
    import xgrammar
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.utils import get_json_schema_constraint

    tools = [tool(parameters, strict)]
    if parser is None:
        value = get_json_schema_constraint(tools, "required")
    else:
        _, made = FunctionCallParser(tools, parser).get_structure_constraint("required")
        value = made.model_dump(by_alias=True)
        if "format" in value:
            xgrammar.Grammar.from_structural_tag(made)
    schemas = schemas_in(value)
    assert schemas
    assert all(isinstance(one, dict) and one["type"] == "object" for one in schemas)


@pytest.mark.parametrize(
    "arguments",
    [
        *("null", "[1]", '{"a": 1e999}', '{"a": NaN}', '{"a": "\\ud800"}', '{"a": ', "", None),
        *('{"a": ' + "[" * 100_000, '{"a": ' + "9" * 5000 + "}"),
    ],
    ids=range(10),
)
def test_a_tool_use_block_holds_any_arguments(arguments: Any) -> None:
    from sglang.srt.entrypoints.anthropic.protocol import ToolUseBlock
    from starlette.responses import JSONResponse

    block = ToolUseBlock(id="a", name="f", input=answers.tool_input(arguments))
    assert JSONResponse(block.model_dump()).body
    assert answers.tool_input('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("choice", ["required", "named"])
def test_the_references_of_a_tools_schema_are_found_among_other_schemas(choice: str) -> None:
    """Its schema becomes a part of one for a list of calls, with definitions of its own."""
    from sglang.srt.entrypoints.openai.protocol import Tool, ToolChoice
    from sglang.srt.function_call.utils import get_json_schema_constraint

    def constraint(schema: dict[str, Any]) -> Any:
        tools = [Tool(function={"name": "f", "parameters": schema})]
        named = ToolChoice(type="function", function={"name": "f"})
        return get_json_schema_constraint(tools, named if choice == "named" else "required")

    leaf = {"type": "integer"}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/leaf"}}}
    assert constraint({**schema, "$defs": {"leaf": leaf}})["$defs"] == {"leaf": leaf}
    for ref in ("#", "#/properties/b"):
        with pytest.raises(ValueError, match=r"tools must refer to #/\$defs only"):
            constraint({"type": "object", "properties": {"a": {"$ref": ref}, "b": leaf}})


def test_half_a_surrogate_pair_in_a_call_can_be_sent() -> None:
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    wanted = '{"v": "\\ud800 \U0001f600"}'
    text = '<tool_call>{"name": "f", "arguments": {"v": "\\ud800 \\ud83d\\ude00"}}</tool_call>'
    parser = FunctionCallParser([tool({}, None)], "hermes")
    (whole,) = parser.parse_non_stream(text)[1]
    assert whole.parameters == wanted
    streamed = [call for one in text for call in parser.parse_stream_chunk(one)[1]]
    assert "".join(call.parameters for call in streamed) == wanted


PARTS = ("<think>", "</think>", "abc", "\n", " ", "<", "<th", "ink>", "</thi", "x</")
# They have a parser of their own, which decides by the token, or moves thinking to the content.
OTHERS = {"granite_thinking_parser", "inkling", "k2_horizon", "ling3", "minimax-m3"}
OTHERS |= {"response_template", "deepseek-v41"}


def test_streams_and_whole_answers_have_the_same_thinking_section() -> None:
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    rng = random.Random(1)
    opened = 0
    for model in sorted(ReasoningParser.DetectorMap.keys() - OTHERS):
        for _ in range(60):
            text = "".join(rng.choices(PARTS, k=rng.randint(1, 7)))
            force = rng.random() < 0.6
            whole, stream = (ReasoningParser(model, stream, force) for stream in (False, True))
            streamed, begin = ["", ""], 0
            while begin < len(text):
                end = begin + rng.randint(1, 6)
                for i, part in enumerate(stream.parse_stream_chunk(text[begin:end])):
                    streamed[i] += part or ""
                begin = end
            for i, part in enumerate(stream.parse_stream_end()):
                streamed[i] += part or ""
            assert [part or "" for part in whole.parse_non_stream(text)] == streamed, (model, text)
            opened += bool(streamed[0] and streamed[1])
    assert opened > 100


def test_a_parser_that_fails_passes_the_text_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    thinking = ReasoningParser("deepseek-r1")
    calls = FunctionCallParser([tool({}, None)], "hermes")
    for detector in (thinking.detector, calls.detector):
        for name in ("detect_and_parse", "parse_streaming_increment", "finish"):
            monkeypatch.setattr(detector, name, lambda *_: 1 / 0, raising=False)
    assert thinking.parse_non_stream("a") == thinking.parse_stream_chunk("a") == (None, "a")
    assert thinking.parse_stream_end() == (None, "")
    assert calls.parse_stream_chunk("a") == ("a", [])
    assert calls.parse_stream_end() == ("", [])
