"""The update: its state, its temporaries and its order."""

from __future__ import annotations

import pytest

from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.training_graph import Phase
from dippm.graph import OpKind, TensorRole

_MIB = 2**20


def test_state_is_taken_in_the_first_step_and_there_throughout_the_second(network, train, live):
    graph = network()
    weights = 4 * graph.parameter_count
    plain = live(train(graph, optimizer=Optimizer.SGD), 8)
    adam = live(train(graph, optimizer=Optimizer.ADAM), 8)
    assert plain.state_bytes[0] == 0
    assert adam.state_bytes[0] == 2 * weights
    assert adam.peak_bytes[0] == plain.peak_bytes[0] + 2 * weights


def test_with_few_activations_the_update_is_the_peak(builder, train, live):
    n = builder.N
    y = builder.node(OpKind.LINEAR, [builder.input(n, 1024), builder.weight(1024, 1024)], n, 1024)
    training = train(builder.graph(y), optimizer=Optimizer.ADAMW)
    memory = live(training, 1)
    # Weights, gradients, two averages, and the roots of one of them.
    assert memory.peak_bytes[0] == pytest.approx(5 * 4 * _MIB, rel=0.01)
    assert training.phase[memory.peak_node[0]] == Phase.OPTIMIZER


@pytest.mark.parametrize(
    ("optimizer", "functions", "states"),
    [
        (Optimizer.SGD, ["add"], 0),
        (Optimizer.MOMENTUM, ["mul", "add", "add"], 1),
        (Optimizer.ADAM, ["lerp", "mul", "addcmul", "sqrt", "div", "add", "addcdiv"], 2),
        (Optimizer.NONE, [], 0),
        (Optimizer.ADAMW, ["mul", "lerp", "mul", "addcmul", "sqrt", "div", "add", "addcdiv"], 2),
    ],
)
def test_the_kernels_of_an_update(network, train, optimizer, functions, states):
    training = train(network(), optimizer=optimizer)
    nodes = [node for node, phase in zip(training.graph.nodes, training.phase, strict=True) if phase == Phase.OPTIMIZER]
    assert [node.attributes["function"] for node in nodes] == functions
    assert all(node.kind is OpKind.OPTIMIZER for node in nodes)
    # One kernel over all parameters, whatever their number.
    assert {node.attributes["updated"] for node in nodes} <= {0, len(training.trained)}
    held = [tensor for tensor in training.graph.tensors if tensor.role is TensorRole.OPTIMIZER_STATE]
    assert len(held) == states * len(training.trained)
