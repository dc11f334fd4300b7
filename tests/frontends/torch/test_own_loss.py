"""Which models of transformers take their loss in FP32, told from the library itself."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from dippm.costs.conditions import Mode
from dippm.frontends import zoo
from dippm.frontends.inputs import InputShapes
from dippm.frontends.open_model import open_model
from dippm.frontends.torch.own_loss import is_scored_in_fp32

_needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@_needs_transformers
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LlamaForCausalLM", True),
        ("GPT2LMHeadModel", True),  # of no kind that transformers knows: taken for a decoder
        ("BertForMaskedLM", False),  # takes the loss by itself
        ("T5ForConditionalGeneration", False),
        ("ViTForImageClassification", False),  # a loss of classes
    ],
)
def test_what_transformers_does(name: str, expected: bool) -> None:
    module, _ = zoo.build(f"hf:{name}")
    assert is_scored_in_fp32(module) is expected


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_modules_without_a_loss_of_their_own() -> None:
    assert not is_scored_in_fp32(nn.Linear(2, 2))
    traced = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    assert not is_scored_in_fp32(traced)


@_needs_transformers
def test_a_graph_says_so_where_it_is_trained() -> None:
    modes = {mode: open_model("hf:LlamaForCausalLM", input=InputShapes(), mode=mode) for mode in Mode}
    assert {mode: graph.is_scored_in_fp32 for mode, graph in modes.items()} == {
        Mode.INFERENCE: False,
        Mode.TRAINING: True,
    }
