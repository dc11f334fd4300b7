"""Time of models in strict FP32 and in TF32, from networks that know FP32, PyTorch's default.

FP32 lets convolutions and recurrent layers take TF32 and matrix products not. In strict FP32 the former, in TF32 the
latter run other kernels, and all else is the same and has the networks' time. What runs without TF32 takes what the
plain sum says, and not less than with it, since a library that may take either takes the faster one; what runs with
TF32 not more than without. Nothing was measured in strict FP32 on a device that such networks are for.

So it is with models that switch autocast on for parts of them: networks that know autocast know these, and the plain
sum the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.latency import LatencyBreakdown, once_ms
from dippm.costs.rates import Rates

__all__ = ["exchange_others"]

FloatArray = npt.NDArray[np.float64]


def exchange_others(
    summed: Sequence[LatencyBreakdown],
    known: Sequence[LatencyBreakdown],
    plan: KernelPlan,
    *,
    is_other: npt.NDArray[np.bool_],
    is_faster: bool | None,
    conditions: Conditions,
    host: Rates,
    times: FloatArray,
    summed_half_width: float,
) -> list[LatencyBreakdown]:
    """Give nodes that run another kernel than is known the plain sum's time, where it is on the right side of that.

    The half-width is that of the networks, and of such nodes the plain sum's where it is the larger one, by what of the
    device's time goes to them.

    Args:
        summed: By the plain sum.
        known: By networks or the sum, in FP32 or by other conditions that run the same kernels.
        plan: The kernels of the graphs.
        is_other: Nodes that run another kernel.
        is_faster: Whether these take less time than what is known, or more; None where that says nothing of them.
        conditions: The runtime.
        host: Rates of the host.
        times: How often each node runs.
        summed_half_width: Half-width of the plain sum's interval.

    Shapes:
        is_other, times: [n_nodes].
    """
    busy: list[FloatArray] = []
    paused: list[FloatArray] = []
    half_widths: list[FloatArray | None] = []
    for nodes, by_sum, by_known in zip(plan.work.sizes.nodes_of_graphs, summed, known, strict=True):
        is_own_other, of_others = is_other[nodes], by_sum.busy_ms
        if is_faster is not None:
            of_others = (np.minimum if is_faster else np.maximum)(of_others, by_known.busy_ms)
        own = np.where(is_own_other, of_others, by_known.busy_ms)
        busy.append(own)
        paused.append(np.broadcast_to(np.where(is_own_other, by_sum.paused_ms, by_known.paused_ms), own.shape))
        half_width = by_known.half_width
        if half_width is not None:
            total = own.sum(axis=1)
            share = np.divide(own[:, is_own_other].sum(axis=1), total, out=np.zeros_like(total), where=total > 0.0)
            half_width = share * np.maximum(summed_half_width, half_width) + (1.0 - share) * half_width
        half_widths.append(half_width)
    return LatencyBreakdown.of_each(
        once_ms(np.concatenate(busy, axis=1), times),
        plan,
        conditions=conditions,
        host=host,
        times=times,
        half_widths=half_widths,
        paused=once_ms(np.concatenate(paused, axis=1), times),
    )
