"""Gradients of several operators: what each reads, and how long what they write stays."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.training_step.gradient_chains import GRADIENT_CHAINS, run_chain
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.graph import DType, OpKind


@pytest.fixture(name="operands")
def _operands(builder: Any) -> tuple[StepBuilder, dict[str, int]]:
    n = builder.N
    operands = {letter: builder.input(n, 8, dtype=DType.FLOAT16) for letter in "gxyb"}
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
    # What the steps write stays until the last of them.
    assert set(builder.chain_ends.values()) == {len(builder.nodes) - 1}
    assert list(builder.chain_ends) == list(range(len(builder.nodes)))


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
