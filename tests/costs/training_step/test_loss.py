"""Cross entropy of what looks like scores of classes, else the mean of squares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.loss import append_loss, start_backward
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.errors import UnsupportedError
from dippm.graph import DType, Node, OpKind, fixed_shape


def _loss(
    builder: Any, *outputs: int, is_autocast: bool = False, is_scored_in_fp32: bool = False
) -> tuple[StepBuilder, Gradients, list[Node]]:
    graph = replace(builder.graph(*outputs), is_scored_in_fp32=is_scored_in_fp32)
    step = StepBuilder(graph)
    for node in graph.nodes:
        step.append(node)
    gradients = Gradients(step, graph.nodes)
    return step, gradients, append_loss(step, graph.outputs, gradients, is_autocast=is_autocast)


def _layer(builder: Any, *shape: int, dtype: DType = DType.FLOAT32) -> int:
    n = builder.N
    x, weight = builder.input(n, *shape, dtype=dtype), builder.weight(shape[-1], shape[-1], dtype=dtype)
    return builder.node(OpKind.LINEAR, [x, weight], n, *shape, dtype=dtype)


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((10,), [OpKind.LOG_SOFTMAX, OpKind.GATHER]),
        ((5, 10), [OpKind.VIEW, OpKind.LOG_SOFTMAX, OpKind.GATHER]),  # of every token
        ((1,), [OpKind.POW, OpKind.REDUCE]),  # a single number is no class
        ((10, 4, 4), [OpKind.POW, OpKind.REDUCE]),
    ],
)
def test_the_shape_of_the_first_output_decides(builder: Any, shape: tuple[int, ...], kinds: list[OpKind]) -> None:
    step, _, nodes = _loss(builder, _layer(builder, *shape))
    assert [node.kind for node in nodes] == kinds
    assert step.shape(nodes[-1].outputs[0]) == ()


def test_scores_are_of_the_classes_of_the_labels(builder: Any) -> None:
    step, _, (logarithms, loss) = _loss(builder, _layer(builder, 10))
    (classes,) = set(loss.inputs) - set(logarithms.outputs)
    assert step.dtype(classes) is DType.INT64
    assert step.shape(classes) == (builder.N,)


def test_every_output_counts_where_they_are_no_scores(builder: Any) -> None:
    _, _, nodes = _loss(builder, _layer(builder, 3, 4, 4), _layer(builder, 6, 2, 2))
    assert [node.kind for node in nodes] == [OpKind.POW, OpKind.REDUCE, OpKind.POW, OpKind.REDUCE, OpKind.ADD]


def test_heads_beside_scores_count_by_their_own_shapes(builder: Any) -> None:
    scores, words, image = _layer(builder, 10), _layer(builder, 5, 10), _layer(builder, 3, 4, 4)
    step, _, nodes = _loss(builder, scores, words, image)
    cross_entropy = [OpKind.LOG_SOFTMAX, OpKind.GATHER]
    assert [node.kind for node in nodes] == [
        *cross_entropy, OpKind.VIEW, *cross_entropy, OpKind.ADD, OpKind.POW, OpKind.REDUCE, OpKind.ADD
    ]  # fmt: skip
    assert step.shape(nodes[-1].outputs[0]) == ()


def test_what_leads_to_the_scores_has_no_loss_of_its_own(builder: Any) -> None:
    hidden = _layer(builder, 10)
    scores = builder.node(OpKind.LINEAR, [hidden, builder.weight(10, 10)], builder.N, 10)
    _, _, nodes = _loss(builder, scores, hidden)
    assert [node.kind for node in nodes] == [OpKind.LOG_SOFTMAX, OpKind.GATHER]


def test_the_first_scores_alone_are_made_fp32(builder: Any) -> None:
    first, second = (_layer(builder, 10, dtype=DType.BFLOAT16) for _ in range(2))
    _, _, nodes = _loss(builder, first, second, is_scored_in_fp32=True)
    assert [node.inputs[0] for node in nodes if node.kind is OpKind.CAST] == [first]


def test_complex_outputs_count_by_their_parts(builder: Any) -> None:
    step, _, nodes = _loss(builder, _layer(builder, 10, dtype=DType.COMPLEX64))
    assert [node.kind for node in nodes] == [OpKind.VIEW, OpKind.POW, OpKind.REDUCE]
    (parts,) = nodes[0].outputs
    assert step.shape(parts) == (builder.N, *fixed_shape(10, 2))
    assert {step.dtype(node.outputs[0]) for node in nodes} == {DType.FLOAT32}


def test_autocast_computes_powers_in_full(builder: Any) -> None:
    image = _layer(builder, 3, 4, 4, dtype=DType.FLOAT16)
    step, _, nodes = _loss(builder, image, is_autocast=True)
    assert [node.kind for node in nodes] == [OpKind.CAST, OpKind.POW, OpKind.REDUCE]
    assert {step.dtype(node.outputs[0]) for node in nodes} == {DType.FLOAT32}
    step, _, nodes = _loss(builder, image)
    assert [node.kind for node in nodes] == [OpKind.POW, OpKind.REDUCE]
    assert {step.dtype(node.outputs[0]) for node in nodes} == {DType.FLOAT16}


@pytest.mark.parametrize(
    ("how", "kinds", "dtypes"),
    [
        ({}, [OpKind.LOG_SOFTMAX, OpKind.GATHER], [DType.BFLOAT16] * 2),
        (
            {"is_autocast": True},
            [OpKind.LOG_SOFTMAX, OpKind.CAST, OpKind.GATHER],
            [DType.BFLOAT16, DType.FLOAT32, DType.FLOAT32],
        ),
        ({"is_scored_in_fp32": True}, [OpKind.CAST, OpKind.LOG_SOFTMAX, OpKind.GATHER], [DType.FLOAT32] * 3),
    ],
)
def test_the_type_of_the_logarithms(builder: Any, how: Any, kinds: list[OpKind], dtypes: list[DType]) -> None:
    step, _, nodes = _loss(builder, _layer(builder, 10, dtype=DType.BFLOAT16), **how)
    assert [node.kind for node in nodes] == kinds
    assert [step.dtype(node.outputs[0]) for node in nodes] == dtypes


def test_outputs_without_weights_are_not_trained_on(builder: Any) -> None:
    given = builder.node(OpKind.RELU, [builder.input(builder.N, 10)], builder.N, 10)
    scores = _layer(builder, 10)
    _, _, nodes = _loss(builder, given, scores)
    assert nodes[0].inputs == (scores,)
    with pytest.raises(UnsupportedError) as caught:
        _loss(builder, given)
    assert caught.value.code == "training.no_loss"


def test_the_backward_pass_begins_with_one(builder: Any) -> None:
    step, gradients, nodes = _loss(builder, _layer(builder, 10))
    gradients.add_wanted(nodes)
    start_backward(step, gradients)
    assert (step.nodes[-1].kind, step.nodes[-1].attributes["function"]) == (OpKind.FILL, "ones")
    assert gradients.take(nodes[-1].outputs) == list(step.nodes[-1].outputs)
