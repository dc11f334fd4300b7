"""In which order gradients come, and how those of several consumers are added up."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.costs.training_step.training_graph import Phase
from dippm.graph import DType, Node, OpKind


def test_the_backward_pass_is_the_forward_pass_in_reverse(network, train, kinds):
    training = train(network())
    assert kinds(training, Phase.BACKWARD) == [
        OpKind.FILL,
        OpKind.ELEMENTWISE_GRAD,  # of the loss
        OpKind.SOFTMAX_GRAD,
        OpKind.MATMUL,
        OpKind.VIEW,
        OpKind.MATMUL,
        OpKind.REDUCE,  # the bias
        OpKind.VIEW,  # of the mean
        OpKind.ELEMENTWISE_GRAD,
        OpKind.ELEMENTWISE_GRAD,  # of the ReLU
        OpKind.NORM_GRAD,
        OpKind.CONV_WEIGHT_GRAD,  # and none for the image
    ]
    twins = training.twin[training.phase == Phase.BACKWARD]
    assert (np.diff(twins[1:]) <= 0).all()
    assert {training.graph.nodes[int(twin)].kind for twin in twins[-1:]} == {OpKind.CONV}


def test_a_gradient_of_two_consumers_is_added_in_place(builder, train):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(16, 16)], n, 16)
    z = builder.node(OpKind.ADD, [x, y], n, 16)
    training = train(builder.graph(z))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of == added.inputs[0]


@pytest.mark.parametrize("rank", [2, 3])
def test_a_gradient_that_came_as_a_view_is_added_out_of_place(builder, train, rank):
    """A product writes a matrix, of which a gradient with more dimensions is a view: its base is held."""
    n, middle = builder.N, (5,) * (rank - 2)
    x = builder.node(OpKind.LINEAR, [builder.input(n, *middle, 16), builder.weight(16, 16)], n, *middle, 16)
    y = builder.node(OpKind.TANH, [x], n, *middle, 16)
    z = builder.node(OpKind.LINEAR, [x, builder.weight(16, 16)], n, *middle, 16)
    training = train(builder.graph(builder.node(OpKind.MUL, [y, z], n, *middle, 16)))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of == (added.inputs[0] if rank == 2 else None)


def test_a_tied_weight_has_both_gradients_and_their_sum_at_once(builder, train, live):
    n, table = builder.N, builder.weight(1000, 16)
    words = builder.input(n, 4, dtype=DType.INT64)
    x = builder.node(OpKind.EMBEDDING, [table, words], n, 4, 16)
    x = builder.node(OpKind.TANH, [x], n, 4, 16)
    training = train(builder.graph(builder.node(OpKind.LINEAR, [x, table], n, 4, 1000)))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of is None
    # The weight and three tensors of its size, the words and the classes.
    assert live(training, 1).peak_bytes.tolist() == [4 * 64_000 + 2 * 32]


def test_twice_the_same_gradient_is_added_out_of_place(builder, train):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    z = builder.node(OpKind.ADD, [x, x], n, 16)
    training = train(builder.graph(z))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of is None


def test_integers_that_are_written_through_a_view_get_no_gradient(builder):
    n = builder.N
    part = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(4, 16)], n, 4)
    whole = builder.node(OpKind.FILL, [], n, 16, dtype=DType.INT64, function="zeros")
    view = builder.node(OpKind.VIEW, [whole], n, 4, dtype=DType.INT64, alias_of=whole, function="slice")
    builder.node(OpKind.COPY, [view, part], n, 4, dtype=DType.INT64, alias_of=whole, function="copy")
    graph = builder.graph()
    gradients = Gradients(StepBuilder(graph), graph.nodes)
    assert gradients.wants(part)
    assert not gradients.wants(whole)


def test_what_is_written_through_a_view_gets_its_part_of_the_gradient(builder, train):
    n = builder.N
    x = builder.input(n, 16)
    weight = builder.weight(4, 16)
    part = builder.node(OpKind.LINEAR, [x, weight], n, 4)
    whole = builder.node(OpKind.FILL, [x], n, 16, function="zeros_like")
    view = builder.node(OpKind.VIEW, [whole], n, 4, alias_of=whole, function="slice")
    builder.node(OpKind.COPY, [view, part], n, 4, alias_of=whole, function="copy")
    head = builder.weight(10, 16)
    training = train(builder.graph(builder.node(OpKind.LINEAR, [whole, head], n, 10)))
    assert training.trained == (weight, head)
    nodes = [
        node
        for node, twin, phase in zip(training.graph.nodes, training.twin, training.phase, strict=True)
        if phase == Phase.BACKWARD and twin == 3
    ]
    # Of a copy, as a slice that was written before has its part of it as well.
    assert [node.kind for node in nodes] == [OpKind.COPY, OpKind.VIEW, OpKind.COPY]
    tensors = training.graph.tensors
    assert [tensors[node.outputs[0]].shape for node in nodes] == [tensors[i].shape for i in (whole, part, part)]
    # The zeros beneath have no gradient to hand on.
    assert not any(twin in (1, 2) for twin in training.twin[training.phase == Phase.BACKWARD])


@pytest.mark.timeout(60)
def test_a_view_of_itself_ends(builder, train):
    x = builder.input(builder.N, 8)
    hidden = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    first = builder.node(OpKind.VIEW, [hidden], builder.N, 8, alias_of=hidden)
    second = builder.node(OpKind.VIEW, [first], builder.N, 8, alias_of=hidden)
    # A file may write what it has read, here a view of its own view.
    builder.nodes.append(Node(kind=OpKind.VIEW, inputs=(second,), outputs=(first,)))
    builder.node(OpKind.RELU, [second], builder.N, 8, alias_of=hidden)
    assert train(builder.graph()).trained == (1,)
