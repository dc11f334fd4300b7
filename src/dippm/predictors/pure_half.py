"""Time of models in 16 bits throughout, from networks that were trained on autocast, as far as they know such a model.

Whole models in pure FP16 or BF16 run the kernels of autocast without its casts, and the tables of autocast that the
networks were trained on had even their norms in 16 bits. Of models like those the networks therefore know more than the
plain sum does; of models unlike them, less. How alike a model is, the half-width of the networks' interval says: where
it was calibrated the networks answer, from half as far again on the plain sum, and between the two the logarithms are
mixed. Published rows say the same: image models and encoders that lie where the interval was calibrated are met within
3 to 8 % by the networks and within 9 to 17 % by the plain sum, diffusion and decoders, which lie outside, better by the
plain sum. That this is so was seen before the rule was made; its two ends are not fitted.

Where the networks' time is the shorter one it stands however novel the model is: autocast runs the same kernels and
casts besides, and is answered by the networks alone, so that pure 16 bits are not said to be slower. Of training steps
in pure 16 bits, whose updates and gradients differ, no more than this is taken from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.latency import LatencyBreakdown, once_ms
from dippm.costs.rates import Rates

__all__ = ["mix_by_novelty"]

FloatArray = npt.NDArray[np.float64]

# Where nothing is left of the networks, in half-widths of the farthest call that their interval was calibrated on.
_FAR = 1.5


def mix_by_novelty(
    summed: Sequence[LatencyBreakdown],
    corrected: Sequence[LatencyBreakdown],
    plan: KernelPlan,
    *,
    conditions: Conditions,
    host: Rates,
    times: FloatArray,
    known_half_width: float,
    summed_half_width: float,
) -> list[LatencyBreakdown]:
    """Join the plain sum's and the networks' time of each graph at each batch.

    Where nothing is taken from the networks the half-width is NaN, as of what they have no part in.

    Args:
        summed: By the plain sum.
        corrected: By the networks.
        plan: The kernels of the graphs.
        conditions: The runtime.
        host: Rates of the host.
        times: How often each node runs.
        known_half_width: Half-width of the networks' interval for the farthest call that it was calibrated on.
        summed_half_width: That of the plain sum's interval.

    Shapes:
        times: [n_nodes].
    """
    shares: list[FloatArray] = [
        np.where(
            by_network.busy_ms.sum(axis=1) < by_sum.busy_ms.sum(axis=1),
            1.0,
            _share(by_network, known_half_width) * (conditions.mode is Mode.INFERENCE),
        )
        for by_sum, by_network in zip(summed, corrected, strict=True)
    ]
    busy, half_widths = [], []
    for by_sum, by_network, share in zip(summed, corrected, shares, strict=True):
        busy.append(by_network.busy_ms ** share[:, None] * by_sum.busy_ms ** (1.0 - share[:, None]))
        own = np.zeros(len(share)) if by_network.half_width is None else by_network.half_width
        half_widths.append(np.where(share > 0.0, share * own + (1.0 - share) * summed_half_width, np.nan))
    return LatencyBreakdown.of_each(
        once_ms(np.concatenate(busy, axis=1), times),
        plan,
        conditions=conditions,
        host=host,
        times=times,
        half_widths=half_widths,
    )


def _share(breakdown: LatencyBreakdown, known_half_width: float) -> FloatArray:
    """How much of the logarithm is the networks', 0 to 1, [B]."""
    if breakdown.half_width is None:
        return np.zeros(len(breakdown.latency_ms))
    beyond = breakdown.half_width / known_half_width - 1.0
    return np.asarray(1.0 - np.clip(beyond / (_FAR - 1.0), 0.0, 1.0))
