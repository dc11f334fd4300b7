"""What the exporter notes of its tensors decides which of them are trained."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.export_records import find_untrained

SIGNATURE = "\n# inputs\np_w: PARAMETER target='w'\np_head_bias: PARAMETER target='head.bias'\nx: USER_INPUT\n"


def noted(build: Any, notes: dict[str, dict[str, str]], *, signature: str = SIGNATURE) -> onnx.ModelProto:
    """A model that adds three stored tensors, with notes on some of them."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "add_25"], ["b"]),
        helper.make_node("Add", ["b", "head.mel"], ["y"]),
    ]
    weights = {name: np.zeros((40, 50), np.float32) for name in ("w", "add_25", "head.mel")}
    model = build(nodes, inputs={"x": ["N", 40, 50]}, weights=weights)
    if signature:
        model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    for name, entries in notes.items():
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [40, 50])
        for key, value in entries.items():
            info.metadata_props.add(key=key, value=value)
        model.graph.value_info.append(info)
    return model


def kind(name: str) -> dict[str, str]:
    return {"pkg.torch.export.graph_signature.InputSpec.kind": name}


def folded(*names: str) -> dict[str, str]:
    return {"pkg.onnxscript.optimizer.folded_from": repr(sorted(names))}


@pytest.mark.parametrize(
    ("notes", "untrained"),
    [
        ({}, set()),
        ({"w": kind("PARAMETER"), "head.mel": kind("BUFFER")}, {"head.mel"}),
        ({"head.mel": kind("CONSTANT_TENSOR")}, {"head.mel"}),
        ({"add_25": folded("linspace", "val_1")}, {"add_25"}),
        ({"add_25": folded("val_1", "head.bias")}, set()),  # a weight in another order
        ({"w": {**kind("PARAMETER"), **folded("val_1")}}, set()),
    ],
)
def test_what_is_no_parameter_is_not_counted(build: Any, notes: dict, untrained: set[str]) -> None:
    model = noted(build, notes)
    assert find_untrained(model.graph) == untrained
    assert read_onnx(model).parameter_count == 2000 * (3 - len(untrained))
    assert read_onnx(model.SerializeToString()).parameter_count == 2000 * (3 - len(untrained))


def test_files_of_others_say_nothing(build: Any) -> None:
    notes = {"add_25": folded("val_1"), "head.mel": kind("BUFFER")}
    assert find_untrained(noted(build, notes, signature="").graph) == set()


@pytest.mark.slow
def test_the_grid_of_a_spatial_transformer_is_no_weight() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Sampler(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.place = torch.nn.Linear(3 * 16 * 16, 6)
            self.register_buffer("window", torch.rand(16, 16))

        def forward(self, x: Any) -> Any:
            theta = self.place((x * self.window).flatten(1)).view(-1, 2, 3)
            grid = torch.nn.functional.affine_grid(theta, x.size(), align_corners=False)
            return torch.nn.functional.grid_sample(x, grid, align_corners=False)

    module = Sampler().eval()
    shapes = ({0: torch.export.Dim("batch")},)
    sample = (torch.zeros(2, 3, 16, 16),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, sample, dynamo=True, verbose=False, dynamic_shapes=shapes).model_proto
    assert read_onnx(program).parameter_count == sum(parameter.numel() for parameter in module.parameters())
