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
    assert [kind for kind in kinds(graph) if kind != "view"] == ["matmul", "matmul"]
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
    assert [kind for kind in kinds(graph) if kind != "view"] == steps
    assert shapes(graph)[0][:2] == ["N", "6"]
    assert Workload.from_graph(graph).at([1]).macs.sum() == macs


@pytest.mark.parametrize(
    ("equation", "x", "steps", "shape"),
    [
        ("bij->bji", [6, 8], ["transpose"], ["N", "8", "6"]),
        ("bij->bi", [6, 8], ["transpose", "sum"], ["N", "6"]),
        ("bij->jb", [6, 8], ["transpose", "sum"], ["8", "N"]),
        ("b...->...b", [6, 8], ["transpose"], ["6", "8", "N"]),
        ("bii->bi", [6, 6], ["diagonal", "transpose", "transpose"], ["N", "6"]),
        ("bii", [6, 6], ["diagonal", "transpose", "transpose", "sum"], ["N"]),
    ],
)
def test_letters_of_a_single_tensor(one, shapes, equation: str, x: list, steps: list[str], shape: list[str]) -> None:
    graph = one("Einsum", "x", inputs={"x": ["N", *x]}, equation=equation)
    assert [node.attributes["function"] for node in graph.nodes] == steps
    assert shapes(graph) == [shape]


@pytest.mark.parametrize(
    ("equation", "left", "right", "product", "copies"),
    [
        # The letter of the stack follows the batch: the samples stand apart in each of its matrices.
        ("bthd,hde->bthe", ["N", 5, 4, 8], [4, 8, 6], [["4", "5N", "8"], ["4", "8", "6"], ["4", "5N", "6"]], 0),
        ("bhtd,hde->bhte", ["N", 4, 5, 8], [4, 8, 6], [["4", "5N", "8"], ["4", "8", "6"], ["4", "5N", "6"]], 1),
        ("bcxy,cdxy->bdxy", ["N", 8, 3, 3], [8, 6, 3, 3], [["9", "N", "8"], ["9", "8", "6"], ["9", "N", "6"]], 0),
        ("bnd,nd->bn", ["N", 5, 8], [5, 8], [["5", "N", "8"], ["5", "8", "1"], ["5", "N", "1"]], 0),
        ("bthd,bshd->bhts", ["N", 5, 4, 8], ["N", 7, 4, 8], [["4N", "5", "8"], ["4N", "8", "7"], ["4N", "5", "7"]], 2),
        ("...d,de->...e", ["N", 5, 4, 8], [8, 6], [["1", "20N", "8"], ["1", "8", "6"], ["1", "20N", "6"]], 0),
        ("b...d,...de", ["N", 5, 8], [5, 8, 6], [["5", "N", "8"], ["5", "8", "6"], ["5", "N", "6"]], 0),
    ],
)
def test_products_by_letters_are_stacks_of_matrices(
    one, equation: str, left: list, right: list, product: list[list[str]], copies: int
) -> None:
    weights, inputs = {}, {"a": left}
    if "N" in right:
        inputs["b"] = right
    else:
        weights["b"] = np.zeros(right, np.float32)
    graph = one("Einsum", "a b", inputs=inputs, weights=weights, equation=equation)
    (found,) = (node for node in graph.nodes if node.kind is OpKind.MATMUL)
    assert [[str(dim) for dim in graph.tensors[i].shape] for i in (*found.inputs, *found.outputs)] == product
    assert "contracted" not in found.attributes
    assert sum(node.kind is OpKind.COPY for node in graph.nodes) == copies


def test_factors_without_a_sum_are_aligned(one, shape_of) -> None:
    graph = one("Einsum", "a b", inputs={"a": ["N", 6], "b": ["N", 5]}, equation="bi,bj->bji")
    assert [shape_of(graph, index) for index in graph.nodes[-1].inputs] == [["N", "1", "6"], ["N", "5", "1"]]


def test_a_dimension_that_one_factor_is_spread_over_is_summed_in_the_other(one, kinds) -> None:
    graph = one("Einsum", "a b", inputs={"a": ["N", 6, 8], "b": ["N", 1, 8]}, equation="bij,bij->bj")
    assert [kind for kind in kinds(graph) if kind != "view"] == ["reduce", "mul"]


@pytest.mark.parametrize(
    ("op_type", "attributes", "said"),
    [
        ("MatMul", {}, "columns meet"),
        ("Gemm", {"transB": 1}, "columns meet"),
        ("Einsum", {"equation": "ij,jk->ik"}, "index 'j'"),
        ("Einsum", {"equation": "ij->i"}, "names 1 operands"),
        ("Einsum", {"equation": "ijk,kl->il"}, "does not fit"),
        ("Einsum", {"equation": "ij,kl->im"}, "no operand"),
        ("Einsum", {"equation": "ij,kk->i"}, "index 'k'"),
    ],
)
def test_factors_that_do_not_fit(refused, op_type: str, attributes: dict, said: str) -> None:
    assert said in refused(op_type, "a b", inputs={"a": ["N", 8], "b": [7, 5]}, **attributes)


@pytest.mark.parametrize(
    ("attributes", "left", "right", "shape"),
    [
        ({"transBatchA": 1, "transBatchB": 1}, [16, "N", 32], [32, "N", 20], ["N", "16", "20"]),
        ({"transBatchA": 1, "transBatchB": 1, "transB": 1}, [16, "N", 32], [20, "N", 32], ["N", "16", "20"]),
        ({"transBatchA": 1}, [16, "N", 4, 32], ["N", 4, 32, 20], ["N", "4", "16", "20"]),
        ({"transBatchA": 1, "transA": 1}, [32, "N", 4, 16], ["N", 4, 32, 20], ["N", "4", "16", "20"]),
        ({"transBatchA": 1}, [16, 32], [32, "N"], ["16", "N"]),
    ],
)
def test_first_dimensions_that_stand_behind_the_batch(one, shapes, attributes, left, right, shape) -> None:
    graph = one("FusedMatMul", "a b", inputs={"a": left, "b": right}, domain="com.microsoft", **attributes)
    assert shapes(graph) == [shape]


def test_product_with_bias_and_gelu(one, kinds) -> None:
    weights = {"w": np.zeros((32, 64), np.float32), "b": np.zeros(64, np.float32)}
    inputs = {"x": ["N", 32]}
    graph = one("GemmFastGelu", "x w b", inputs=inputs, weights=weights, domain="com.microsoft")
    assert kinds(graph) == ["linear", "gelu"]
    assert kinds(one("GemmFastGelu", "x w", inputs=inputs, weights=weights, domain="com.microsoft")) == kinds(graph)
