"""Which outputs have a loss of their own: those that lead to weights where none before them does."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.costs.training_step.trained_outputs import find_trained_outputs
from dippm.graph import DType, OpKind, TensorRole


def _found(builder: Any, *outputs: int) -> tuple[int, ...]:
    graph = builder.graph(*outputs)
    step = StepBuilder(graph)
    return find_trained_outputs(graph, graph.nodes, outputs, Gradients(step, graph.nodes))


def _layer(builder: Any, x: int, width: int = 8, *, weight: int | None = None, dtype: DType = DType.FLOAT32) -> int:
    weight = builder.weight(width, 8, dtype=dtype) if weight is None else weight
    result: int = builder.node(OpKind.LINEAR, [x, weight], builder.N, width, dtype=dtype)
    return result


def test_heads_beside_the_first_count(builder: Any) -> None:
    hidden = _layer(builder, builder.input(builder.N, 8))
    scores, boxes, more = (_layer(builder, hidden, width) for width in (10, 4, 2))
    assert _found(builder, scores, boxes, more) == (scores, boxes, more)


def test_what_leads_to_the_first_and_what_is_made_of_it_has_no_loss(builder: Any) -> None:
    n = builder.N
    hidden = _layer(builder, builder.input(n, 8))
    copied = builder.node(OpKind.COPY, [hidden], n, 8)
    weights = builder.node(OpKind.SOFTMAX, [hidden], n, 8)
    averaged = builder.node(OpKind.REDUCE, [weights], n, 1, function="mean")
    scores = _layer(builder, weights)
    assert _found(builder, scores, hidden, copied, averaged, weights, scores) == (scores,)
    assert _found(builder, scores) == (scores,)


def test_a_head_counts_once(builder: Any) -> None:
    hidden = _layer(builder, builder.input(builder.N, 8))
    scores, boxes = _layer(builder, hidden), _layer(builder, hidden)
    of_boxes = builder.node(OpKind.SIGMOID, [boxes], builder.N, 8)
    assert _found(builder, scores, of_boxes, boxes) == (scores, of_boxes)
    assert _found(builder, scores, boxes, of_boxes) == (scores, boxes)


@pytest.mark.parametrize("is_cast", [False, True])
def test_steps_of_a_loop_over_one_weight_count_each(builder: Any, is_cast: bool) -> None:
    n, dtype = builder.N, DType.FLOAT16 if is_cast else DType.FLOAT32
    weight = builder.weight(8, 8)
    if is_cast:
        weight = builder.node(OpKind.CAST, [weight], 8, 8, dtype=dtype)
    steps = [builder.input(n, 8, dtype=dtype)]
    for _ in range(3):
        steps.append(_layer(builder, steps[-1], weight=weight, dtype=dtype))
    assert _found(builder, *steps[1:]) == tuple(steps[1:])
    assert _found(builder, *steps[:0:-1]) == (steps[-1],)


def test_a_frozen_head_and_one_that_no_gradient_comes_back_from_do_not_count(builder: Any) -> None:
    n = builder.N
    hidden = _layer(builder, builder.input(n, 8))
    scores = _layer(builder, hidden)
    frozen = _layer(builder, hidden, weight=builder.weight(8, 8, role=TensorRole.BUFFER))
    cut = builder.node(OpKind.COPY, [_layer(builder, hidden)], n, 8, function="detach")
    assert _found(builder, scores, frozen, cut) == (scores,)


def test_what_is_written_through_a_view_leads_to_its_weights(builder: Any) -> None:
    n = builder.N
    hidden = _layer(builder, builder.input(n, 8))
    whole = builder.node(OpKind.RELU, [hidden], n, 16)
    part = builder.node(OpKind.VIEW, [whole], n, 8, alias_of=whole)
    builder.node(OpKind.COPY, [part, _layer(builder, hidden)], n, 8, alias_of=whole)
    scores = _layer(builder, hidden)
    assert _found(builder, scores, whole) == (scores, whole)
