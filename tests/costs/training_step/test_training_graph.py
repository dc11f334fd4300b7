"""The mirror of a forward graph, checked on graphs small enough to write down what must come out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.costs import MemoryTimeline, Precision, Workload, live_memory
from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.errors import UnsupportedError
from dippm.graph import DType, OpKind, TensorRole

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}
_MIB = 2**20


def _network(builder, *, layers=1):
    """Convolution, batch norm, ReLU, as often as asked for; global mean; linear layer."""
    n = builder.N
    x = builder.input(n, 16, 32, 32)
    for _ in range(layers):
        x = builder.node(OpKind.CONV, [x, builder.weight(16, 16, 3, 3)], n, 16, 32, 32, **_CONV)
        scale, shift = builder.weight(16), builder.weight(16)
        x = builder.node(OpKind.BATCH_NORM, [x, scale, shift], n, 16, 32, 32, axes_size=16)
        x = builder.node(OpKind.RELU, [x], n, 16, 32, 32)
    x = builder.node(OpKind.REDUCE, [x], n, 16, function="mean", axes=(2, 3))
    x = builder.node(OpKind.LINEAR, [x, builder.weight(10, 16), builder.weight(10)], n, 10)
    return builder.graph(x)


def _train(graph, **settings):
    return make_training_graph(graph, TrainingSettings(**settings))


def _kinds(training, phase):
    return [node.kind for node, of in zip(training.graph.nodes, training.phase, strict=True) if of == phase]


def _live(training, batch):
    timeline = MemoryTimeline.from_workload(Workload.from_graph(training.graph, training.precision))
    return live_memory(timeline, [batch])


def test_the_backward_pass_is_the_forward_pass_in_reverse(builder):
    training = _train(_network(builder))
    assert _kinds(training, Phase.BACKWARD) == [
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


def test_every_parameter_has_a_gradient_of_its_own_size(builder):
    graph = _network(builder, layers=3)
    tensors = _train(graph, optimizer=Optimizer.ADAM).graph.tensors
    sizes = sorted(tensor.shape for tensor in tensors if tensor.role is TensorRole.PARAMETER)
    assert sorted(tensor.shape for tensor in tensors if tensor.role is TensorRole.GRADIENT) == sizes
    assert sorted(tensor.shape for tensor in tensors if tensor.role is TensorRole.OPTIMIZER_STATE) == sorted(sizes * 2)


def test_forward_and_backward_products_count_three_times_the_multiply_accumulates(builder):
    graph = _network(builder, layers=2)
    training = _train(graph)
    forward = Workload.from_graph(graph).at([4])
    step = Workload.from_graph(training.graph, training.precision).at([4])
    first = forward.macs[0, 0]
    # The first convolution's input is an image, which needs no gradient.
    assert step.macs.sum() == 3 * forward.macs.sum() - first


def test_a_saved_activation_lives_until_its_gradient_is_computed(builder):
    training = _train(_network(builder))
    nodes = training.graph.nodes
    convolved = nodes[0].outputs[0]
    (norm_grad,) = (node for node in nodes if node.kind is OpKind.NORM_GRAD)
    assert convolved in norm_grad.inputs
    assert convolved in norm_grad.releases


def test_a_tensor_that_no_gradient_reads_is_released_in_the_forward_pass(builder):
    n = builder.N
    x = builder.input(n, 16)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(16, 16)], n, 16)
    total = builder.node(OpKind.ADD, [x, builder.weight(16)], n, 16)
    y = builder.node(OpKind.RELU, [total], n, 16)
    nodes = _train(builder.graph(y)).graph.nodes
    assert x in nodes[1].releases
    assert total in nodes[2].releases


def test_peak_of_one_layer_by_hand(builder):
    n = builder.N
    x = builder.input(n, 256)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(128, 256)], n, 128)
    live = _live(_train(builder.graph(y), optimizer=Optimizer.SGD), 1024)
    image, logits, weight = 1024 * 256 * 4, 1024 * 128 * 4, 128 * 256 * 4
    labels, scalar = 1024 * 8, 4
    # While log-softmax is differentiated: its result, its gradient and what it makes, all of the logits' size; the
    # logits themselves went when the loss was there.
    assert live.peak_bytes[0] == image + labels + weight + 3 * logits
    assert live.weight_bytes[0] == weight
    assert live.gradient_bytes[0] == 0
    assert scalar < live.activation_bytes[0]


def test_a_gradient_of_two_consumers_is_added_in_place(builder):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(16, 16)], n, 16)
    z = builder.node(OpKind.ADD, [x, y], n, 16)
    training = _train(builder.graph(z))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of == added.inputs[0]


def test_twice_the_same_gradient_is_added_out_of_place(builder):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    z = builder.node(OpKind.ADD, [x, x], n, 16)
    training = _train(builder.graph(z))
    (added,) = (node for node in training.graph.nodes if node.source_op == "accumulate")
    assert training.graph.tensors[added.outputs[0]].alias_of is None


def test_state_is_taken_in_the_first_step_and_there_throughout_the_second(builder):
    graph = _network(builder)
    weights = 4 * graph.parameter_count
    plain = _live(_train(graph, optimizer=Optimizer.SGD), 8)
    adam = _live(_train(graph, optimizer=Optimizer.ADAM), 8)
    assert plain.state_bytes[0] == 0
    assert adam.state_bytes[0] == 2 * weights
    assert adam.peak_bytes[0] == plain.peak_bytes[0] + 2 * weights


def test_with_few_activations_the_update_is_the_peak(builder):
    n = builder.N
    y = builder.node(OpKind.LINEAR, [builder.input(n, 1024), builder.weight(1024, 1024)], n, 1024)
    training = _train(builder.graph(y), optimizer=Optimizer.ADAMW)
    live = _live(training, 1)
    # Weights, gradients, two averages, and the roots of one of them.
    assert live.peak_bytes[0] == pytest.approx(5 * 4 * _MIB, rel=0.01)
    assert training.phase[live.peak_node[0]] == Phase.OPTIMIZER


def test_autocast_keeps_half_precision_copies_for_the_backward_pass(builder):
    training = _train(_network(builder), precision=Precision.AMP)
    tensors, nodes = training.graph.tensors, training.graph.nodes
    (weight_gradient,) = (node for node in nodes if node.kind is OpKind.CONV_WEIGHT_GRAD)
    assert {tensors[index].dtype for index in (*weight_gradient.inputs, *weight_gradient.outputs)} == {DType.FLOAT16}
    assert {tensor.dtype for tensor in tensors if tensor.role is TensorRole.GRADIENT} == {DType.FLOAT32}
    (norm,) = (node for node in nodes if node.kind is OpKind.BATCH_NORM)
    assert [tensors[index].dtype for index in norm.outputs] == [DType.FLOAT16, DType.FLOAT32, DType.FLOAT32]


@pytest.mark.parametrize(("kind", "copies"), [(OpKind.SILU, 1), (OpKind.RELU, 0)])
def test_an_in_place_activation_that_needs_its_input_keeps_a_copy(builder, kind, copies):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    graph = builder.graph(builder.node(kind, [x], n, 16, alias_of=x))
    assert _kinds(_train(graph), Phase.FORWARD).count(OpKind.COPY) == copies


def test_a_model_without_weights_is_refused(builder):
    graph = builder.graph(builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4))
    with pytest.raises(UnsupportedError, match="no weights") as caught:
        _train(graph)
    assert caught.value.code == "training.nothing_to_train"


def test_an_output_that_depends_on_no_weight_is_refused(builder):
    x = builder.input(builder.N, 4)
    builder.node(OpKind.LINEAR, [x, builder.weight(4, 4)], builder.N, 4)
    with pytest.raises(UnsupportedError) as caught:
        _train(builder.graph(builder.node(OpKind.RELU, [x], builder.N, 4)))
    assert caught.value.code == "training.no_loss"


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_more_samples_never_need_less(builder, precision, optimizer):
    training = _train(_network(builder), precision=precision, optimizer=optimizer)
    timeline = MemoryTimeline.from_workload(Workload.from_graph(training.graph, training.precision))
    assert (np.diff(live_memory(timeline, [1, 2, 4, 64]).peak_bytes) >= 0).all()


def _blocks(builder, count=4):
    """Linear layers and GELUs in numbered modules, with a residual around each."""
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(256, 64)], n, 256)
    first = len(builder.nodes)
    scopes = []
    for block in range(count):
        y = builder.node(OpKind.LINEAR, [x, builder.weight(256, 256)], n, 256)
        y = builder.node(OpKind.GELU, [y], n, 256)
        y = builder.node(OpKind.LINEAR, [y, builder.weight(256, 256)], n, 256)
        x = builder.node(OpKind.ADD, [x, y], n, 256)
        scopes += [f"blocks.{block}.mlp"] * 4
    for position, scope in enumerate(scopes):
        builder.nodes[first + position] = replace(builder.nodes[first + position], scope=scope)
    return builder.graph(x)


def test_checkpointing_computes_each_block_again(builder):
    graph = _blocks(builder)
    plain, checkpointed = (_train(graph, is_checkpointed=value) for value in (False, True))
    assert _kinds(plain, Phase.BACKWARD).count(OpKind.GELU) == 0
    assert _kinds(checkpointed, Phase.BACKWARD).count(OpKind.GELU) == 4
    works = [Workload.from_graph(training.graph).at([1024]).macs.sum() for training in (plain, checkpointed)]
    assert works[1] - works[0] == 4 * 2 * 1024 * 256 * 256
    # Each block keeps what flows into it instead of its three results.
    peaks = [_live(training, 1024) for training in (plain, checkpointed)]
    assert peaks[1].activation_bytes[0] < 0.65 * peaks[0].activation_bytes[0]
    gradients = [
        sum(t.role is TensorRole.GRADIENT for t in training.graph.tensors) for training in (plain, checkpointed)
    ]
    assert gradients == [9, 9]


def test_checkpointing_needs_numbered_blocks(builder):
    with pytest.raises(UnsupportedError) as caught:
        _train(_network(builder), is_checkpointed=True)
    assert caught.value.code == "training.no_blocks"


def test_accumulation_holds_all_gradients_from_the_start_and_repeats_the_passes(builder):
    graph = _blocks(builder)
    plain, accumulated = (_train(graph, accumulation=count) for count in (1, 4))
    weights = 4 * graph.parameter_count
    before = _live(plain, 1024), _live(accumulated, 1024)
    assert before[1].gradient_bytes[0] == weights
    assert before[1].peak_bytes[0] <= before[0].peak_bytes[0] + weights
    macs = [Workload.from_graph(each.graph).at([1024]).macs[0] @ each.times for each in (plain, accumulated)]
    assert macs[1] == 4 * macs[0]


def test_the_first_of_several_passes_hands_its_gradients_over(builder):
    training = _train(_blocks(builder), accumulation=4)
    times = {
        node.source_op or node.kind.value: time for node, time in zip(training.graph.nodes, training.times, strict=True)
    }
    assert times["fill"] == 4.0  # the loss's own, the last of its kind
    assert times["accumulate"] == 3.0
    assert training.graph.nodes[0].kind is OpKind.FILL
    assert training.times[0] == 0.0


def test_weights_that_get_no_gradient_get_none_by_accumulation(builder):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 16)], n, 8)
    graph = builder.graph(x)
    for accumulation in (1, 2):
        tensors = _train(graph, accumulation=accumulation, optimizer=Optimizer.ADAM).graph.tensors
        assert sum(tensor.role is TensorRole.OPTIMIZER_STATE for tensor in tensors) == 2


def test_a_single_layer_is_no_block(builder):
    graph = _blocks(builder)
    flat = replace(graph, nodes=tuple(replace(n, scope=f"features.{i}") for i, n in enumerate(graph.nodes)))
    with pytest.raises(UnsupportedError):
        _train(flat, is_checkpointed=True)
    whole = replace(graph, nodes=tuple(replace(n, scope=f"0.{n.scope}") for n in graph.nodes))
    assert _kinds(_train(whole, is_checkpointed=True), Phase.BACKWARD).count(OpKind.GELU) == 4


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
def test_gradients_that_are_kept_are_there_throughout_the_second_step(builder, optimizer):
    n = builder.N
    x = builder.input(n, 1000)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1000, 1000)], n, 1000)
        x = builder.node(OpKind.GELU, [x], n, 1000)
    graph = builder.graph(x)
    batch, weights = 64, 3 * 1000 * 1000 * 4
    released, kept = (
        _live(_train(graph, optimizer=optimizer, keeps_gradients=keeps), batch) for keeps in (False, True)
    )
    # In the forward pass all three are held on top; when the last weight is updated they are there in any case.
    assert kept.live_bytes[0, 0] - released.live_bytes[0, 0] == weights
    assert kept.live_bytes[0, -1] == released.live_bytes[0, -1]
    assert kept.peak_bytes[0] >= released.peak_bytes[0]
    assert kept.gradient_bytes[0] == weights


def test_kept_gradients_change_nothing_but_memory(builder):
    graph = _network(builder)
    released, kept = (_train(graph, keeps_gradients=keeps) for keeps in (False, True))
    assert _kinds(released, Phase.BACKWARD) == _kinds(kept, Phase.BACKWARD)
    assert len(released.graph.tensors) == len(kept.graph.tensors)
