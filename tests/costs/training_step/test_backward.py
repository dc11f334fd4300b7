"""In which order gradients come, and how those of several consumers are added up."""

from __future__ import annotations

import numpy as np

from dippm.costs.training_step.training_graph import Phase
from dippm.graph import OpKind


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


def test_twice_the_same_gradient_is_added_out_of_place(builder, train):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    z = builder.node(OpKind.ADD, [x, x], n, 16)
    training = train(builder.graph(z))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of is None
