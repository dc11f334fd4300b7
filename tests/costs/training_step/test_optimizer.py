"""The update: its state, its temporaries and its order."""

from __future__ import annotations

import pytest

import dippm
from dippm.costs import Workload
from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.errors import UnsupportedError
from dippm.graph import DType, OpKind, TensorRole

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
        (Optimizer.ADAMW_FUSED, ["adamw"], 2),
        (Optimizer.RMSPROP, ["mul", "addcmul", "sqrt", "add", "addcdiv"], 1),
    ],
)
def test_the_kernels_of_an_update(network, train, optimizer, functions, states):
    training = train(network(), optimizer=optimizer)
    nodes = [node for node, phase in zip(training.graph.nodes, training.phase, strict=True) if phase == Phase.OPTIMIZER]
    assert [node.attributes["function"] for node in nodes] == functions
    assert all(node.kind is OpKind.OPTIMIZER for node in nodes)
    # One kernel over all parameters, whatever their number; a fused one updates the averages as well.
    lists = 3 if optimizer is Optimizer.ADAMW_FUSED else 1
    assert {node.attributes["updated"] for node in nodes} <= {0, lists * len(training.trained)}
    held = [tensor for tensor in training.graph.tensors if tensor.role is TensorRole.OPTIMIZER_STATE]
    assert len(held) == states * len(training.trained)


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (Optimizer.SGD, {"aten._foreach_add"}),
        (Optimizer.ADAMW_FUSED, {"aten._fused_adamw"}),
        (
            Optimizer.ADAMW_8BIT,
            {"bitsandbytes.optimizer_update_8bit_blockwise", "bitsandbytes.optimizer_update_32bit"},
        ),
    ],
)
def test_kernels_have_the_names_of_what_runs(builder, train, optimizer, names):
    n = builder.N
    y = builder.node(OpKind.LINEAR, [builder.input(n, 100), builder.weight(50, 100), builder.weight(50)], n, 50)
    training = train(builder.graph(y), optimizer=optimizer)
    phases = zip(training.graph.nodes, training.phase, strict=True)
    assert {node.source_op for node, phase in phases if phase == Phase.OPTIMIZER} == names


def test_averages_of_8_bits(builder, train, live):
    n = builder.N
    y = builder.node(OpKind.LINEAR, [builder.input(n, 100), builder.weight(50, 100), builder.weight(50)], n, 50)
    graph = builder.graph(y)
    training = train(graph, optimizer=Optimizer.ADAMW_8BIT)
    nodes = [node for node, phase in zip(training.graph.nodes, training.phase, strict=True) if phase == Phase.OPTIMIZER]
    # The weight with its averages and their scales; the bias is too small for 8 bits.
    assert [(len(node.inputs), node.attributes["updated"]) for node in nodes] == [(6, 5), (4, 3)]
    # Two averages of 5,000 bytes with scales for 20 blocks of 256, two of 50 numbers in FP32.
    assert live(training, 8).state_bytes[0] == 2 * (5000 + 20 * 4) + 2 * 50 * 4
    # Each byte of an average is read and written, as the weight is; the gradient is read.
    at = Workload.from_graph(training.graph, training.precision).at([8])
    (position,) = (place for place, node in enumerate(training.graph.nodes) if node is nodes[0])
    averages = 2 * (5000 + 20 * 4)
    assert at.bytes_read[0, position] == averages + 2 * 20_000
    assert at.bytes_written[0, position] == averages + 20_000


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix(builder, train, live):
    n = builder.N
    y = builder.node(OpKind.LINEAR, [builder.input(n, 100), builder.weight(50, 100), builder.weight(50)], n, 50)
    training = train(builder.graph(y), optimizer=Optimizer.ADAFACTOR)
    memory = live(training, 1)
    assert memory.state_bytes[0] == 4 * (50 + 100 + 50)
    # While it updates, a temporary tensor is as large as the parameter.
    assert training.phase[memory.peak_node[0]] == Phase.OPTIMIZER
    weights = 4 * (5000 + 50)
    assert 2 * weights + 800 + 20_000 <= memory.peak_bytes[0] <= 2 * weights + 800 + 20_000 + 1000
    assert live(train(builder.graph(y), optimizer=Optimizer.ADAM), 1).peak_bytes[0] > memory.peak_bytes[0]


def test_adafactor_takes_one_parameter_at_a_time(builder, train, live):
    n, x = builder.N, builder.input(builder.N, 256)
    for _ in range(4):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(256, 256)], n, 256)
    memory = live(train(builder.graph(x), optimizer=Optimizer.ADAFACTOR), 1)
    # Weights, gradients and one more of their size, whatever their number.
    assert memory.peak_bytes[0] == pytest.approx((4 + 4 + 1) * 256 * 256 * 4, rel=0.02)


@pytest.mark.parametrize("batch", [2, 64])
def test_the_peak_of_adafactor_is_what_pytorch_tracks(batch: int, live) -> None:
    """It reads norms on the host, so that it needs real tensors."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.distributed._tools.mem_tracker import MemTracker

    from dippm.measuring.training import Loss

    module = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 100),
    )  # fmt: skip
    step = make_training_graph(
        dippm.load(module, input="3,16,16", mode="training"), TrainingSettings(optimizer=Optimizer.ADAFACTOR)
    )
    images = torch.zeros(batch, 3, 16, 16)
    updater = torch.optim.Adafactor(module.parameters())
    loss_of, tracker = Loss(), MemTracker()
    tracker.track_external(module, updater, images)
    with tracker:
        for _ in range(2):
            loss_of(module(images)).backward()
            tracker.reset_mod_stats()
            updater.step()
            updater.zero_grad(set_to_none=True)
    (parts,) = tracker.get_tracker_snapshot("peak").values()
    assert live(step, batch).peak_bytes[0] == pytest.approx(parts["Total"], rel=2e-3)


@pytest.fixture
def spectral(builder):
    """A product with complex weights, four of them, and a real one."""
    n, x = builder.N, builder.node(OpKind.LINEAR, [builder.input(builder.N, 8), builder.weight(8, 8)], builder.N, 8)
    x = builder.node(OpKind.FFT, [x], n, 8, dtype=DType.COMPLEX64)
    for _ in range(4):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8, dtype=DType.COMPLEX64)], n, 8, dtype=DType.COMPLEX64)
    return builder.graph(x)


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW_FUSED, Optimizer.ADAMW_8BIT, Optimizer.ADAFACTOR])
def test_complex_parameters_are_refused_where_the_optimizer_does(spectral, train, optimizer):
    with pytest.raises(UnsupportedError) as caught:
        train(spectral, optimizer=optimizer)
    assert caught.value.code == "optimizer.complex"
    assert str(caught.value).startswith(f"{optimizer.value} trains no complex parameters. '{spectral.source}' has '")
    assert "(complex64), 1 more." in str(caught.value)
    assert caught.value.cure == "Use sgd, momentum, adam, adamw or rmsprop."


@pytest.mark.parametrize(
    "optimizer",
    [Optimizer.SGD, Optimizer.MOMENTUM, Optimizer.ADAM, Optimizer.ADAMW, Optimizer.RMSPROP, Optimizer.NONE],
)
def test_complex_parameters_are_trained_by_the_others(spectral, train, optimizer):
    assert len(train(spectral, optimizer=optimizer).trained) == 5


def test_complex_parameters_that_are_not_trained_stay_where_they_are(builder, train):
    n = builder.N
    builder.weight(8, 8, dtype=DType.COMPLEX64)
    y = builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(8, 8)], n, 8)
    assert len(train(builder.graph(y), optimizer=Optimizer.ADAFACTOR).trained) == 1
