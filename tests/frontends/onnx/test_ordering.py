from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.errors import ModelReadError
from dippm.frontends.onnx.ordering import order_nodes

ZEROS = np.zeros((4, 3, 1, 1), dtype=np.float32)


def test_nodes_out_of_order_are_sorted(read, kinds) -> None:
    nodes = [
        helper.make_node("Tanh", ["b"], ["y"]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Relu", ["x"], ["a"]),
    ]
    assert kinds(read(nodes)) == ["relu", "sigmoid", "tanh"]


def test_cycle_is_an_error(read) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    with pytest.raises(ModelReadError, match="cycle") as caught:
        read(nodes)
    assert caught.value.code == "onnx.cycle"
    assert "3 operators wait for each other, among them node 'first' (Add)." in str(caught.value)


def test_unused_nodes_and_weights_are_left_out(read, kinds) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Conv", ["x", "w"], ["unused"])]
    graph = read(nodes, weights={"w": ZEROS})
    assert kinds(graph) == ["relu"]
    assert graph.parameter_count == 0


def test_a_body_reads_what_its_loop_must_wait_for(read, kinds) -> None:
    value = [helper.make_tensor_value_info("b", 1, None)]
    body = helper.make_graph([helper.make_node("Tanh", ["late"], ["b"])], "then", [], value)
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "else", [], value)
    nodes = [
        helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=other),
        helper.make_node("Relu", ["x"], ["late"]),
    ]
    assert kinds(read(nodes, weights={"yes": np.array(True)})) == ["relu", "tanh"]


@pytest.mark.parametrize("inner", ["input", "initializer", "node", "around"])
def test_what_a_body_names_itself_hides_what_has_that_name_outside(inner: str) -> None:
    """The node that reads the loop's result makes what a name of its body stands for outside."""
    given = [helper.make_tensor_value_info("late", 1, [3])] if inner == "input" else []
    kept = [helper.make_tensor("late", 1, [3], [1.0, 2.0, 3.0])] if inner == "initializer" else []
    first = [helper.make_node("Relu", ["x"], ["late"])] if inner in {"node", "around"} else []
    value = [helper.make_tensor_value_info("b", 1, [3])]
    reader = helper.make_node("Tanh", ["late"], ["b"])
    if inner == "around":
        branch = helper.make_graph([reader], "branch", [], value)
        reader = helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)
    body = helper.make_graph([*first, reader], "body", given, value, kept)
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body), helper.make_node("Relu", ["y"], ["late"])]
    assert order_nodes(nodes) is nodes


def test_an_order_that_holds_is_kept() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Tanh", ["x"], ["b"])]
    assert order_nodes(nodes) is nodes
    turned = [helper.make_node("Add", ["a", "b"], ["y"]), *nodes]
    assert [node.op_type for node in order_nodes(turned)] == ["Relu", "Tanh", "Add"]


def test_what_no_output_needs_goes_from_bodies_too(read) -> None:
    value = [helper.make_tensor_value_info("b", 1, None)]
    sides = [
        helper.make_graph(
            [helper.make_node("Tanh", ["x"], ["b"]), helper.make_node("Strange", ["x"], ["n"], domain="my")],
            name,
            [],
            value,
        )
        for name in ("then", "else")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=sides[0], else_branch=sides[1])
    graph = read([node], inputs={"x": ["N", 3], "c": []}, dtypes={"c": 9}, domains=["my"])
    assert graph.unsupported_ops == {}
