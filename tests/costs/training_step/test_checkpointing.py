"""Which nodes are computed again, and what that saves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.costs import Workload
from dippm.costs.training_step.checkpointing import AUTOGRAD_FUNCTION
from dippm.costs.training_step.training_graph import Phase
from dippm.errors import UnsupportedError
from dippm.graph import OpKind, TensorRole


def test_checkpointing_computes_each_block_again(blocks, train, kinds, live):
    graph = blocks()
    plain, checkpointed = (train(graph, is_checkpointed=value) for value in (False, True))
    assert kinds(plain, Phase.BACKWARD).count(OpKind.GELU) == 0
    assert kinds(checkpointed, Phase.BACKWARD).count(OpKind.GELU) == 4
    works = [Workload.from_graph(training.graph).at([1024]).macs.sum() for training in (plain, checkpointed)]
    assert works[1] - works[0] == 4 * 2 * 1024 * 256 * 256
    # Each block keeps what flows into it instead of its three results.
    peaks = [live(training, 1024) for training in (plain, checkpointed)]
    assert peaks[1].activation_bytes[0] < 0.65 * peaks[0].activation_bytes[0]
    gradients = [
        sum(t.role is TensorRole.GRADIENT for t in training.graph.tensors) for training in (plain, checkpointed)
    ]
    assert gradients == [9, 9]


def test_checkpointing_needs_numbered_blocks(network, train):
    with pytest.raises(UnsupportedError) as caught:
        train(network(), is_checkpointed=True)
    assert caught.value.code == "training.no_blocks"


def test_a_single_layer_is_no_block(blocks, train, kinds):
    graph = blocks()
    flat = replace(graph, nodes=tuple(replace(n, scope=f"features.{i}") for i, n in enumerate(graph.nodes)))
    with pytest.raises(UnsupportedError):
        train(flat, is_checkpointed=True)
    whole = replace(graph, nodes=tuple(replace(n, scope=f"0.{n.scope}") for n in graph.nodes))
    assert kinds(train(whole, is_checkpointed=True), Phase.BACKWARD).count(OpKind.GELU) == 4


def test_a_function_that_keeps_its_argument_is_computed_again(builder, train, kinds, live):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 256), builder.weight(256, 256)], n, 256)
    first = len(builder.nodes)
    y = builder.node(OpKind.TANH, [x], n, 256)
    y = builder.node(OpKind.MUL, [y, y], n, 256)
    y = builder.node(OpKind.MUL, [y, x], n, 256)
    builder.node(OpKind.LINEAR, [y, builder.weight(10, 256)], n, 10)
    plain = builder.graph()
    function = replace(
        plain,
        nodes=tuple(
            replace(node, attributes={**node.attributes, AUTOGRAD_FUNCTION: "gate_1"})
            if first <= place < first + 3
            else node
            for place, node in enumerate(plain.nodes)
        ),
    )
    again, once = train(function), train(plain)
    assert kinds(again, Phase.BACKWARD).count(OpKind.TANH) == 1
    assert kinds(once, Phase.BACKWARD).count(OpKind.TANH) == 0
    at_loss = [
        live(training, 64).live_bytes[0, max(np.flatnonzero(training.phase == Phase.FORWARD))]
        for training in (once, again)
    ]
    # What lies between the argument and the result is gone when the loss is taken.
    assert at_loss[0] - at_loss[1] == 2 * 64 * 256 * 4
