"""A Llama or Qwen2 model in plain torch, float32, on a CPU, for batches whose rows come and go."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
import torch.nn.functional as F
from numba import prange
from safetensors.torch import load_file
from torch import Tensor


class _Layer(NamedTuple):
    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """The weights of a model, and a cache of keys and values with a slot for each request.

    Attributes:
        vocab_size: V, the columns of the logits.
        slots: how many requests it holds at once.
    """

    def __init__(self, folder: Path, slots: int, capacity: int) -> None:
        """Load the model of a folder with config.json and model.safetensors.

        Args:
            folder: as `sglang_lz.models` makes it.
            slots: how many requests run at once.
            capacity: the longest context of a slot, in tokens.
        """
        config = json.loads((folder / "config.json").read_text())
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        is_known = config["model_type"] in ("llama", "qwen2") and not config.get("attention_bias")
        if not is_known or rope.get("rope_type", "default") != "default":
            raise ValueError(f"{folder} must be a Llama or Qwen2 without scaled positions.")
        weights = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
        self.slots = slots
        self._eps = config["rms_norm_eps"]
        self._heads, self._kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._dim = config.get("head_dim") or config["hidden_size"] // self._heads
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = weights.get("lm_head.weight", self._embedding)
        self._norm = weights["model.norm.weight"]
        self.vocab_size = len(self._head)
        layers = config["num_hidden_layers"]
        self._layers = [_layer(weights, f"model.layers.{i}.") for i in range(layers)]
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        halves = torch.arange(0, self._dim, 2, dtype=torch.float32) / self._dim
        angles = torch.arange(capacity)[:, None] * (1.0 / theta**halves)
        self._cos, self._sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        shape = (layers, 2, slots, self._kv_heads, capacity, self._dim)
        self._cache = torch.zeros(shape)

    def prefill(self, slot: int, ids: list[int]) -> Tensor:
        """Read a prompt into a slot; return the logits after it, float32 [1, V]."""
        positions = torch.arange(len(ids))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for which, new in enumerate((k, v)):
                self._cache[layer, which, slot, :, : len(ids)] = new.transpose(0, 1)
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return found[0].transpose(0, 1)

        return self._forward(torch.tensor(ids), positions, attend, last=True)

    def step(self, slots: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """Append a token to each of some slots; return the logits after it, float32 [rows, V].

        Args:
            slots: int64 [rows].
            ids: the tokens, int64 [rows].
            lengths: tokens of each slot, the new one included, int64 [rows].
        """
        at = lengths - 1
        scale = self._dim**-0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._cache[layer, 0, slots, :, at] = k
            self._cache[layer, 1, slots, :, at] = v
            found = torch.empty_like(q)
            keys, values = self._cache[layer].numpy()
            arrays = (x.numpy() for x in (slots, lengths, found))
            _attend(q.contiguous().numpy(), keys, values, *arrays, scale)
            return found

        return self._forward(ids, at, attend)

    def _forward(self, ids: Tensor, positions: Tensor, attend: Any, last: bool = False) -> Tensor:
        heads, kv_heads = self._heads, self._kv_heads
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        x = self._embedding[ids]
        for number, layer in enumerate(self._layers):
            qkv = F.linear(self._normed(x, layer.norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(len(ids), heads + 2 * kv_heads, self._dim)
            turned = _rotate(qkv[:, : heads + kv_heads], cos, sin)
            q, k = turned[:, :heads], turned[:, heads:]
            found = attend(number, q, k, qkv[:, heads + kv_heads :])
            x = x + F.linear(found.reshape(len(ids), -1), layer.out)
            gate, up = F.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(self._normed(x[-1:] if last else x, self._norm), self._head)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)


def _layer(weights: dict[str, Tensor], prefix: str) -> _Layer:
    def joined(*names: str) -> Tensor:
        return torch.cat([weights.pop(prefix + name) for name in names])

    parts = ("q", "k", "v")
    has_bias = f"{prefix}self_attn.q_proj.bias" in weights
    return _Layer(
        joined("input_layernorm.weight"),
        joined(*(f"self_attn.{part}_proj.weight" for part in parts)),
        joined(*(f"self_attn.{part}_proj.bias" for part in parts)) if has_bias else None,
        joined("self_attn.o_proj.weight"),
        joined("post_attention_layernorm.weight"),
        joined("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        joined("mlp.down_proj.weight"),
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [tokens, heads, dim]; cos and sin [tokens, 1, dim]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


@numba.njit(parallel=True, fastmath=True, cache=True)
def _attend(q, keys, values, slots, lengths, out, scale):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Attention of one query a row.

    q, out: float32 [rows, heads, dim]. keys, values: float32 [slots, kv_heads, capacity, dim].
    """
    rows, heads, dim = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    for pair in prange(rows * kv_heads):
        row, kv = pair // kv_heads, pair % kv_heads
        slot, length = slots[row], lengths[row]
        scores = np.empty((group, length), np.float32)
        for j in range(length):
            for g in range(group):
                total = np.float32(0)
                for d in range(dim):
                    total += q[row, kv * group + g, d] * keys[slot, kv, j, d]
                scores[g, j] = total * np.float32(scale)
        for g in range(group):
            most = scores[g].max()
            total = np.float32(0)
            for j in range(length):
                scores[g, j] = math.exp(scores[g, j] - most)
                total += scores[g, j]
            found = out[row, kv * group + g]
            found[:] = 0
            share = np.float32(1) / total
            for j in range(length):
                scores[g, j] *= share
        for j in range(length):
            for g in range(group):
                weight = scores[g, j]
                for d in range(dim):
                    out[row, kv * group + g, d] += weight * values[slot, kv, j, d]
