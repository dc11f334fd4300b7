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


def norms(build: Any, *, opset: int = 18, producer: str = "pytorch", classes: str = "") -> onnx.ModelProto:
    """An RMS norm and a layer norm written out."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["q"]),
        helper.make_node("ReduceMean", ["q", "axes"] if opset >= 18 else ["q"], ["v"], **axes(opset)),
        helper.make_node("Add", ["v", "val_4"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["r"]),
        helper.make_node("Reciprocal", ["r"], ["i"]),
        helper.make_node("Mul", ["x", "i"], ["n"]),
        helper.make_node("ReduceMean", ["n", "axes"] if opset >= 18 else ["n"], ["m"], **axes(opset)),
        helper.make_node("Sub", ["n", "m"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["p"]),
        helper.make_node("ReduceMean", ["p", "axes"] if opset >= 18 else ["p"], ["w"], **axes(opset)),
        helper.make_node("Add", ["w", "val_4"], ["f"]),
        helper.make_node("Sqrt", ["f"], ["s"]),
        helper.make_node("Div", ["d", "s"], ["y"]),
    ]
    weights = {"axes": np.array([2], np.int64), "val_4": np.float32(1e-6).reshape(())}
    if opset < 18:
        del weights["axes"]
    model = build(nodes, inputs={"x": ["N", 5, 32]}, weights=weights, opset=opset)
    model.producer_name = producer
    if classes:
        model.graph.node[2].metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=classes)
    return model


def axes(opset: int) -> dict[str, list[int]]:
    return {} if opset >= 18 else {"axes": [2]}


@pytest.mark.parametrize(
    ("arguments", "fused"),
    [
        ({"producer": "tf2onnx"}, {"rms_norm", "layer_norm"}),
        ({"opset": 18}, set()),
        ({"opset": 13}, {"layer_norm"}),
        ({"classes": "['Net', 'torch.nn.modules.normalization.RMSNorm', 'aten.add.Scalar']"}, {"rms_norm"}),
        ({"classes": "['Net', 'LlamaRMSNorm', 'aten.add.Tensor']"}, set()),
    ],
)
def test_norms_are_whole_where_the_module_has_them_so(build: Any, arguments: dict, fused: set[str]) -> None:
    graph = read_onnx(norms(build, **arguments))
    kinds = [node.kind.value for node in graph.nodes]
    assert {kind for kind in kinds if "norm" in kind} == fused
    assert len(kinds) == len(fused) + (0 if "rms_norm" in fused else 5) + (0 if "layer_norm" in fused else 7)


@pytest.mark.slow
def test_norms_of_a_module_are_in_its_file_as_it_runs_them() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Own(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    module = torch.nn.Sequential(torch.nn.RMSNorm(8), Own(), torch.nn.LayerNorm(8)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (torch.zeros(2, 4, 8),), dynamo=True, verbose=False).model_proto
    kinds = [node.kind.value for node in read_onnx(program).nodes]
    assert kinds == ["rms_norm", "pow", "reduce", "add", "unary", "mul", "layer_norm"]


@pytest.mark.slow
def test_operators_that_the_exporter_takes_apart_are_the_modules() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from dippm.frontends.inputs import parse_input_shapes
    from dippm.frontends.torch import read_module

    class Several(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.pair = torch.nn.Bilinear(8, 8, 3)

        def forward(self, x: Any, y: Any) -> Any:
            x = torch.nn.functional.softplus(torch.lerp(x, y, 0.3)) + torch.log1p(torch.atan2(x, y)) + torch.trunc(x)
            values, places = torch.max(torch.addcmul(x, x, y, value=0.5), 1, keepdim=True)
            values = values.masked_fill((x > 0).any(1, keepdim=True), 1.0).add(y, alpha=2)
            values[values > 2] = 0.5
            return self.pair(values, y), places

    def described(graph: Any) -> list[tuple[str, Any]]:
        nodes = [(node.kind.value, node.attributes.get("function")) for node in graph.nodes]
        kept = [("matmul", None) if kind == "linear" else (kind, function) for kind, function in nodes]
        return sorted(node for node in kept if node[0] not in ("view", "copy", "fill", "scatter"))

    module = Several().eval()
    sample = (torch.rand(2, 8), torch.rand(2, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, sample, dynamo=True, verbose=False).model_proto
    found = described(read_onnx(program))
    # In the file, what is written where a mask is true is chosen; the module writes it into a copy.
    found.remove(("binary", "where"))
    assert [kind for kind, _ in found] == [
        kind for kind, _ in described(read_module(module, input=parse_input_shapes(["8", "8"])))
    ]
    assert not {"cast", "gather", "unknown"} & {kind for kind, _ in found}
