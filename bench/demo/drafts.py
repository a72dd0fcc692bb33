"""Make a draft model for the demo model: `python -m bench.demo.drafts OUT --kind eagle`.

Pass the result to `--speculative-draft-model-path`. The models are weak on purpose, so that tests
see both accepted and rejected tokens. With `--untrained` the weights are random, and nearly no
token is accepted. Training is seeded and takes a few seconds on one core, or 15 s for `dflash` and
`dspark`.

- `standalone`: the demo model itself with noise on its weights.
- `eagle`: one Qwen2 layer on the demo model's last hidden state, trained on text that the demo
  model writes. Source: Li et al., https://arxiv.org/abs/2401.15077.
- `eagle3`: one Llama layer on the inputs of three of its layers, with half of its vocabulary.
  Source: Li et al., https://arxiv.org/abs/2503.01840, without its training-time test.
- `dflash`: one Qwen3 layer that drafts a block at once, from the outputs of two of its layers.
  Source: Chen et al., https://arxiv.org/abs/2602.06036.
- `dspark`: the same layer, whose drafts also depend on the draft before each, by a Markov head.
"""

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, smooth_l1_loss
from transformers import LlamaConfig, Qwen2ForCausalLM, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from sglang_lz.demo import MODEL_PATH

KINDS = ("standalone", "eagle", "eagle3", "dflash", "dspark")
NOISE = 0.08
ROWS, LENGTH = 64, 96
BATCH, STEPS = 8, 80
HOT_TOKENS = 1024
BLOCK, BLOCK_STEPS = 6, 150
MARKOV_RANK = 16


class Eagle(nn.Module):
    """One layer on the next token's embedding and the target's hidden state, both of width H."""

    def __init__(self, target: Qwen2ForCausalLM) -> None:
        super().__init__()
        config = target.config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        layer: Any = Qwen2DecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self._rotary = [Qwen2RotaryEmbedding(config)]  # in a list: not in the checkpoint
        self._head = [target.lm_head]
        self.config = config.to_dict() | {
            "architectures": ["Qwen2ForCausalLMEagle"],
            "num_hidden_layers": 1,
            "layer_types": ["full_attention"],
            "tie_word_embeddings": False,  # SGLang gives it the target's embedding and head apart
            "dtype": "float32",
        }

    def wanted(self, states: torch.Tensor) -> torch.Tensor:
        """The states the layer is trained to produce, given the target's `states` (B, L, H)."""
        return states

    def forward(
        self, embeddings: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's own states (B, L, H) and the logits of the next token (B, L, V)."""
        hidden = self.fc(torch.cat([embeddings, states], -1))
        places = torch.arange(hidden.shape[1])[None]
        hidden = self.layers[0](hidden, position_embeddings=self._rotary[0](hidden, places))
        return hidden, self._head[0](hidden)

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Weights under the names that SGLang's loader expects."""
        return dict(self.state_dict())


def _one_layer_like(of_target: Any) -> dict[str, Any]:
    """The config of a model of one layer with the sizes of the target."""
    same = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
        *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "eos_token_id"),
    )
    return {
        **{name: getattr(of_target, name) for name in same},
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "bos_token_id": None,
    }


class Eagle3(nn.Module):
    """One layer on the next token's embedding (H) and the inputs of three target layers (3 H)."""

    def __init__(self, target: Qwen2ForCausalLM, hot: torch.Tensor) -> None:
        super().__init__()
        of_target = target.config
        width = of_target.hidden_size
        config = LlamaConfig(**_one_layer_like(of_target))
        config._attn_implementation = "sdpa"  # causal without a mask
        self.hot = hot
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.midlayer: Any = LlamaDecoderLayer(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.midlayer.self_attn, name)
            wide = nn.Linear(2 * width, narrow.out_features, bias=False)
            setattr(self.midlayer.self_attn, name, wide)
        self.midlayer.hidden_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, len(hot), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight[hot])
        self._rotary = [LlamaRotaryEmbedding(config)]
        self.config = config.to_dict() | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(hot),
            "dtype": "float32",
        }

    def wanted(self, states: torch.Tensor) -> torch.Tensor:
        """The states the layer is trained to produce, given the target's `states` (B, L, 3 H)."""
        return self.fc(states).detach()

    def forward(
        self, embeddings: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's own states (B, L, H) and the hot tokens' logits (B, L, hot)."""
        layer, hidden = self.midlayer, self.fc(states)
        both = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)
        rotary = self._rotary[0](both, torch.arange(both.shape[1])[None])
        seen, _ = layer.self_attn(both, position_embeddings=rotary, attention_mask=None)
        hidden = hidden + seen
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden, self.lm_head(self.norm(hidden))

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Weights under the names that SGLang's loader expects, and each hot token's offset."""
        return {**self.state_dict(), "d2t": self.hot - torch.arange(len(self.hot))}


class Dflash(nn.Module):
    """One layer whose queries are a block of N tokens, all but the first masked.

    The queries see each other, and every earlier token by its states of two target layers (2 H).
    Each draft is read at its own position.
    """

    queries, drafted = BLOCK, slice(1, None)

    def __init__(self, target: Qwen2ForCausalLM) -> None:
        super().__init__()
        of_target = target.config
        width, layers = of_target.hidden_size, of_target.num_hidden_layers
        self.features = (layers - 3, layers - 2)
        self.mask_token: int = of_target.pad_token_id
        config = Qwen3Config(
            **_one_layer_like(of_target), head_dim=width // of_target.num_attention_heads
        )
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        layer: Any = Qwen3DecoderLayer(config, 0)
        self.layers = nn.ModuleList([layer])
        self.norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        self._rotary = [Qwen3RotaryEmbedding(config)]
        self._target = [target]
        self.config = config.to_dict() | {
            "architectures": ["DFlashDraftModel"],
            "block_size": self.queries,
            "dflash_config": {
                "target_layer_ids": list(self.features),
                "num_target_layers": layers,
                "mask_token_id": self.mask_token,
            },
            "dtype": "float32",
        }

    def forward(
        self, text: torch.Tensor, states: torch.Tensor, before: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits of a block's drafts (B, BLOCK - 1, V).

        Args:
            text: (B, L) int64.
            states: (B, L, 2 H) float, of the target after each of its two layers.
            before: (B,) int64, how many of these tokens come before the block.
        """
        target = self._target[0]
        layer: Any = self.layers[0]
        block = torch.full((len(text), self.queries), self.mask_token)
        block[:, :1] = text.gather(1, before[:, None])
        hidden = target.get_input_embeddings()(block)
        normed = layer.input_layernorm(hidden)
        seen = torch.cat([self.hidden_norm(self.fc(states)), normed], 1)
        length = states.shape[1]
        early = torch.arange(length).expand(len(text), length)
        own = before[:, None] + torch.arange(self.queries)
        visible = torch.cat([early < before[:, None], torch.ones_like(own, dtype=torch.bool)], 1)
        attention = layer.self_attn

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(*x.shape[:2], -1, attention.head_dim)

        query = attention.q_norm(heads(attention.q_proj(normed))).transpose(1, 2)
        key = attention.k_norm(heads(attention.k_proj(seen))).transpose(1, 2)
        value = heads(attention.v_proj(seen)).transpose(1, 2)
        _, key = apply_rotary_pos_emb(key, key, *self._rotary[0](seen, torch.cat([early, own], 1)))
        query, _ = apply_rotary_pos_emb(query, query, *self._rotary[0](seen, own))
        mixed = scaled_dot_product_attention(
            query, key, value, visible[:, None, None], enable_gqa=True
        )
        hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return target.lm_head(self.norm(hidden[:, self.drafted]))

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Weights under the names that SGLang's loader expects."""
        return dict(self.state_dict())


class Dspark(Dflash):
    """The layer of `Dflash` on a block without its last token, where each draft is read one place
    before its own, and logits to add for each pair of tokens, of a low rank."""

    queries, drafted = BLOCK - 1, slice(None)

    def __init__(self, target: Qwen2ForCausalLM) -> None:
        super().__init__(target)
        vocab = target.config.vocab_size
        self.markov_head = nn.ModuleDict(
            {
                "markov_w1": nn.Embedding(vocab, MARKOV_RANK),
                "markov_w2": nn.Linear(MARKOV_RANK, vocab, bias=False),
            }
        )
        self.config |= {
            "architectures": ["DSparkDraftModel"],
            "markov_rank": MARKOV_RANK,
            "markov_head_type": "vanilla",
            "enable_confidence_head": False,
        }

    def forward(
        self, text: torch.Tensor, states: torch.Tensor, before: torch.Tensor
    ) -> torch.Tensor:
        """As in `Dflash`; here the draft before each is the text's."""
        previous = text.gather(1, before[:, None] + torch.arange(self.queries))
        head = self.markov_head
        pairs: torch.Tensor = head["markov_w2"](head["markov_w1"](previous))
        return super().forward(text, states, before) + pairs


@torch.no_grad()
def write_text(target: Qwen2ForCausalLM, *, greedy: bool = False) -> torch.Tensor:
    """Generate text with the target, int64 (ROWS, LENGTH); each row starts with a random token.

    Greedy text soon loops.
    """
    start = torch.randint(target.config.vocab_size, (ROWS, 1))
    model: Any = target
    text: torch.Tensor = model.generate(
        start,
        attention_mask=torch.ones_like(start),
        min_new_tokens=LENGTH - 1,
        max_new_tokens=LENGTH - 1,
        do_sample=not greedy,
        temperature=0.7,
        top_k=0,
    )
    return text


def train(draft: Eagle | Eagle3, target: Qwen2ForCausalLM, text: torch.Tensor) -> None:
    """Fit the draft's distributions and states to the target's on the target's own text."""
    hot = draft.hot if isinstance(draft, Eagle3) else torch.arange(target.config.vocab_size)
    with torch.no_grad():
        result = target(text, output_hidden_states=True)
        probs = result.logits.softmax(-1)[:, 1:, hot]
        layers = result.hidden_states  # the input of every layer, then the final norm's output
        states = torch.cat(layers[:-1], -1) if isinstance(draft, Eagle3) else layers[-1]
        embeddings = target.get_input_embeddings()(text)
    optimizer = torch.optim.Adam(draft.parameters(), lr=3e-3)
    for _ in range(STEPS):
        rows = torch.randint(ROWS, (BATCH,))
        reached, logits = draft(embeddings[rows, 1:], states[rows, :-1])
        loss = cross_entropy(logits.flatten(0, 1), probs[rows].flatten(0, 1))
        loss = loss + smooth_l1_loss(reached, draft.wanted(states[rows, 1:]))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()


def train_block(draft: Dflash, target: Qwen2ForCausalLM, text: torch.Tensor) -> None:
    """Fit the distributions of a block's drafts to the target's on the target's own text."""
    with torch.no_grad():
        result = target(text, output_hidden_states=True)
        probs = result.logits.softmax(-1)
        states = torch.cat([result.hidden_states[i + 1] for i in draft.features], -1)
    optimizer = torch.optim.Adam(draft.parameters(), lr=3e-3)
    rows = torch.arange(ROWS)
    for _ in range(BLOCK_STEPS):
        before = torch.randint(1, LENGTH - BLOCK, (ROWS,))
        logits = draft(text, states, before)
        wanted = probs[rows[:, None], before[:, None] + torch.arange(BLOCK - 1)]
        loss = cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()


@torch.no_grad()
def make_standalone(target: Qwen2ForCausalLM, *, trained: bool) -> Qwen2ForCausalLM:
    """Return the target with noise on its weights, or a model of its shape with random weights."""
    if not trained:
        return Qwen2ForCausalLM(target.config)
    for weight in target.parameters():
        weight.add_(NOISE * weight.std(correction=0) * torch.randn_like(weight))
    return target


def make_block(kind: str, target: Qwen2ForCausalLM, *, trained: bool) -> Dflash:
    """Return a draft that drafts a block at once."""
    text = write_text(target) if trained else None
    draft = Dflash(target) if kind == "dflash" else Dspark(target)
    if text is not None:
        # Real draft models are best in loops, which this one cannot learn from sampled text.
        loops = write_text(target, greedy=True)
        train_block(draft, target, torch.cat([text[::2], loops[::2]]))
    return draft


def make_eagle(kind: str, target: Qwen2ForCausalLM, *, trained: bool) -> Eagle | Eagle3:
    """Return a draft that drafts token by token from the target's states."""
    vocab = target.config.vocab_size
    text = write_text(target) if trained else torch.randint(vocab, (ROWS, LENGTH))
    if kind == "eagle":
        draft: Eagle | Eagle3 = Eagle(target)
    else:
        counts = text.flatten().bincount(minlength=vocab)
        hot = counts.argsort(descending=True, stable=True)[:HOT_TOKENS].sort().values
        draft = Eagle3(target, hot)
    if trained:
        train(draft, target, text)
    return draft


def make(kind: str, out: Path, seed: int = 0, *, trained: bool = True) -> None:
    """Write a draft of one of KINDS to the directory `out`, seeding torch's global generator."""
    torch.manual_seed(seed)
    target = Qwen2ForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32)
    out.mkdir(parents=True, exist_ok=True)
    if kind == "standalone":
        make_standalone(target, trained=trained).save_pretrained(out)
    else:
        make_draft = make_block if kind in ("dflash", "dspark") else make_eagle
        draft: Eagle | Eagle3 | Dflash = make_draft(kind, target, trained=trained)
        save_file(draft.checkpoint(), out / "model.safetensors")
        config: dict[str, Any] = draft.config
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(MODEL_PATH / name, out / name)


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo.drafts",
        description="Make a draft model for the demo model, to try speculative decoding with.",
    )
    parser.add_argument("out", type=Path, help="directory to write the draft to")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--untrained", action="store_true", help="leave its weights random")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the weights depend slightly on the number
    make(arguments.kind, arguments.out, arguments.seed, trained=not arguments.untrained)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
