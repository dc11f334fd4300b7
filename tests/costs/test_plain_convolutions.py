from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs import Workload
from dippm.costs.plain_convolutions import shape_of
from dippm.graph import OpKind


@pytest.mark.parametrize("kind", [OpKind.CONV, OpKind.CONV_TRANSPOSE])
def test_a_transposed_convolution_is_the_gradient_of_one(builder: Any, kind: OpKind) -> None:
    square = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    n, is_transposed = builder.N, kind is OpKind.CONV_TRANSPOSE
    (cin, inner), (cout, outer) = ((8, 14), (5, 28)) if is_transposed else ((5, 28), (8, 14))
    weight = builder.weight(cin, cout, 2, 2) if is_transposed else builder.weight(cout, cin, 2, 2)
    builder.node(kind, [builder.input(n, cin, inner, inner), weight], n, cout, outer, outer, **square)
    shape = shape_of(Workload.from_graph(builder.graph()).at([1, 16]).convolution, np.array([0]))
    assert shape.batch.tolist() == [1, 16]
    assert (shape.in_channels.tolist(), shape.out_channels.tolist()) == ([5, 5], [8, 8])
    assert (shape.in_height.tolist(), shape.out_width.tolist()) == ([28, 28], [14, 14])
    assert shape.kernel_height.tolist() == shape.stride.tolist() == [2, 2]
    assert shape.kernel_depth.tolist() == shape.groups.tolist() == [1, 1]
