"""What torch.compile makes one kernel of in a training step, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Optimizer
from dippm.costs.live_tensors import live_memory
from dippm.costs.precision import Precision
from dippm.costs.software import Software
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.costs.workload import Workload
from dippm.graph import DType, Node, OpKind

CONV = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
IMAGE = (8, 4, 4)
ELEMENTS = 8 * 4 * 4
PARTS = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.OPTIMIZER: -1}

Train = Callable[..., TrainingGraph]


def conv(builder: Any, x: int) -> int:
    return int(builder.node(OpKind.CONV, [x, builder.weight(8, 8, 1, 1)], builder.N, *IMAGE, **CONV))


def works(step: TrainingGraph) -> tuple[Workload, Workload]:
    """The step eager and compiled."""
    work = Workload.from_graph(step.graph, step.precision)
    return work, work.fused(np.array([PARTS[Phase(phase)] for phase in step.phase]))


def images_moved(step: TrainingGraph, kind: OpKind, phase: Phase) -> list[tuple[int, int]]:
    """Images that the operators of a kind read and write when compiled; what belongs to channels is left out."""
    at = works(step)[1].at([1])
    return [
        (round(at.bytes_read[0, place] / 4 // ELEMENTS), round(at.bytes_written[0, place] / 4 // ELEMENTS))
        for place, node in enumerate(step.graph.nodes)
        if node.kind is kind and step.phase[place] == phase
    ]


def test_a_norm_and_its_rectifier_are_one_kernel_each_way(builder: Any, train: Train) -> None:
    """The norm goes over the convolution twice; backwards also over what gives the gradient that it takes."""
    n = builder.N
    x = conv(builder, builder.input(n, *IMAGE))
    x = builder.node(OpKind.BATCH_NORM, [x, *(builder.weight(8) for _ in range(4))], n, *IMAGE)
    x = builder.node(OpKind.RELU, [x], n, *IMAGE)
    step = train(builder.graph(conv(builder, x)))
    assert images_moved(step, OpKind.BATCH_NORM, Phase.FORWARD) == [(2, 0)]
    assert images_moved(step, OpKind.RELU, Phase.FORWARD) == [(0, 1)]
    # Gradient and result of the rectifier, twice each; then the norm's own input twice, and its gradient once.
    assert images_moved(step, OpKind.ELEMENTWISE_GRAD, Phase.BACKWARD)[-1] == (4, 0)
    assert images_moved(step, OpKind.NORM_GRAD, Phase.BACKWARD) == [(2, 1)]


def test_what_only_the_backward_pass_reads_is_made_again(builder: Any, train: Train) -> None:
    """Of x sigmoid(x) the gate is never in memory: forward x is read and the product written."""
    n = builder.N
    x = conv(builder, builder.input(n, *IMAGE))
    gate = builder.node(OpKind.SIGMOID, [x], n, *IMAGE)
    step = train(builder.graph(conv(builder, builder.node(OpKind.MUL, [x, gate], n, *IMAGE))))
    assert images_moved(step, OpKind.SIGMOID, Phase.FORWARD) == [(1, 0)]
    assert images_moved(step, OpKind.MUL, Phase.FORWARD) == [(0, 1)]
    eager, compiled = (work.at([1]) for work in works(step))
    place = [i for i, node in enumerate(step.graph.nodes) if node.kind is OpKind.CONV_WEIGHT_GRAD][-1]
    late = (step.phase == Phase.BACKWARD) & (np.arange(len(step.phase)) < place)
    is_loop = np.array([node.kind is OpKind.ELEMENTWISE_GRAD for node in step.graph.nodes]) & late
    # Backwards the kernel reads a gradient and x, and writes one gradient: nothing passes through memory between.
    assert compiled.bytes_written[0, is_loop].sum() < eager.bytes_written[0, is_loop].sum()


def test_a_mask_is_drawn_again(builder: Any, train: Train) -> None:
    """Elements by bytes: dropout's own of four, and in the eager runtime its mask's of one."""
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    kept, mask = builder.tensor(n, 64), builder.tensor(n, 64, dtype=DType.BOOL)
    builder.nodes.append(Node(kind=OpKind.DROPOUT, inputs=(x,), outputs=(kept, mask)))
    step = train(builder.graph(builder.node(OpKind.LINEAR, [kept, builder.weight(64, 64)], n, 64)))
    eager, compiled = (each.at([16]) for each in works(step))
    (dropout,) = (i for i, node in enumerate(step.graph.nodes) if node.kind is OpKind.DROPOUT)
    (gradient,) = (i for i, node in enumerate(step.graph.nodes) if mask in node.inputs)
    elements = 16 * 64
    assert (eager.bytes_written[0, dropout], eager.bytes_read[0, gradient]) == (5 * elements, 5 * elements)
    assert (compiled.bytes_written[0, dropout], compiled.bytes_read[0, gradient]) == (4 * elements, 4 * elements)


def test_gradients_of_weights_are_written(builder: Any, train: Train) -> None:
    """A bias' gradient is a loop's, and nothing in the step reads it."""
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(32, 64), builder.weight(32)], n, 32)
    step = train(builder.graph(x), optimizer=Optimizer.NONE)
    compiled = works(step)[1].at([16])
    (bias,) = (i for i, node in enumerate(step.graph.nodes) if node.kind is OpKind.REDUCE and step.phase[i] == 1)
    assert compiled.bytes_written[0, bias] == 32 * 4


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAMW])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP])
def test_a_compiled_step_never_adds_work(
    network: Any, train: Train, optimizer: Optimizer, precision: Precision
) -> None:
    step = train(network(layers=3), optimizer=optimizer, precision=precision)
    eager, compiled = works(step)
    own, less = eager.at([8]), compiled.at([8])
    assert np.array_equal(own.flops, less.flops)
    assert less.bytes_read.sum() + less.bytes_written.sum() < own.bytes_read.sum() + own.bytes_written.sum()
    fusion = compiled.fusion
    assert fusion is not None
    kernel = fusion.kernel[fusion.kernel >= 0]
    # No kernel reaches from one pass into the other, and the update is as it was.
    assert np.array_equal(step.phase[kernel], step.phase[fusion.kernel >= 0])
    update = step.phase == Phase.OPTIMIZER
    assert update.any()
    assert np.array_equal(less.bytes_read[:, update], own.bytes_read[:, update])
    assert np.array_equal(less.bytes_written[:, update], own.bytes_written[:, update])


def test_the_gradient_of_a_cross_entropy_is_written_before_the_release_that_fuses_it(
    builder: Any, train: Train
) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(5000, 16)], n, 5000)
    step = train(builder.graph(x), optimizer=Optimizer.NONE)
    work = Workload.from_graph(step.graph)
    part = np.array([PARTS[Phase(phase)] for phase in step.phase])
    peaks = []
    for release in ((2, 4), (2, 5)):
        timeline = MemoryTimeline.from_workload(work.fused(part, software=Software(torch=release)))
        peaks.append(float(live_memory(timeline, [1000]).peak_bytes[0]))
    # Logarithms, their gradient and that of the scores, or all but the second.
    assert peaks[0] - peaks[1] == 4 * 5000 * 1000
