"""Which nodes of a frozen graph are its outputs; TensorFlow itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.tensorflow.loading import _find_inputs, _find_outputs


def node(name: str, op: str, *inputs: str) -> Any:
    return SimpleNamespace(name=name, op=op, input=inputs)


NETWORK = (
    node("x", "Placeholder"),
    node("w", "Const"),
    node("product", "MatMul", "x", "w"),
    node("y", "Softmax", "product:0"),
)


@pytest.mark.parametrize(
    "others",
    [
        (),
        # The end of a training step, or an initializer, waits for everything.
        (node("group", "NoOp", "^y", "^product"),),
        (node("check", "Assert", "product", "^y"),),
        # Left behind by freezing: follows from no input.
        (node("phase", "Const"), node("phase/read", "Identity", "phase")),
        (node("hello", "Const"), node("group", "NoOp", "^hello")),
    ],
    ids=["alone", "group", "assertion", "constants", "initializer"],
)
def test_the_output_is_what_follows_from_the_input_and_nobody_reads(others: tuple[Any, ...]) -> None:
    assert _find_outputs((*NETWORK, *others)) == ["y"]


def test_several_outputs_stand_in_their_order() -> None:
    assert _find_outputs((*NETWORK, node("z", "Relu", "product"))) == ["y", "z"]


def test_what_another_operator_waits_for_is_no_output() -> None:
    pivot = (node("pivot", "Identity", "x"), node("z", "Mul", "y", "w", "^pivot"))
    assert _find_outputs((*NETWORK, *pivot)) == ["z"]


def test_an_input_that_has_a_default_is_an_input() -> None:
    assert _find_outputs((node("x", "PlaceholderWithDefault", "c"), node("y", "Relu", "x"))) == ["y"]


def test_constants_alone_have_no_output() -> None:
    assert _find_outputs((node("c", "Const"), node("y", "Relu", "c"))) == []


def test_the_sides_of_a_branch_are_no_outputs() -> None:
    branch = (
        node("cond/Switch", "Switch", "y", "y"),
        node("cond/switch_t", "Identity", "cond/Switch:1"),
        node("cond/switch_f", "Identity", "cond/Switch"),
        node("cond/x", "Switch", "x", "y"),
        node("cond/Merge", "Merge", "cond/x", "cond/x:1"),
        node("cond/unread", "Switch", "x", "y"),
    )
    assert _find_outputs((*NETWORK, *branch)) == ["cond/Merge"]


def test_placeholders_with_a_default_are_inputs_where_there_are_no_others() -> None:
    def defaulted(name: str, rank: int) -> Any:
        shape = SimpleNamespace(shape=SimpleNamespace(dim=[None] * rank))
        return SimpleNamespace(name=name, op="PlaceholderWithDefault", input=("c",), attr={"shape": shape})

    def found(*nodes: Any) -> list[str]:
        return [each.name for each in _find_inputs(nodes)]

    image, phase = defaulted("image", 4), defaulted("phase", 0)
    assert found(*NETWORK, image, phase) == ["x"]
    assert found(image, phase) == ["image"]
    assert found(phase) == ["phase"]
