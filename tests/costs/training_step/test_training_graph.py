"""The mirror of a forward graph, checked on graphs small enough to write down what must come out."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs import MemoryTimeline, Precision, Workload, live_memory
from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.training_graph import Phase
from dippm.errors import UnsupportedError
from dippm.graph import OpKind, TensorRole


def test_every_parameter_has_a_gradient_of_its_own_size(network, train):
    graph = network(layers=3)
    tensors = train(graph, optimizer=Optimizer.ADAM).graph.tensors
    sizes = sorted(tensor.shape for tensor in tensors if tensor.role is TensorRole.PARAMETER)
    assert sorted(tensor.shape for tensor in tensors if tensor.role is TensorRole.GRADIENT) == sizes
    assert sorted(tensor.shape for tensor in tensors if tensor.role is TensorRole.OPTIMIZER_STATE) == sorted(sizes * 2)


def test_forward_and_backward_products_count_three_times_the_multiply_accumulates(network, train):
    graph = network(layers=2)
    training = train(graph)
    forward = Workload.from_graph(graph).at([4])
    step = Workload.from_graph(training.graph, training.precision).at([4])
    first = forward.macs[0, 0]
    # The first convolution's input is an image, which needs no gradient.
    assert step.macs.sum() == 3 * forward.macs.sum() - first


def test_a_saved_activation_lives_until_its_gradient_is_computed(network, train):
    training = train(network())
    nodes = training.graph.nodes
    convolved = nodes[0].outputs[0]
    (norm_grad,) = (node for node in nodes if node.kind is OpKind.NORM_GRAD)
    assert convolved in norm_grad.inputs
    assert convolved in norm_grad.releases


def test_a_tensor_that_no_gradient_reads_is_released_in_the_forward_pass(builder, train):
    n = builder.N
    x = builder.input(n, 16)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(16, 16)], n, 16)
    total = builder.node(OpKind.ADD, [x, builder.weight(16)], n, 16)
    y = builder.node(OpKind.RELU, [total], n, 16)
    nodes = train(builder.graph(y)).graph.nodes
    assert x in nodes[1].releases
    assert total in nodes[2].releases


def test_peak_of_one_layer_by_hand(builder, train, live):
    n = builder.N
    x = builder.input(n, 256)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(128, 256)], n, 128)
    memory = live(train(builder.graph(y), optimizer=Optimizer.SGD), 1024)
    image, logits, weight = 1024 * 256 * 4, 1024 * 128 * 4, 128 * 256 * 4
    labels, scalar = 1024 * 8, 4
    # While log-softmax is differentiated: its result, its gradient and what it makes, all of the logits' size; the
    # logits themselves went when the loss was there.
    assert memory.peak_bytes[0] == image + labels + weight + 3 * logits
    assert memory.weight_bytes[0] == weight
    assert memory.gradient_bytes[0] == 0
    assert scalar < memory.activation_bytes[0]


def test_a_model_without_weights_is_refused(builder, train):
    graph = builder.graph(builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4))
    with pytest.raises(UnsupportedError, match="no weights") as caught:
        train(graph)
    assert caught.value.code == "training.nothing_to_train"


def test_an_output_that_depends_on_no_weight_is_refused(builder, train):
    x = builder.input(builder.N, 4)
    builder.node(OpKind.LINEAR, [x, builder.weight(4, 4)], builder.N, 4)
    with pytest.raises(UnsupportedError) as caught:
        train(builder.graph(builder.node(OpKind.RELU, [x], builder.N, 4)))
    assert caught.value.code == "training.no_loss"


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_more_samples_never_need_less(precision, optimizer, network, train):
    training = train(network(), precision=precision, optimizer=optimizer)
    timeline = MemoryTimeline.from_workload(Workload.from_graph(training.graph, training.precision))
    assert (np.diff(live_memory(timeline, [1, 2, 4, 64]).peak_bytes) >= 0).all()


def test_accumulation_holds_all_gradients_from_the_start_and_repeats_the_passes(blocks, train, live):
    graph = blocks()
    plain, accumulated = (train(graph, accumulation=count) for count in (1, 4))
    weights = 4 * graph.parameter_count
    before = live(plain, 1024), live(accumulated, 1024)
    assert before[1].gradient_bytes[0] == weights
    assert before[1].peak_bytes[0] <= before[0].peak_bytes[0] + weights
    macs = [Workload.from_graph(each.graph).at([1024]).macs[0] @ each.times for each in (plain, accumulated)]
    assert macs[1] == 4 * macs[0]


def test_the_first_of_several_passes_hands_its_gradients_over(blocks, train):
    training = train(blocks(), accumulation=4)
    times = {
        node.source_op or node.kind.value: time for node, time in zip(training.graph.nodes, training.times, strict=True)
    }
    assert times["fill"] == 4.0  # the loss's own, the last of its kind
    assert times["accumulate"] == 3.0
    assert training.graph.nodes[0].kind is OpKind.FILL
    assert training.times[0] == 0.0
    adds = [node.source_op for node, adds in zip(training.graph.nodes, training.accumulates, strict=True) if adds]
    assert set(adds) == {"accumulate"}
    assert len(adds) == len(training.trained)
    assert not train(blocks()).accumulates.any()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_heads_beside_the_first_output_are_trained(builder, train, accumulation):
    n = builder.N
    hidden = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    heads = [builder.node(OpKind.LINEAR, [hidden, builder.weight(width, 16)], n, width) for width in (10, 512)]
    unused = builder.weight(32, 32)
    graph = builder.graph(*heads)
    training = train(graph, accumulation=accumulation)
    trained = {index for index, tensor in enumerate(graph.tensors) if tensor.role is TensorRole.PARAMETER} - {unused}
    assert set(training.trained) == trained
    assert training.untrained == (unused,)


def test_weights_that_get_no_gradient_get_none_by_accumulation(builder, train):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 16)], n, 8)
    graph = builder.graph(x)
    for accumulation in (1, 2):
        tensors = train(graph, accumulation=accumulation, optimizer=Optimizer.ADAM).graph.tensors
        assert sum(tensor.role is TensorRole.OPTIMIZER_STATE for tensor in tensors) == 2


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
def test_gradients_that_are_kept_are_there_throughout_the_second_step(builder, optimizer, train, live):
    n = builder.N
    x = builder.input(n, 1000)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1000, 1000)], n, 1000)
        x = builder.node(OpKind.GELU, [x], n, 1000)
    graph = builder.graph(x)
    batch, weights = 64, 3 * 1000 * 1000 * 4
    released, kept = (live(train(graph, optimizer=optimizer, keeps_gradients=keeps), batch) for keeps in (False, True))
    # In the forward pass all three are held on top; when the last weight is updated they are there in any case.
    assert kept.live_bytes[0, 0] - released.live_bytes[0, 0] == weights
    assert kept.live_bytes[0, -1] == released.live_bytes[0, -1]
    assert kept.peak_bytes[0] >= released.peak_bytes[0]
    assert kept.gradient_bytes[0] == weights


def test_kept_gradients_change_nothing_but_memory(network, train, kinds):
    graph = network()
    released, kept = (train(graph, keeps_gradients=keeps) for keeps in (False, True))
    assert kinds(released, Phase.BACKWARD) == kinds(kept, Phase.BACKWARD)
    assert len(released.graph.tensors) == len(kept.graph.tensors)
