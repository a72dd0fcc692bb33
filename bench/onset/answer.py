"""Where the penalty is on in a long answer: `python -m bench.onset.answer --out FILE`.

A server samples an answer that is given token by token: prose, a table, prose, code, and at last a
loop. Of each true next token it returns the log-probability with and without the penalty. The first
edition of the onset, a latch, is computed beside it by the rule of commit 8e8f0da. Start the server
with `--disable-overlap-schedule --enable-custom-logit-processor`, because a processor that reads a
request's tokens is one behind under overlap scheduling.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from transformers import AutoTokenizer

from bench import common
from bench.onset import rule

ALPHA, ONSET = 0.15, 3
PARTS = Path(__file__).with_name("answer.md")
"""The answer: its parts stand between lines that begin with `## ` and name them."""
LOOPS = 20
"""How often the last part is said."""
PROMPT = [0]
FORCED = 1000.0
"""What the true next token gains, in nats, so that it is sampled."""


RULES = {"latch": ("first edition: a latch", "#d55e00"), "cover": ("now: cover", "#0072b2")}
LEAST = 1e-3
"""Less than so many nats is the noise of float32 beside FORCED."""


class Forced(CustomLogitProcessor):  # type: ignore[misc]  # sglang has no types
    """Makes each request sample the tokens of its `custom_params`."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        """Raise the next given token of each row; logits are float32 [rows, V]."""
        for row, params in enumerate(custom_param_list):
            true = params["tokens"][len(params["__req__"].output_ids)]
            logits[row, true] += params["forced"]
        return logits


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m bench.onset.answer", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write, PNG beside it")
    arguments = parser.parse_args(argv)
    names, tokens = answer()
    server = common.request(f"{arguments.url}/server_info")
    vocab_size = int(AutoTokenizer.from_pretrained(common.DEMO / "model").vocab_size)
    cover = sampled(arguments.url, tokens, vocab_size)
    result = {
        "measures": "nats that the LZ penalty takes from each true next token of an answer",
        "command": common.command("onset.answer"),
        "date": common.date(),
        "commit": common.commit(),
        **common.machine(),
        "server": common.environment(server),
        "fields": {"lz_penalty": ALPHA, "lz_onset": ONSET},
        "parts": [[name, len(list(own))] for name, own in groupby(names)],
        "cover": [round(float(nats), 4) for nats in cover],
        "latch": [round(float(nats), 4) for nats in latched(tokens, vocab_size)],
    }
    common.write_result(arguments.out, result)
    draw(result, arguments.out.with_suffix(".png"))
    begin = 0
    for name, count in result["parts"]:
        lowered = [sum(nats > 0 for nats in result[key][begin : begin + count]) for key in RULES]
        print(f"{name}: {count} tokens; lowered by {', '.join(map(str, lowered))}")
        begin += count


def answer() -> tuple[list[str], list[int]]:
    """The answer's tokens, and the part that each belongs to."""
    tokenizer: Any = AutoTokenizer.from_pretrained(common.DEMO / "model")
    names, tokens = list[str](), list[int]()
    for part in PARTS.read_text().split("\n## ")[1:]:
        name, text = part.split("\n", 1)
        text = text.strip("\n") + " "
        own = tokenizer.encode(text * LOOPS if name == "loop" else text + "\n")
        names += [name] * len(own)
        tokens += own
    return names, tokens


def sampled(url: str, tokens: list[int], vocab_size: int) -> NDArray[np.float64]:
    """What the server's penalty takes from each token, in nats, float64 [tokens].

    Against a token that is in no part, and so is never lowered.
    """
    other = next(token for token in range(1, vocab_size) if token not in tokens)
    differences = []
    for fields in ({}, {"lz_penalty": ALPHA, "lz_onset": ONSET}):
        body = {
            "input_ids": PROMPT,
            "sampling_params": {
                "temperature": 0,
                "ignore_eos": True,
                "max_new_tokens": len(tokens),
                "custom_params": {"tokens": tokens, "forced": FORCED},
                **fields,
            },
            "custom_logit_processor": Forced.to_str(),
            "return_logprob": True,
            "token_ids_logprob": sorted({*tokens, other}),
        }
        found = common.request(f"{url}/generate", body)
        if found["output_ids"] != tokens:
            raise RuntimeError("the server did not sample the given answer")
        rows = found["meta_info"]["output_token_ids_logprobs"]
        values = [{token: value for value, token, _ in row} for row in rows]
        differences.append([row[t] - row[other] for row, t in zip(values, tokens, strict=True)])
    nats = np.array(differences[0]) - np.array(differences[1])
    return np.where(nats > LEAST, nats, 0.0)


def latched(tokens: list[int], vocab_size: int) -> NDArray[np.float64]:
    """What the latch takes from each token, in nats, float64 [tokens]."""
    x, setting = np.array(tokens, np.int32), rule.table([rule.LATCH])[0]
    runs, looped = np.zeros(rule.MOST_WINDOW + 1, np.int32), np.zeros(len(x), bool)
    state, found = rule.new_state(1)[0], [0.0]
    for count in range(1, len(x)):
        rule.advance(x[:count], runs, looped, setting, state)
        out = np.zeros(vocab_size)
        if rule.may_lower(state, setting):
            rule.lower(x[:count], runs, setting, state, out)
        found.append(float(out[x[count]]))
    return np.array(found)


def draw(result: dict[str, Any], out: Path) -> None:
    """Draw both over the positions."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(2, 1, figsize=(10, 4.2), sharex=True, constrained_layout=True)
    most = 1.15 * max(*result["cover"], *result["latch"])
    for axes, (name, (label, colour)) in zip(both, RULES.items(), strict=True):
        nats = np.array(result[name])
        axes.bar(range(len(nats)), nats, width=1.0, color=colour, linewidth=0)
        axes.set_ylabel("nats taken", fontsize=11)
        axes.set_ylim(0, most)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(label, loc="left", color=colour, fontsize=12, pad=16)
        begin = 0
        for i, (part, count) in enumerate(result["parts"]):
            axes.axvspan(begin - 0.5, begin + count - 0.5, color="0.5", alpha=0.12 * (i % 2), lw=0)
            axes.text(begin + count / 2, most, part, ha="center", va="bottom", fontsize=10)
            begin += count
        axes.set_xlim(-0.5, begin - 0.5)
    both[1].set_xlabel("position in the answer, tokens", fontsize=11)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
