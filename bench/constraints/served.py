"""What proper tokens change in a server's outputs.

    python -m bench.constraints.served --server URL --out bench/results/constraints/served.json

Outputs: requests with each constraint, sampled at temperature 1, with proper tokens and without, as
upstream's default backend serves them: how many outputs are not what the tokenizer makes of them.
Fidelity: each regex allows two texts. The model without a constraint gives each a probability, that
of the tokens that the tokenizer makes of it. The share of the first among samples with the
constraint, with proper tokens and without, should be as the two probabilities say; what a sample of
that size leaves open stands beside it. Words of one token each show what respelling does; with
longer texts any constraint that masks token by token is off, too. Verify steps: how many tokens of
JSON come from a forward pass of a server that drafts n-grams.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bench.common import provenance, versions, write_result
from bench.constraints.cases import CASES
from bench.http_client import request

PROMPTS = ("List the keywords of the language.", "Once upon a time", "A person, a date, a place:")
LONGER = (
    ("The name is ", "William McKinley", "Theodore Roosevelt"),
    ("Return ", "the value", "a string"),
    ("It is ", "not true", "possible"),
    ("Use ", "import os", "class X"),
)
"""Two texts of several tokens each: a constraint that masks token by token is not exact there,
whatever the tokens."""
SINGLE = 8
"""How many pairs of words that are one token each, drawn at random."""
CLEAR = 0.1
"""Of drawn pairs those count to which the model gives both at least this share."""
AT_ONCE = 24


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.constraints.served",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--outputs", type=int, default=150, help="of each constraint, first server")
    parser.add_argument("--samples", type=int, default=500, help="of each two texts")
    parser.add_argument("--ngram", metavar="URL", help="a server with NGRAM speculation")
    parser.add_argument("--take", type=Path, help="result from which to take the outputs")
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the rows)")
    arguments = parser.parse_args()
    fidelity, models = [], {}
    outputs = json.loads(arguments.take.read_text())["outputs"] if arguments.take else []
    for server in arguments.server:
        name, _, url = server.partition("=")
        path = request(f"{url}/get_model_info")["model_path"]
        models[name] = path.rsplit("/", 1)[-1]
        tokenizer = AutoTokenizer.from_pretrained(path)
        is_first = len(models) == 1 and not arguments.take
        for case in CASES if is_first else ():
            for proper in (True, False):
                row = look(url, tokenizer, case, proper, arguments.outputs)
                outputs.append({"model": name, "case": case, "proper_tokens": proper, **row})
                print(*outputs[-1].values(), sep="\t", flush=True)
        for pair in (*single_tokens(url, tokenizer), *LONGER):
            fidelity.append({"model": name, **compare(url, tokenizer, pair, arguments.samples)})
            print(*fidelity[-1].values(), sep="\t", flush=True)
    passes = [verify_steps(arguments.ngram, kind) for kind in (True, False) if arguments.ngram]
    before = json.loads(arguments.take.read_text()) if arguments.take else {}
    fidelity, models = fidelity or before["fidelity"], models or before["models"]
    result = {
        "measures": "outputs that are not their text's own encoding, and shares of two texts",
        **provenance("bench.constraints.served"),
        **versions("torch", "xgrammar"),
        "models": models,
        "samples": arguments.samples,
        "outputs": outputs,
        "fidelity": fidelity,
        "verify_steps": passes or before.get("verify_steps", []),
    }
    if arguments.out:
        write_result(arguments.out, result)


def verify_steps(url: str, proper: bool) -> dict[str, Any]:
    """Tokens of JSON answers, and the forward passes that verified drafts for them."""
    bodies = [
        {
            "text": PROMPTS[2],
            "sampling_params": {
                "json_schema": CASES["compact JSON"][1],
                "temperature": 1.0,
                "max_new_tokens": 500,
                **({"proper_tokens": True} if proper else {}),
            },
        }
        for _ in range(AT_ONCE)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda body: request(f"{url}/generate", body), bodies))
    facts = [answer["meta_info"] for answer in answers]
    row = {
        "proper_tokens": proper,
        "requests": len(facts),
        "tokens": sum(fact["completion_tokens"] for fact in facts),
        "verify_steps": sum(fact["spec_verify_ct"] for fact in facts),
    }
    print(*row.values(), sep="\t", flush=True)
    return row


def look(url: str, tokenizer: Any, case: str, proper: bool, count: int) -> dict[str, Any]:
    """Outputs of one constraint: how many ended, and how many of them are respelt."""
    kind, text = CASES[case]
    field = "regex" if kind == "regex" else "json_schema"
    rng = random.Random(case)
    bodies = [
        {
            "text": rng.choice(PROMPTS),
            "sampling_params": {
                field: text,
                "temperature": 1.0,
                "max_new_tokens": 500,
                **({"proper_tokens": True} if proper else {}),
            },
        }
        for _ in range(count)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda body: request(f"{url}/generate", body), bodies))
    ended = [one for one in answers if one["meta_info"]["finish_reason"]["type"] == "stop"]
    respelt = 0
    for answer in ended:
        tokens = without_end(answer["output_ids"], tokenizer)
        spelt = tokenizer.encode(tokenizer.decode(tokens), add_special_tokens=False)
        respelt += spelt != tokens
    return {"outputs": count, "ended": len(ended), "respelt": respelt}


def single_tokens(url: str, tokenizer: Any) -> list[tuple[str, str, str]]:
    """Pairs of words, each one token, that begin with different letters, behind a prompt."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha())
    words = [word for word in words if len(word) >= 4]
    rng = random.Random(0)
    pairs: list[tuple[str, str, str]] = []
    while len(pairs) < SINGLE:
        first, second = rng.sample(words, 2)
        prompt = rng.choice(PROMPTS) + " "
        share = model_share(url, tokenizer, prompt, first, second)
        if first[0] != second[0] and CLEAR < share < 1 - CLEAR:
            pairs.append((prompt, first, second))
    return pairs


def model_share(url: str, tokenizer: Any, prompt: str, first: str, second: str) -> float:
    """The share of the first of two texts, by the model without a constraint."""
    logprobs = [logprob(url, tokenizer, prompt, text) for text in (first, second)]
    return 1 / (1 + math.exp(logprobs[1] - logprobs[0]))


def compare(url: str, tokenizer: Any, pair: tuple[str, str, str], count: int) -> dict[str, Any]:
    """The share of the first of two texts: by the model, and among samples of either kind."""
    prompt, first, second = pair
    wanted = model_share(url, tokenizer, prompt, first, second)
    row: dict[str, Any] = {"prompt": prompt, "texts": [first, second], "model_share": wanted}
    for name, fields in (("proper_share", {"proper_tokens": True}), ("stock_share", {})):
        sampling = {
            "regex": f"{re.escape(first)}|{re.escape(second)}",
            "temperature": 1.0,
            "max_new_tokens": 60,
            "n": 50,
            **fields,
        }
        body: dict[str, object] = {"text": prompt, "sampling_params": sampling}
        seen: Counter[str] = Counter()
        for _ in range(count // 50):
            seen.update(answer["text"] for answer in json_list(request(f"{url}/generate", body)))
        row[name] = seen[first] / sum(seen.values())
    row["sampling_error"] = 2 * math.sqrt(wanted * (1 - wanted) / count)
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}


def json_list(answer: Any) -> list[Any]:
    """The answers of a request with n above 1."""
    return answer if isinstance(answer, list) else [answer]


def logprob(url: str, tokenizer: Any, prompt: str, text: str) -> float:
    """The logprob of a text's own tokens behind a prompt."""
    before = tokenizer.encode(prompt, add_special_tokens=False)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    body: dict[str, object] = {
        "input_ids": [*before, *tokens],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": len(before) - 1,
    }
    answer = request(f"{url}/generate", body)
    entries = answer["meta_info"]["input_token_logprobs"][-len(tokens) :]
    assert [token for _, token, _ in entries] == tokens
    return sum(value for value, _, _ in entries)


def without_end(tokens: list[int], tokenizer: Any) -> list[int]:
    """Output tokens before the end of sequence."""
    return tokens[:-1] if tokens and tokens[-1] == tokenizer.eos_token_id else tokens


if __name__ == "__main__":
    main()
