"""Weights that no operator reads are told, by the modules that hold them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.open_model import open_model
from dippm.frontends.unread_weights import warn_of_unread_weights
from dippm.graph import Graph

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.frontends.torch import read_module  # noqa: E402


class Towers(nn.Module):
    def __init__(self, *, spare: int) -> None:
        super().__init__()
        self.text = nn.Linear(100, 100, bias=False)
        self.vision = nn.ModuleDict({"inner": nn.Linear(spare, 10, bias=False), "outer": nn.Linear(10, 10)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.text.weight.T @ x.T


def read(module: nn.Module) -> Graph:
    return warn_of_unread_weights(read_module(module, input=parse_input_shapes("100")))


def test_the_module_that_is_not_reached_is_named_once() -> None:
    (warning,) = read(Towers(spare=50)).warnings
    assert "610 of the 10,610 weights, those of vision:" in warning


def test_a_weight_that_is_read_through_a_view_is_read() -> None:
    module = Towers(spare=50)
    del module.vision
    assert read(module).warnings == ()


def test_less_than_a_hundredth_is_not_worth_a_word() -> None:
    module = Towers(spare=1)
    del module.vision["outer"]
    assert read(module).warnings == ()


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_model_that_is_given_only_its_text_says_what_is_left_out() -> None:
    graph = open_model("hf:LlavaForConditionalGeneration", input=parse_input_shapes({"input_ids": "16:int64"}))
    assert "model.vision_tower" in graph.warnings[-1]
    # The tower, and what projects its features: two layers of 4096.
    unread = 303_507_456 + 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    assert f"{unread:,}" in graph.warnings[-1]
