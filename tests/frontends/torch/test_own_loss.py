"""Which models of transformers take their loss in FP32, told from the library itself."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from dippm.costs.autocast import KEPT, RAISED
from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.frontends import zoo
from dippm.frontends.inputs import InputShapes, parse_input_shapes
from dippm.frontends.open_model import open_model
from dippm.frontends.torch.own_loss import is_scored_in_fp32
from dippm.frontends.torch.reader import read_module
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops
from dippm.graph import DType, OpKind

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
def test_what_transformers_does(name: str, expected: bool, capfd: pytest.CaptureFixture[str]) -> None:
    module, _ = zoo.build(f"hf:{name}")
    assert is_scored_in_fp32(module) is expected
    assert capfd.readouterr().err == ""


class _Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> object:
        return self.model(input_ids)


class _Adapted(_Around):
    """As PEFT's classes answer."""

    def get_base_model(self) -> nn.Module:
        return self.model


@_needs_transformers
def test_models_inside_others() -> None:
    module, _ = zoo.build("hf:LlamaForCausalLM", options={"num_hidden_layers": 1})
    assert not is_scored_in_fp32(_Around(module))
    assert is_scored_in_fp32(_Adapted(module))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_modules_without_a_loss_of_their_own() -> None:
    assert not is_scored_in_fp32(nn.Linear(2, 2))
    traced = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    assert not is_scored_in_fp32(traced)


@_needs_transformers
def test_a_graph_says_so_where_it_is_trained() -> None:
    graphs = {
        mode: open_model("hf:GPT2LMHeadModel", input=InputShapes(), mode=mode, precision=Precision.BF16)
        for mode in Mode
    }
    assert {mode: graph.is_scored_in_fp32 for mode, graph in graphs.items()} == {
        Mode.INFERENCE: False,
        Mode.TRAINING: True,
    }
    step = make_training_graph(graphs[Mode.TRAINING], TrainingSettings(precision=Precision.BF16)).graph
    loss = [node for node in step.nodes if node.scope == "loss"]
    assert [node.kind for node in loss[:3]] == [OpKind.CAST, OpKind.VIEW, OpKind.LOG_SOFTMAX]
    before, after = (step.tensors[index].dtype for index in (loss[0].inputs[0], loss[0].outputs[0]))
    assert (before, after) == (DType.BFLOAT16, DType.FLOAT32)


@_needs_transformers
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_reader_notes_code_that_has_parts_in_fp32(is_wrapped: bool) -> None:
    module, inputs = zoo.build("hf:LlamaModel", options={"num_hidden_layers": 1, "hidden_size": 64})
    graph = read_module(_Around(module) if is_wrapped else module, input=inputs)
    assert graph.keeps_fp32_parts
    assert not read_module(nn.Linear(8, 8), input=parse_input_shapes("8")).keeps_fp32_parts


@_needs_transformers
@pytest.mark.parametrize(("is_in_full", "mark"), [(True, RAISED), (False, KEPT)])
def test_a_loss_inside_a_model_says_in_what_type_it_takes_scores(is_in_full: bool, mark: str) -> None:
    import_torchvision_ops()
    from transformers.loss.loss_utils import ForCausalLMLoss

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.head(self.table(x))
            if is_in_full:
                return ForCausalLMLoss(scores, x, vocab_size=16)
            return nn.functional.cross_entropy(scores.flatten(0, 1), x.flatten())

    graph = read_module(Scored(), input=parse_input_shapes("12:int64"), mode=Mode.TRAINING)
    (logarithms,) = (node for node in graph.nodes if node.kind is OpKind.LOG_SOFTMAX)
    assert {RAISED, KEPT} & logarithms.attributes.keys() == {mark}
    step = make_training_graph(graph, TrainingSettings(precision=Precision.AMP))
    written = [
        step.graph.tensors[node.outputs[0]].dtype for node in step.graph.nodes if node.kind is OpKind.LOG_SOFTMAX
    ]
    assert written == [DType.FLOAT32 if is_in_full else DType.FLOAT16]
