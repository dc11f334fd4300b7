"""What operators read of weights decides by which features they are told apart."""

from __future__ import annotations

from typing import Any

from dippm.costs.precision import Precision
from dippm.costs.workload import Workload
from dippm.features.physical.weights import weight_bytes
from dippm.graph import OpKind


def test_weights_count_in_the_format_in_which_they_are_read(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 8)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(4, 8), builder.weight(4)], n, 4)
    z = builder.node(OpKind.ADD, [y, builder.weight(4)], n, 4)
    builder.node(OpKind.ADD, [z, y], n, 4)
    graph = builder.graph()
    assert weight_bytes(Workload.from_graph(graph, Precision.FP32)).tolist() == [4 * (32 + 4), 4 * 4, 0]
    # Autocast casts what a product reads, in a kernel of its own.
    assert weight_bytes(Workload.from_graph(graph, Precision.AMP)).tolist() == [2 * (32 + 4), 4 * 4, 0]
