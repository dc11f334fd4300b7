"""A space of decoder-only transformers: width, context and four groups of layers with a depth and shape of their own.

Heads and the width of the MLP may differ from group to group, as in HAT (Wang et al., 2020, arXiv:2005.14187) and
OpenELM (Mehta et al., 2024, arXiv:2404.14619): 3.3e11 models.

    dippm explore --space examples/spaces/transformer.py --objective latency,score:max --precision bf16
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 32_000
GROUPS = 4

CHOICES: dict[str, object] = {
    "width": range(256, 1025, 64),
    "context": range(128, 1025, 128),
    "head_width": [32, 64],
    "is_gated": [False, True],
}
for number in range(1, GROUPS + 1):
    CHOICES |= {
        f"depth{number}": range(1, 7),
        f"heads{number}": range(4, 17, 4),
        f"mlp_ratio{number}": {"from": 1.0, "to": 4.0, "step": 0.5},
    }


def model(choices: Mapping[str, Any]) -> nn.Module:
    """The model; dippm calls this under PyTorch's meta device, where weights take no memory."""
    blocks = [
        Block(
            choices["width"],
            heads=choices[f"heads{number}"],
            head_width=choices["head_width"],
            hidden=int(choices["width"] * choices[f"mlp_ratio{number}"]),
            is_gated=choices["is_gated"],
        )
        for number in range(1, GROUPS + 1)
        for _ in range(choices[f"depth{number}"])
    ]
    return Decoder(choices["width"], choices["context"], blocks)


def inputs(choices: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    """Shape and type of one sequence of tokens."""
    return (choices["context"],), "int64"


def score(choices: Mapping[str, Any], prediction: Any) -> float:
    """Capacity, to be maximised: the decimal logarithm of parameters outside the embeddings times the context.

    It is no quality of text. Scaling laws of language models (Kaplan et al., 2020, arXiv:2001.08361) find that the
    loss falls as a power of just those parameters and hardly depends on how they are shaped; that a longer context is
    worth as much as more parameters is an assumption of this example.
    """
    embeddings = choices["width"] * (VOCABULARY + choices["context"])
    return math.log10((prediction.model.parameters - embeddings) * choices["context"])


class Decoder(nn.Module):
    """Embeddings, blocks, and scores of the next token by the same embeddings."""

    def __init__(self, width: int, context: int, blocks: list[Block]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the token after each one."""
        states = self.blocks(self.tokens(tokens) + self.places)
        return functional.linear(self.norm(states), self.tokens.weight)


class Block(nn.Module):
    """Attention to what came before, and an MLP, each on normalised input and added to it."""

    def __init__(self, width: int, *, heads: int, head_width: int, hidden: int, is_gated: bool) -> None:
        super().__init__()
        self.heads, self.is_gated = heads, is_gated
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_heads = nn.Linear(width, 3 * heads * head_width, bias=False)
        self.from_heads = nn.Linear(heads * head_width, width, bias=False)
        self.up = nn.Linear(width, 2 * hidden if is_gated else hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Run the block."""
        states = states + self._attend(self.attention_norm(states))
        hidden = self.up(self.mlp_norm(states))
        if self.is_gated:
            values, gates = hidden.chunk(2, dim=-1)
            return states + self.down(values * functional.silu(gates))
        return states + self.down(functional.gelu(hidden))

    def _attend(self, states: Tensor) -> Tensor:
        parts = self.to_heads(states).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = parts.unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.from_heads(mixed.transpose(1, 2).flatten(2))
