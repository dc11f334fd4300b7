"""How long each node keeps a device busy, for all batch sizes and devices at once.

Each distinct kernel is timed once (:mod:`dippm.costs.kernel_timer`), however often the model runs it; what nodes do
beside their kernel is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dippm.costs.conditions import Conditions, Layout
from dippm.costs.device_sheets import DeviceSheets, formats_on_tensor_cores
from dippm.costs.extra_work import add_extra_work, reordered_images
from dippm.costs.kernel_plan import Distinct, KernelPlan
from dippm.costs.kernel_timer import KernelTimer
from dippm.costs.kernels.model import KernelModel
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import Arithmetic
from dippm.costs.rates import Rates, rates_on_each
from dippm.costs.sorting import digit_passes
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec

__all__ = ["busy_ms"]

_MS = 1e3
_ARITHMETICS = tuple(Arithmetic)


def busy_ms(
    plan: KernelPlan,
    at: WorkloadAt,
    *,
    devices: Sequence[DeviceSpec],
    conditions: Conditions,
    rates: Rates | Sequence[Rates],
    kernels: KernelModel,
) -> FloatArray:
    """Time for which each node keeps each device busy, its casts included, ms.

    Args:
        plan: The distinct kernels.
        at: The plan's workload at the batch sizes.
        devices: The devices.
        conditions: Precision and layout.
        rates: Sustained rates of all devices, or those of each; those that were measured on an architecture stand for
            the others there.
        kernels: Learned kernel times.

    Shapes:
        Result: [D, B, n_nodes].
    """
    of_devices = rates_on_each(devices, rates, by_architecture=plan.has_own_rates(conditions))
    gaps_ms = np.array([own.gap_us / _MS for own in of_devices])
    gap_ms = gaps_ms[:, None, None]
    busy = np.zeros((len(devices), *at.flops.shape))
    if not devices:
        return busy
    timers: dict[tuple[tuple[int, ...], frozenset[Arithmetic]], KernelTimer] = {}

    def timer_of(chosen: tuple[int, ...], on_tensor: frozenset[Arithmetic]) -> KernelTimer:
        if (chosen, on_tensor) not in timers:
            own_rates = tuple(of_devices[i] for i in chosen)
            sheets = DeviceSheets.of(
                tuple(devices[i] for i in chosen),
                on_tensor,
                tuple(own.tensor_feed for own in own_rates),
                feeds_slowly=plan.feeds_slowly,
            )
            timers[chosen, on_tensor] = KernelTimer(
                plan=plan, at=at, sheets=sheets, conditions=conditions, rates=own_rates, kernels=kernels
            )
        return timers[chosen, on_tensor]

    parts: tuple[tuple[Distinct, Callable[[KernelTimer, Distinct], FloatArray]], ...] = (
        (plan.gemm, KernelTimer.gemm),
        (plan.convolution, KernelTimer.convolution),
        (plan.attention, KernelTimer.attention),
        (plan.recurrent, KernelTimer.recurrent),
        (plan.row, KernelTimer.row),
    )
    on_each = timer_of(tuple(range(len(devices))), frozenset())
    for part, seconds in parts:
        if len(part.node):
            formats = [_ARITHMETICS[code] for code in np.flatnonzero(np.bincount(plan.arithmetic[part.node])).tolist()]
            for chosen, on_tensor in _alike(devices, formats):
                time_ms = _MS * seconds(timer_of(chosen, on_tensor), part)
                for position, own_ms in zip(chosen, time_ms, strict=True):
                    busy[position][:, part.node] = (
                        own_ms.take(part.inverse, axis=1) + gaps_ms[position] * plan.is_launched[part.node]
                    )
    streams, casts = plan.stream, plan.casts
    stream_s, cast_s = on_each.stream(streams, casts)
    stream_ms = (_MS * stream_s).take(streams.inverse, axis=-1)
    busy[..., streams.node] = stream_ms + gap_ms * plan.is_launched[streams.node]
    if plan.work.fusion is None:
        add_extra_work(busy, plan, at, devices=devices, conditions=conditions, rates=of_devices)
    if conditions.layout is Layout.NHWC and plan.work.fusion is None:
        node, moved = reordered_images(plan, at)
        if len(node):
            busy[..., node] += gap_ms + _MS * on_each.copy(moved)
    node, passes, moved = digit_passes(plan, at)
    if len(node):
        busy[..., node] += gap_ms * passes + _MS * on_each.copy(moved)
    # Nothing is launched for tensors without elements.
    busy[:, (at.bytes_written == 0.0) & (at.flops == 0.0)] = 0.0
    if len(casts.node):
        of_casts = gap_ms + (_MS * cast_s).take(casts.inverse, axis=-1)
        for each in np.ndindex(busy.shape[:-1]):
            np.add.at(busy[each], at.casts.node, of_casts[each])
    return busy


def _alike(
    devices: Sequence[DeviceSpec], formats: Iterable[Arithmetic]
) -> list[tuple[tuple[int, ...], frozenset[Arithmetic]]]:
    """Positions of devices that run the formats on the same kinds of units, and the formats on tensor cores there."""
    groups: dict[frozenset[Arithmetic], list[int]] = {}
    for position, device in enumerate(devices):
        groups.setdefault(formats_on_tensor_cores(device, formats), []).append(position)
    return [(tuple(positions), on_tensor) for on_tensor, positions in groups.items()]
