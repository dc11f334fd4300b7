"""Gradients of several operators: what each reads, and how long what they write stays."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.training_step.gradient_chains import (
    GRADIENT_CHAINS,
    OPERAND_CHAINS,
    run_chain,
    run_operand_chains,
)
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.graph import DType, OpKind


@pytest.fixture(name="operands")
def _operands(builder: Any) -> tuple[StepBuilder, dict[str, int]]:
    n = builder.N
    operands = {letter: builder.input(n, 8, dtype=DType.FLOAT16) for letter in "gxybc"}
    return StepBuilder(builder.graph(operands["y"])), operands


@pytest.mark.parametrize("name", GRADIENT_CHAINS)
def test_a_chain_uses_all_of_its_results(operands: tuple[StepBuilder, dict[str, int]], name: str) -> None:
    builder, given = operands
    result = run_chain(builder, name, given, like=given["x"])
    assert len(builder.nodes) == len(GRADIENT_CHAINS[name])
    assert builder.nodes[-1].outputs == (result,)
    read = {index for node in builder.nodes for index in node.inputs}
    assert all(node.outputs[0] in read for node in builder.nodes[:-1])
    assert given["g"] in read
    assert {node.source_op for node in builder.nodes} == {f"{name}_backward"}
    # What the steps write stays until the last of them, or of their statement.
    ends = list(builder.chain_ends.values())
    has_statements = name in {"logcumsumexp", "binary_cross_entropy_with_logits"}
    assert has_statements or set(ends) == {len(builder.nodes) - 1}
    assert ends == sorted(ends)
    assert list(builder.chain_ends) == list(range(len(builder.nodes)))


@pytest.mark.parametrize("name", OPERAND_CHAINS)
def test_a_chain_of_one_of_several_inputs_uses_all_of_its_results(
    operands: tuple[StepBuilder, dict[str, int]], name: str
) -> None:
    builder, given = operands
    for position, steps in OPERAND_CHAINS[name].items():
        before = len(builder.nodes)
        result = run_operand_chains(builder, name, given, [position])[position]
        nodes = builder.nodes[before:]
        assert len(nodes) == len(steps)
        read = {index for node in nodes for index in node.inputs}
        assert all(node.outputs[0] in read for node in nodes[:-1])
        assert builder.shape(result) == builder.shape(given["g"])
        assert given["g"] in read or result == given["g"] or nodes[-1].kind is OpKind.FILL


def test_the_gradient_of_a_maximum_by_hand(operands: tuple[StepBuilder, dict[str, int]]) -> None:
    builder, given = operands
    result = run_operand_chains(builder, "maximum", given, [0])[0]
    half, is_equal, shared, is_less, masked = builder.nodes
    assert (half.kind, half.inputs) == (OpKind.DIV, (given["g"],))
    assert is_equal.inputs == is_less.inputs == (given["x"], given["b"])
    assert shared.inputs == (is_equal.outputs[0], half.outputs[0], given["g"])
    # Written over what it masks.
    assert masked.inputs == (shared.outputs[0], is_less.outputs[0])
    assert builder.base(result) == shared.outputs[0]


def test_steps_of_small_operands_alone_are_small(operands: tuple[StepBuilder, dict[str, int]]) -> None:
    builder, given = operands
    row = builder.new_tensor(builder.shape(given["x"])[1:], DType.FLOAT16)
    run_operand_chains(builder, "pow", {**given, "b": row}, [0])
    shapes = [builder.shape(node.outputs[0]) for node in builder.nodes]
    small, large = builder.shape(row), builder.shape(given["g"])
    assert shapes == [small, large, large, large, small, large]


def test_the_gradient_of_a_square_root_by_hand(operands: tuple[StepBuilder, dict[str, int]]) -> None:
    builder, given = operands
    result = run_chain(builder, "sqrt", given, like=given["x"])
    doubled, quotient = builder.nodes  # g / (2 y)
    assert (doubled.kind, doubled.inputs) == (OpKind.MUL, (given["y"],))
    assert (quotient.kind, quotient.inputs) == (OpKind.DIV, (given["g"], doubled.outputs[0]))
    assert builder.tensors[result].shape == builder.tensors[given["x"]].shape
    assert builder.tensors[result].dtype is DType.FLOAT16


def test_comparisons_write_booleans(operands: tuple[StepBuilder, dict[str, int]]) -> None:
    builder, given = operands
    run_chain(builder, "clamp", given, like=given["x"])
    assert [builder.dtype(node.outputs[0]) for node in builder.nodes] == [DType.BOOL, DType.BOOL, DType.FLOAT16]
