"""Whether ``torch.compile`` runs the convolutions of a model with channels last, whatever the order of its images.

Inductor weighs the FLOPs of all convolutions by what channels last gained or lost on average where its authors measured
it (``decide_layout_opt`` in ``torch/_inductor/graph.py``, PyTorch 2.4, inference), and turns all of them or none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.workload import Workload
from dippm.graph import OpKind

__all__ = ["runs_channels_last"]

# Time with channels last over that without, by kind of convolution: grouped, with few channels, into half as many
# channels or fewer, and all others.
_GROUPED, _SMALL, _NARROWING, _OTHER = 1.358, 0.783, 0.725, 0.823
_FEW_CHANNELS = 64
# A model with so many operators for each convolution is left as it is.
_MANY_OPERATORS = 300


def runs_channels_last(work: Workload) -> npt.NDArray[np.bool_]:
    """Whether the convolutions of each graph are turned, [G]."""
    sizes, one = work.sizes, np.ones(1)
    convolutions = work.convolution.at(one)
    flops = evaluate(work.convolution.macs, one)[0]
    of_group = convolutions.in_channels[0] / np.maximum(convolutions.groups, 1.0)
    out = convolutions.out_channels[0]
    is_grouped = (convolutions.groups > 1.0) & (of_group > 1.0)
    is_small = (out <= _FEW_CHANNELS) & (of_group <= _FEW_CHANNELS)
    is_narrowing = (2.0 * out <= of_group) & (convolutions.kernel_height > 1.0)
    weight = np.select([is_grouped, is_small, is_narrowing], [_GROUPED, _SMALL, _NARROWING], _OTHER)
    graph = np.repeat(np.arange(len(sizes.graphs)), np.diff(sizes.arrays.node_start))

    def total(node: IndexArray, values: FloatArray) -> FloatArray:
        """The sum over some nodes of each graph, [G]."""
        return np.asarray(np.bincount(graph[node], weights=values, minlength=len(sizes.graphs)), dtype=np.float64)

    convolution, operator = convolutions.node, np.flatnonzero(~sizes.is_kind(OpKind.VIEW))
    own, weighed = total(convolution, flops), total(convolution, weight * flops)
    convolved, operators = total(convolution, np.ones(len(convolution))), total(operator, np.ones(len(operator)))
    result: npt.NDArray[np.bool_] = (convolved > 0) & (weighed <= own) & (operators < _MANY_OPERATORS * convolved)
    return result
