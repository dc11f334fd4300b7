"""Which nodes of a frozen graph are its outputs; TensorFlow itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.tensorflow.loading import _find_outputs


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
