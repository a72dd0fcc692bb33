"""What bench.models samples in its own process is what a server samples."""

from __future__ import annotations

from typing import Any

import torch

from bench.models.decoder import Decoder
from bench.models.engine import Engine, Request
from server.client import post_ok
from server.configurations import on
from server.launch import Server, model_path
from server.model import stop_ids, tokenizer

TOKENS = 120
PROMPTS = ("What is a list?", "Explain decorators.", "Write an example of a class.")
PENALTIES: tuple[dict[str, Any], ...] = (
    {},
    {"lz_penalty": 0.15},
    {"lz_penalty": 0.15, "lz_onset": 2, "lz_window_size": 64},
    {"lz_penalty": 0.1, "lz_include_prompt": True, "lz_cost": "rate"},
    {"frequency_penalty": 0.3, "presence_penalty": 0.1},
    {"repetition_penalty": 1.1},
    {"dry_multiplier": 0.8},
    {"no_repeat_ngram_size": 4},
    {"lz_penalty": 0.15, "lz_onset": 1, "frequency_penalty": 0.1},
)
WAITING = 2


@on("overlap")
@torch.no_grad()
def test_a_server_gives_the_same_tokens(server: Server) -> None:
    """In fewer slots than there are requests, so that rows begin and end at different steps."""
    decoder = Decoder(model_path(), 4, 400)
    engine = Engine(decoder, tokenizer(), stop_ids(), max_tokens=TOKENS, window=512)
    requests = [
        Request((text, number), tokenizer().encode(text), penalty, 0.0, 0)
        for text in PROMPTS
        for number, penalty in enumerate(PENALTIES)
    ]
    found = {request.key: request.output for request, _ in engine.run(iter(requests))}
    assert len(found) == len(requests)
    plain = {text: found[text, 0] for text in PROMPTS}
    resumed = 0
    for request in requests:
        text, number = request.key
        body = {
            "input_ids": list(request.prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, **request.penalty},
        }
        output = post_ok(server, "/generate", body)["output_ids"]
        assert found[request.key] == output, request.penalty
        if number == WAITING and output != plain[text]:
            again = Request(request.key, request.prompt, request.penalty, 0.0, 0)
            # It acts first where it changes a logit, which may leave that token as it is.
            kept = engine.first_change(again, plain[text])
            assert output[:kept] == plain[text][:kept]
            again.output = plain[text][:kept]
            ((done, _),) = engine.run(iter([again]))
            assert done.output == output
            resumed += 1
    assert resumed
