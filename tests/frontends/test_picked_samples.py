"""Graph networks in files: the nodes of their one graph are no batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dippm
from dippm.frontends.picked_samples import find_picker, warn_of_picked_samples
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec

onnx = pytest.importorskip("onnx")

NODES, EDGES, FEATURES = 50, 300, 16


def _graph(picked: tuple[Dim, ...], index: tuple[Dim, ...], role: TensorRole = TensorRole.INPUT) -> Graph:
    tensors = (
        TensorSpec(name="x", shape=(Dim(1, 0), Dim(0, 8)), dtype=DType.FLOAT32, role=TensorRole.INPUT),
        TensorSpec(name="places", shape=index, dtype=DType.INT64, role=role),
        TensorSpec(name="y", shape=picked, dtype=DType.FLOAT32, role=TensorRole.ACTIVATION),
    )
    inputs = (0, 1) if role is TensorRole.INPUT else (0,)
    node = Node(kind=OpKind.GATHER, inputs=(0, 1), outputs=(2,))
    return Graph(source="g", framework="onnx", tensors=tensors, nodes=(node,), inputs=inputs, outputs=(2,))


@pytest.mark.parametrize(
    ("picked", "index", "role", "found"),
    [
        ((Dim(0, 5), Dim(0, 8)), (Dim(0, 5),), TensorRole.INPUT, "places"),
        ((Dim(1, 5), Dim(0, 8)), (Dim(1, 5),), TensorRole.INPUT, "places"),  # with edges from each node to itself
        ((Dim(1, 0), Dim(0, 5)), (Dim(0, 5),), TensorRole.INPUT, None),  # within each sample
        ((Dim(1, 0), Dim(0, 8)), (Dim(1, 0),), TensorRole.INPUT, None),  # samples in another order
        ((Dim(0, 5), Dim(0, 8)), (Dim(0, 5),), TensorRole.CONSTANT, None),
    ],
)
def test_an_input_without_a_batch_picks_no_samples(picked, index, role, found) -> None:
    assert find_picker(_graph(picked, index, role)) == found


def test_what_is_said_names_the_input() -> None:
    assert "'edges'" in warn_of_picked_samples("edges", is_settled=True)
    assert "':unbatched'" in warn_of_picked_samples("edges", is_settled=False)


def _write_onnx(path: Path, nodes: int | str) -> Path:
    helper, kinds = onnx.helper, onnx.TensorProto
    weight = onnx.numpy_helper.from_array(np.zeros((FEATURES, FEATURES), "float32"), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["h"]),
            helper.make_node("Gather", ["h", "edges"], ["picked"], axis=0),
            helper.make_node("Relu", ["picked"], ["y"]),
        ],
        "edges",
        [
            helper.make_tensor_value_info("x", kinds.FLOAT, [nodes, FEATURES]),
            helper.make_tensor_value_info("edges", kinds.INT64, [EDGES]),
        ],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [EDGES, FEATURES])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def _linear_rows(graph: Graph) -> list[int]:
    linear = next(node for node in graph.nodes if node.kind is OpKind.LINEAR)
    return [dim.at(1) for dim in graph.tensors[linear.outputs[0]].shape]


def test_an_onnx_file_of_one_graph_has_the_sizes_that_it_says(tmp_path: Path) -> None:
    graph = dippm.load(_write_onnx(tmp_path / "graph.onnx", NODES))
    assert _linear_rows(graph) == [NODES, FEATURES]
    assert graph.warnings[0] == warn_of_picked_samples("edges", is_settled=True)


def test_an_onnx_file_with_any_number_of_nodes_says_what_its_batch_is(tmp_path: Path) -> None:
    graph = dippm.load(_write_onnx(tmp_path / "graph.onnx", "nodes"))
    assert _linear_rows(graph) == [1, FEATURES]
    assert graph.warnings[0] == warn_of_picked_samples("edges", is_settled=False)


def test_an_exported_program_of_one_graph_has_the_sizes_that_it_says(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Convolves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(FEATURES, FEATURES, bias=False)

        def forward(self, x, edges):
            own = torch.arange(x.shape[0])
            source, target = torch.cat([edges[0], own]), torch.cat([edges[1], own])
            h = self.linear(x)
            return torch.zeros_like(h).index_add(0, target, h[source])

    example = (torch.zeros(NODES, FEATURES), torch.zeros(2, EDGES, dtype=torch.int64))
    torch.export.save(torch.export.export(Convolves(), example), tmp_path / "graph.pt2")
    graph = dippm.load(tmp_path / "graph.pt2")
    assert _linear_rows(graph) == [NODES, FEATURES]
    assert warn_of_picked_samples("edges", is_settled=True) in graph.warnings

    whole = {"x": ((NODES, FEATURES), "unbatched"), "edges": ((2, EDGES), "int64", "unbatched")}
    assert _linear_rows(dippm.load(tmp_path / "graph.pt2", input=whole)) == [NODES, FEATURES]
