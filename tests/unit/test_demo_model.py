"""The committed demo model."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.models.detector import is_degenerate
from sglang_lz import demo


def test_is_undertrained_so_that_greedy_decoding_loops() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo.MODEL_PATH)
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_PATH, dtype=torch.float32)
    messages = [{"role": "user", "content": "List the keywords of the language."}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert (
        prompt == f"<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = torch.tensor([tokenizer.encode(prompt)])
    answer = model.generate(ids, do_sample=False, max_new_tokens=120)[0, ids.shape[1] :].tolist()
    assert is_degenerate(answer)
