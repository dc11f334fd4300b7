"""What dropout leaves behind for the backward pass."""

from __future__ import annotations

from typing import Any

from dippm.costs.conditions import Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.graph import DType, Node, OpKind


def test_the_gradient_reads_the_mask_and_not_the_input(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 64)
    hidden = builder.node(OpKind.LINEAR, [x, builder.weight(128, 64)], n, 128)
    kept, mask = builder.tensor(n, 128), builder.tensor(n, 128, dtype=DType.BOOL)
    builder.nodes.append(Node(kind=OpKind.DROPOUT, inputs=(hidden,), outputs=(kept, mask)))
    graph = builder.graph(builder.node(OpKind.LINEAR, [kept, builder.weight(10, 128)], n, 10))
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD, precision=Precision.FP32))
    nodes = list(zip(step.graph.nodes, step.phase, strict=True))
    (gradient,) = (node for node, phase in nodes if phase == Phase.BACKWARD and mask in node.inputs)
    assert gradient.kind is OpKind.ELEMENTWISE_GRAD
    assert gradient.attributes["function"] == "dropout"
    assert hidden not in gradient.inputs
    given_back = {index: position for position, (node, _) in enumerate(nodes) for index in node.releases}
    assert given_back[hidden] < step.graph.nodes.index(gradient) == given_back[mask]
