"""A random two-layer Llama over single letters: a model for tests that need one and not its sense."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flashnorm_lab import folding

PROMPT = "norms wait"
VOCABULARY = 95  # the printable letters of ASCII
SITES = ("layers.0.qkv", "layers.0.gate_up", "layers.1.qkv", "layers.1.gate_up", "head")


class Letters:
    """A tokenizer whose tokens are letters."""

    eos_token_id = None

    def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
        assert return_tensors == "pt"
        # Like the real ones, it gives floats for a text without tokens.
        return {"input_ids": torch.tensor([[ord(letter) - 32 for letter in text]])}

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i + 32) for i in ids)


def make(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """The model, in eval mode, with gains that a fold must not miss and a text that is not all one letter."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 65,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes))).eval()
    for site in folding.find_sites(model):
        torch.nn.init.uniform_(site.norm.weight, 0.2, 3)
    return model
