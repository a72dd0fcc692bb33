"""How clients of other projects report an output that the loop guard ended.

It runs in their own environment, `.venv/clients`, and prints a JSON list with an object for each
kind of request:

    .venv/clients/bin/python tests/server/clients.py http://127.0.0.1:PORT

    client   the client and its version
    request  what is asked, and with which calls
    plain    what the program that uses the client sees, as Markdown; null: there is no such call
    stream   the same in a stream
    named    for each of the two, whether the program can read `repetition_detected` anywhere
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial, reduce
from operator import add
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no prices from the network

import anthropic
import httpx
import instructor
import litellm
import ollama
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

LOOP = {"max_pattern_size": 64, "min_count": 4}
QUESTION = "What is a list?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
LIMIT = 300
ASK: Any = {
    "model": "m",
    "messages": MESSAGES,
    "max_tokens": LIMIT,
    "temperature": 0,
    "extra_body": {"repetition_detection": LOOP},
}


class Person(BaseModel):
    """What structured requests ask for."""

    name: str


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "save", "description": "Saves.", "parameters": SCHEMA, "strict": True},
}
TOOLS: Any = {"tools": [TOOL], "tool_choice": "required"}

Seen = tuple[str, Any]
"""What a program sees, and all that the client gave it."""
Call = Callable[[], Seen]


def code(value: object) -> str:
    return f"`{value}`"


def one(values: Iterable[Any]) -> Any:
    """The value that all of them are."""
    (value,) = set(values)
    return value


def reason(choices: Iterable[Any]) -> Seen:
    """The finish reason of all choices of an answer."""
    choices = list(choices)
    return code(one(choice.finish_reason for choice in choices)), choices


def last(chunks: Iterable[Any]) -> Seen:
    """The finish reason in a stream of chat completions."""
    return reason(c for chunk in chunks for c in chunk.choices if c.finish_reason)


def with_call(said: str, arguments: list[str]) -> str:
    """What was said, and whether there is a tool call that a program could run."""
    if not arguments:
        return f"{said}, no call"
    try:
        json.loads(arguments[0])
    except ValueError:
        return f"{said}, a broken call"
    return f"{said}, a complete call"


def of_tool(choice: Any) -> Seen:
    calls = choice.message.tool_calls or []
    said = with_call(code(choice.finish_reason), [call.function.arguments for call in calls])
    return said, choice


def of_streamed_tool(chunks: Iterable[Any]) -> Seen:
    chunks = list(chunks)
    said, choices = last(chunks)
    deltas = [
        delta for chunk in chunks for c in chunk.choices for delta in c.delta.tool_calls or []
    ]
    arguments = "".join(delta.function.arguments or "" for delta in deltas)
    return with_call(said, [arguments] if deltas else []), choices


class Rows:
    """The rows of the table."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rows: list[dict[str, Any]] = []
        self.inside = {**ASK, "logit_bias": self._bias()}

    def _bias(self) -> dict[str, float]:
        """So that the demo model loops inside a string of JSON, and not in white space."""
        path = httpx.get(f"{self.url}/model_info").json()["tokenizer_path"]
        with open(f"{path}/tokenizer.json") as file:
            tokens = json.load(file)["model"]["vocab"]
        # In the names of tokens a space is one of these.
        blank = {number for text, number in tokens.items() if {*text} & {*"ĠĊĉč \n\t"}}
        return {str(number): -100.0 for number in blank} | {str(tokens["a"]): 100.0}

    def add(self, client: str, request: str, plain: Call | None, stream: Call | None) -> None:
        """Ask both ways."""
        seen = [self._seen(call) for call in (plain, stream)]
        self.rows.append(
            {
                "client": f"{client} {importlib.metadata.version(client)}",
                "request": request,
                "plain": seen[0][0],
                "stream": seen[1][0],
                "named": [named for _, named in seen],
            }
        )

    def _seen(self, call: Call | None) -> tuple[str | None, bool]:
        if call is None:
            return None, False
        try:
            said, given = call()
        except Exception as error:
            said, given = f"raises {code(type(error).__name__)}", vars(error)
        return said, "repetition_detected" in repr(given)


def ask_openai(rows: Rows) -> None:
    row = partial(rows.add, "openai")
    base: Any = {"base_url": f"{rows.url}/v1", "api_key": "none", "max_retries": 0}
    client = openai.OpenAI(**base)
    chat = client.chat.completions
    two = {**ASK, "n": 2}

    def helper(**asked: Any) -> Seen:
        with chat.stream(**asked) as stream:
            (choice,) = stream.get_final_completion().choices
        if "tools" in asked:
            return of_tool(choice)
        return reason([choice])

    def parsed(**asked: Any) -> Seen:
        (choice,) = chat.parse(**asked).choices
        said, _ = of_tool(choice) if "tools" in asked else reason([choice])
        return f"{said}, {code(f'parsed={choice.message.parsed}')}", choice

    row(
        "text: `chat.completions.create`",
        lambda: reason(chat.create(**two).choices),
        lambda: last(chat.create(**two, stream=True)),
    )
    row("text: `chat.completions.stream`", None, lambda: helper(**ASK))
    person = {**rows.inside, "response_format": Person}
    row(
        "a pydantic model: `chat.completions.parse`, `stream`",
        lambda: parsed(**person),
        lambda: helper(**person),
    )
    tool = {**rows.inside, **TOOLS}
    row(
        "a tool: `chat.completions.create`",
        lambda: of_tool(chat.create(**tool).choices[0]),
        lambda: of_streamed_tool(chat.create(**tool, stream=True)),
    )
    row(
        "a tool: `chat.completions.parse`, `stream`", lambda: parsed(**tool), lambda: helper(**tool)
    )
    old = {key: value for key, value in ASK.items() if key != "messages"} | {"prompt": QUESTION}
    row(
        "text: `completions.create`",
        lambda: reason(client.completions.create(**old).choices),
        lambda: last(client.completions.create(**old, stream=True)),
    )
    responses: Any = {"model": "m", "input": QUESTION, "max_output_tokens": LIMIT}
    responses |= {"temperature": 0, "extra_body": ASK["extra_body"]}

    def streamed() -> Seen:
        with client.responses.stream(**responses) as stream:
            return of_response(stream.get_final_response())

    row(
        "text: `responses.create`",
        lambda: of_response(client.responses.create(**responses)),
        lambda: of_response(list(client.responses.create(**responses, stream=True))[-1].response),
    )
    row("text: `responses.stream`", None, streamed)
    row(
        "a pydantic model: `responses.parse`",
        lambda: of_response(client.responses.parse(**responses, text_format=Person)),
        None,
    )


def of_response(found: Any) -> Seen:
    """The status of an answer of the Responses API, and why it is incomplete."""
    found = found if isinstance(found, dict) else found.model_dump(warnings=False)
    details = found.get("incomplete_details")
    why = f", {code(details['reason'])}" if details else ""
    return f"{code(found['status'])}{why}", found


def ask_anthropic(rows: Rows) -> None:
    row = partial(rows.add, "anthropic")
    base: Any = {"base_url": rows.url, "api_key": "none", "max_retries": 0}
    client = anthropic.Anthropic(**base)
    asked: Any = {"model": "m", "messages": MESSAGES, "max_tokens": LIMIT}
    asked["extra_body"] = {"temperature": 0, **ASK["extra_body"]}
    tool = {"name": "save", "description": "Saves.", "input_schema": SCHEMA, "strict": True}
    tools: Any = {"tools": [tool], "tool_choice": {"type": "tool", "name": "save"}}

    def see(message: Any) -> Seen:
        return code(message.stop_reason), message

    def end(events: Iterable[Any]) -> Seen:
        (message,) = (event.delta for event in events if event.type == "message_delta")
        return see(message)

    def of_tools(message: Any) -> Seen:
        calls = [json.dumps(block.input) for block in message.content if block.type == "tool_use"]
        return with_call(code(message.stop_reason), calls), message

    def final(**more: Any) -> Any:
        with client.messages.stream(**asked, **more) as stream:
            return stream.get_final_message()

    create = client.messages.create
    row(
        "text: `messages.create`",
        lambda: see(create(**asked)),
        lambda: end(create(**asked, stream=True)),
    )
    row("text: `messages.stream`", None, lambda: see(final()))
    row(
        "a tool: `messages.create`, `stream`",
        lambda: of_tools(create(**asked, **tools)),
        lambda: of_tools(final(**tools)),
    )


def ask_litellm(rows: Rows) -> None:
    row = partial(rows.add, "litellm")
    to = {"model": "openai/m", "api_base": f"{rows.url}/v1", "api_key": "none", "num_retries": 0}
    text, tool = {**ASK, **to}, {**rows.inside, **TOOLS, **to}

    row(
        "text: `completion`",
        lambda: reason(litellm.completion(**text).choices),
        lambda: last(litellm.completion(**text, stream=True)),
    )
    row(
        "a tool: `completion`",
        lambda: of_tool(litellm.completion(**tool).choices[0]),
        lambda: of_streamed_tool(litellm.completion(**tool, stream=True)),
    )
    responses: Any = {"input": QUESTION, "max_output_tokens": LIMIT, "temperature": 0}
    responses |= {"extra_body": ASK["extra_body"], **to}
    row(
        "text: `responses`",
        lambda: of_response(litellm.responses(**responses)),
        lambda: of_response(list(litellm.responses(**responses, stream=True))[-1].response),
    )


def ask_ollama(rows: Rows) -> None:
    row = partial(rows.add, "ollama")
    client = ollama.Client(host=rows.url)
    options = {"num_predict": LIMIT, "temperature": 0, **ASK["extra_body"]}
    chat: Any = {"model": "m", "messages": MESSAGES, "options": options}
    generate: Any = {"model": "m", "prompt": QUESTION, "options": options}

    def see(found: Any) -> Seen:
        found = found[-1] if isinstance(found, list) else found
        return code(found.done_reason), found

    row(
        "text: `chat`",
        lambda: see(client.chat(**chat)),
        lambda: see(list(client.chat(**chat, stream=True))),
    )
    row(
        "text: `generate`",
        lambda: see(client.generate(**generate)),
        lambda: see(list(client.generate(**generate, stream=True))),
    )


def ask_langchain(rows: Rows) -> None:
    row = partial(rows.add, "langchain-openai")

    def model(asked: Any = ASK, **more: Any) -> Any:
        kept = {key: value for key, value in asked.items() if key not in ("messages", "logit_bias")}
        if "logit_bias" in asked:
            more["logit_bias"] = asked["logit_bias"]
        base = f"{rows.url}/v1"
        return ChatOpenAI(**kept, **more, base_url=base, api_key="none", max_retries=0)

    def see(message: Any) -> Seen:
        return code(message.response_metadata["finish_reason"]), message

    def of_tools(message: Any) -> Seen:
        # `invalid_tool_calls` holds what it could not read.
        calls = [json.dumps(call["args"]) for call in message.tool_calls]
        broken = [call["args"] for call in message.invalid_tool_calls]
        return with_call(see(message)[0], calls + broken), message

    def joined(runnable: Any) -> Any:
        return reduce(add, runnable.stream(QUESTION))

    row(
        "text: `ChatOpenAI.invoke`, `stream`",
        lambda: see(model().invoke(QUESTION)),
        lambda: see(joined(model())),
    )
    tools = model(rows.inside).bind_tools([TOOL], tool_choice="required")
    row(
        "a tool: `bind_tools`, then `invoke`, `stream`",
        lambda: of_tools(tools.invoke(QUESTION)),
        lambda: of_tools(joined(tools)),
    )
    for method in ("json_schema", "function_calling"):
        found = model(rows.inside).with_structured_output(Person, method=method, strict=True)
        row(
            f'a pydantic model: `with_structured_output(method="{method}")`',
            lambda found=found: gives(found.invoke(QUESTION)),
            lambda found=found: gives(*[*found.stream(QUESTION)][-1:]),
        )
    responses = model(use_responses_api=True)
    row(
        "text: `ChatOpenAI(use_responses_api=True)`",
        lambda: of_response(responses.invoke(QUESTION).response_metadata),
        lambda: of_response(joined(responses).response_metadata),
    )


def gives(value: Any = None) -> Seen:
    """What a call that promises a pydantic model gives."""
    return f"gives {code(repr(value))}", value


def ask_instructor(rows: Rows) -> None:
    row = partial(rows.add, "instructor")
    sent: list[Any] = []
    http = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    base = f"{rows.url}/v1"
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, http_client=http)

    def counted(call: Callable[[], Any]) -> Call:
        def ask() -> Seen:
            sent.clear()
            try:
                said, given = gives(call())
            except Exception as error:
                said, given = f"raises {code(type(error).__name__)}", vars(error)
            plural = "" if len(sent) == 1 else "s"
            return f"{said} after {len(sent)} request{plural}", given

        return ask

    # Its tools are not strict, so nothing holds the demo model to a loop in a string.
    tools, schema = (
        instructor.from_openai(client, mode=mode)
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
    )
    row(
        "a pydantic model: `create`",
        counted(lambda: tools.create(**ASK, response_model=Person)),
        None,
    )
    asked = {**rows.inside, "response_model": Person}
    row(
        "a pydantic model, `Mode.JSON_SCHEMA`: `create`, `create_partial`",
        counted(lambda: schema.create(**asked)),
        counted(lambda: [*schema.create_partial(**asked)][-1]),
    )


ASKED = (ask_openai, ask_anthropic, ask_litellm, ask_ollama, ask_langchain, ask_instructor)


def main() -> None:
    """Print the rows."""
    warnings.simplefilter("ignore")
    logging.disable()
    litellm.suppress_debug_info = True
    rows = Rows(sys.argv[1])
    for ask in ASKED:
        ask(rows)
    print(json.dumps(rows.rows))


if __name__ == "__main__":
    main()
