"""Whether ``torch.compile`` runs the convolutions of a model with channels last, whatever the order of its images.

Inductor turns all convolutions of a model or none (``decide_layout_opt`` in ``torch/_inductor/graph.py``, PyTorch 2.4).
In inference it weighs the FLOPs of all by what channels last gained or lost on average where its authors measured it.
In training one that is grouped, or that narrows, keeps all as they are. Only those of two dimensions are ever turned
(``convolution`` in ``torch/_inductor/kernel/conv.py``).
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
# Rank of the weight of a convolution of two dimensions.
_FLAT_RANK = 4


def runs_channels_last(work: Workload, is_backward: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.bool_]:
    """Whether the convolutions of each graph are turned, [G].

    Args:
        work: The graphs.
        is_backward: Which nodes are of a backward pass, [n_nodes]: where any is, it is a training step, and the others
            decide.
    """
    sizes, one = work.sizes, np.ones(1)
    is_counted = np.ones(len(sizes.arrays.kind), dtype=np.bool_) if is_backward is None else ~is_backward
    convolutions = work.convolution.at(one)
    flops = evaluate(work.convolution.macs, one)[0]
    of_group = convolutions.in_channels[0] / np.maximum(convolutions.groups, 1.0)
    out = convolutions.out_channels[0]
    is_grouped = (convolutions.groups > 1.0) & (of_group > 1.0)
    is_small = (out <= _FEW_CHANNELS) & (of_group <= _FEW_CHANNELS)
    is_narrowing = (2.0 * out <= of_group) & (convolutions.kernel_height > 1.0)
    weight = np.select([is_grouped, is_small, is_narrowing], [_GROUPED, _SMALL, _NARROWING], _OTHER)
    counts = is_counted[convolutions.node].astype(np.float64)
    graph = np.repeat(np.arange(len(sizes.graphs)), np.diff(sizes.arrays.node_start))

    def total(node: IndexArray, values: FloatArray) -> FloatArray:
        """The sum over some nodes of each graph, [G]."""
        return np.asarray(np.bincount(graph[node], weights=values, minlength=len(sizes.graphs)), dtype=np.float64)

    is_flat = (sizes.rank(sizes.inputs(convolutions.node, 1)) == _FLAT_RANK).astype(np.float64)
    convolution, operator = convolutions.node, np.flatnonzero(~sizes.is_kind(OpKind.VIEW) & is_counted)
    convolved, operators = total(convolution, counts), total(operator, np.ones(len(operator)))
    if is_counted.all():
        gains = total(convolution, weight * flops) <= total(convolution, flops)
    else:
        gains = (total(convolution, counts * (is_grouped | is_narrowing)) == 0) & (
            total(convolution, counts * is_small) < convolved
        )
    has_flat = total(convolution, counts * is_flat) > 0
    result: npt.NDArray[np.bool_] = has_flat & gains & (operators < _MANY_OPERATORS * convolved)
    return result
