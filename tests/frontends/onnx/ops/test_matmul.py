from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.costs.workload import Workload
from dippm.graph import OpKind


@pytest.mark.parametrize(("trans_b", "shape"), [(0, (48, 5)), (1, (5, 48))])
def test_gemm_with_a_stored_matrix_is_linear(read, kinds, trans_b: int, shape: tuple[int, ...]) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=trans_b)
    graph = read(
        [node], weights={"w": np.zeros(shape, np.float32), "b": np.zeros(5, np.float32)}, inputs={"x": ["N", 48]}
    )
    assert kinds(graph) == ["linear"]
    assert len(graph.nodes[0].inputs) == 3


def test_turned_weight_of_a_linear_layer_is_the_weight(read, kinds) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["m"]),
        helper.make_node("Add", ["b", "m"], ["y"]),
    ]
    graph = read(nodes, weights={"w": np.zeros((5, 8), np.float32), "b": np.zeros(5, np.float32)})
    assert kinds(graph) == ["linear"]
    assert [graph.tensors[index].name for index in graph.nodes[0].inputs] == ["x", "w", "b"]


@pytest.mark.parametrize(
    ("left", "right", "shape"),
    [
        (["N", 4, 6, 8], ["N", 4, 8, 5], ["N", "4", "6", "5"]),
        (["N", 4, 6, 8], [8, 5], ["N", "4", "6", "5"]),
        (["N", 6, 8], [8], ["N", "6"]),
        ([8], ["N", 8, 5], ["N", "5"]),
        (["N", 1, 6, 8], [4, 8, 5], ["N", "4", "6", "5"]),
    ],
)
def test_products_are_broadcast_as_numpys(one, shapes, left: list, right: list, shape: list[str]) -> None:
    graph = one("MatMul", "a b", inputs={"a": left, "b": right})
    assert shapes(graph) == [shape]
    assert [node.kind for node in graph.nodes].count(OpKind.MATMUL) == 1


def test_what_gemm_adds_that_is_no_bias_is_an_operator(one, kinds) -> None:
    weights = {"w": np.zeros((8, 5), np.float32)}
    inputs = {"x": ["N", 8], "c": ["N", 5]}
    assert kinds(one("Gemm", "x w c", inputs=inputs, weights=weights)) == ["linear", "add"]
    inputs = {"x": [8, "N"], "z": [5, 8]}
    graph = one("Gemm", "x z", inputs=inputs, transA=1, transB=1)
    assert kinds(graph) == ["view", "view", "matmul"]
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "5"]


@pytest.mark.parametrize(
    ("equation", "left", "right", "kind", "shape", "macs"),
    [
        ("bhqd,bhkd->bhqk", ["N", 2, 6, 8], ["N", 2, 5, 8], "matmul", ["N", "2", "6", "5"], 2 * 6 * 5 * 8),
        ("...ij,...jk->...ik", ["N", 6, 8], ["N", 8, 5], "matmul", ["N", "6", "5"], 6 * 5 * 8),
        ("...ij,...jk", ["N", 6, 8], ["N", 8, 5], "matmul", ["N", "6", "5"], 6 * 5 * 8),
        ("bi,bj->bij", ["N", 6], ["N", 5], "mul", ["N", "6", "5"], 0),
    ],
)
def test_products_by_letters(one, shapes, equation, left, right, kind: str, shape: list[str], macs: int) -> None:
    graph = one("Einsum", "a b", inputs={"a": left, "b": right}, equation=equation)
    assert [node.kind.value for node in graph.nodes if node.kind is not OpKind.VIEW] == [kind]
    assert shapes(graph) == [shape]
    assert Workload.from_graph(graph).at([1]).macs.sum() == macs


def test_three_factors_are_contracted_two_at_a_time(one, shapes, kinds) -> None:
    weights = {"u": np.zeros((64, 32), np.float32), "w": np.zeros((32, 16), np.float32)}
    graph = one("Einsum", "x u w", inputs={"x": ["N", 64]}, weights=weights, equation="bi,ij,jk->bk")
    assert kinds(graph) == ["linear", "linear"]
    assert shapes(graph) == [["N", "16"]]
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * (64 * 32 + 32 * 16)


@pytest.mark.parametrize(
    ("equation", "left", "right", "steps", "macs"),
    [
        # Neither has a letter in common with the other that is summed.
        ("bij,bk->bi", ["N", 6, 8], ["N", 5], ["reduce", "reduce", "mul"], 0),
        ("bijx,bjk->bik", ["N", 6, 8, 9], ["N", 8, 5], ["reduce", "matmul"], 6 * 5 * 8),
    ],
)
def test_letters_of_one_factor_alone_are_summed_first(
    one, shapes, kinds, equation: str, left: list, right: list, steps: list[str], macs: int
) -> None:
    graph = one("Einsum", "a b", inputs={"a": left, "b": right}, equation=equation)
    assert kinds(graph) == steps
    assert shapes(graph)[0][:2] == ["N", "6"]
    assert Workload.from_graph(graph).at([1]).macs.sum() == macs


@pytest.mark.parametrize(
    ("equation", "kind", "shape"),
    [("bij->bji", "view", ["N", "8", "6"]), ("bij->bi", "reduce", ["N", "6"])],
)
def test_letters_of_a_single_tensor(one, shapes, equation: str, kind: str, shape: list[str]) -> None:
    graph = one("Einsum", "x", inputs={"x": ["N", 6, 8]}, equation=equation)
    assert [node.kind.value for node in graph.nodes] == [kind]
    assert shapes(graph) == [shape]


@pytest.mark.parametrize(
    ("op_type", "attributes", "said"),
    [
        ("MatMul", {}, "columns meet"),
        ("Gemm", {"transB": 1}, "columns meet"),
        ("Einsum", {"equation": "ij,jk->ik"}, "index 'j'"),
        ("Einsum", {"equation": "ij->i"}, "names 1 operands"),
        ("Einsum", {"equation": "ijk,kl->il"}, "does not fit"),
        ("Einsum", {"equation": "ij,kl->im"}, "no operand"),
    ],
)
def test_factors_that_do_not_fit(refused, op_type: str, attributes: dict, said: str) -> None:
    assert said in refused(op_type, "a b", inputs={"a": ["N", 8], "b": [7, 5]}, **attributes)
