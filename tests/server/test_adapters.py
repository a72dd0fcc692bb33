"""The penalty beside what else changes or reads the model's states: LoRA and hidden states."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from server.client import (
    Lz,
    Sample,
    flush_cache,
    generate,
    post_ok,
    request_body,
    to_sample,
    top_rows,
)
from server.configurations import on
from server.contract import SUMMARY, TOLERANCE, Case, deviations
from server.launch import Server, model_path
from server.prompts import mixed, repetitive

RANK = 4
HIDDEN_TOLERANCE = 1e-3  # of states of a few units


def make_adapter(folder: Path) -> None:
    """A random adapter of the demo model's attention, large enough to change its answers."""
    config = json.loads((model_path() / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    targets = {"q_proj": width, "v_proj": width // heads * config["num_key_value_heads"]}
    torch.manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for target, outputs in targets.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, width) / 4
            weights[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK) / 4
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": [*targets]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


@on("adapters")
def test_lora(server: Server, tmp_path: Path) -> None:
    """Requests with an adapter and without in one batch, each held to its own model."""
    make_adapter(tmp_path)
    adapter = {"lora_name": "a", "lora_path": str(tmp_path)}
    post_ok(server, "/load_lora_adapter", adapter)
    # The logits of a model with an adapter are known up to a constant only.
    cases = [
        replace(c, penalties=replace(c.penalties, repetition_penalty=1.0))
        for c in mixed(random.Random("lora"), 9, 30, 30)
    ]
    adapters = [{"lora_path": "a"} if i % 2 else {} for i in range(len(cases))]

    def run(c: Case, lora: dict[str, str]) -> Sample:
        return to_sample(c.prompt, post_ok(server, "/generate", c.body() | lora))

    with ThreadPoolExecutor(len(cases)) as pool:
        samples = list(pool.map(run, cases, adapters))
    for c, lora, sample in zip(cases, adapters, samples, strict=True):
        body = request_body([*c.prompt, *sample.outputs], 1) | lora
        body |= {"logprob_start_len": len(c.prompt) - 1, "return_flat_raw_top_logprobs": True}
        base = top_rows(post_ok(server, "/generate", body)["meta_info"], "input")
        logits_of = c.logits_of(sample.outputs)
        found = deviations(sample, base, c.lz, temperature=c.temperature, logits_of=logits_of)
        SUMMARY.record(f"adapters: {'LoRA' if lora else 'beside LoRA'}", found)
        assert max(found) <= TOLERANCE, (c, lora, found)
    plain = replace(cases[1], temperature=0.0)
    with_adapter, without = run(plain, adapters[1]), run(plain, {})
    assert np.abs(with_adapter.rows[0] - without.rows[0]).max() > 50 * TOLERANCE


@on("adapters", "eagle")
def test_hidden_states(server: Server) -> None:
    """They equal those without a penalty, and requesting them changes nothing else."""
    prompt = repetitive(random.Random("hidden states"), 24)
    lz = Lz(0.5, include_prompt=True)
    body = request_body(prompt, 8, lz) | {"return_hidden_states": True}
    answer = post_ok(server, "/generate", body)
    sample = to_sample(prompt, answer)
    assert sample.outputs == generate(server, prompt, 8, lz).outputs
    assert sample.outputs != generate(server, prompt, 8).outputs
    flush_cache(server)  # only what is computed anew has states
    body = request_body([*prompt, *sample.outputs[:-1]], 1) | {"return_hidden_states": True}
    expected = post_ok(server, "/generate", body)["meta_info"]["hidden_states"][0]
    prefilled, *decoded = answer["meta_info"]["hidden_states"]
    np.testing.assert_allclose([*prefilled, *decoded], expected, atol=HIDDEN_TOLERANCE)
