"""From kernels to the wall time of one call: a host that launches and a device that executes, in order.

The host walks the nodes and spends its dispatch time on each; the device starts a kernel when the host has launched it
and the one before has ended. With H the host's running total and g the device's times, node i ends at

    end_i = max(H_i, end_{i-1}) + g_i

and its part of the latency is ``end_i - end_{i-1}``: its own time and the wait before it. The parts add up to the
latency, so what explains a prediction is the prediction. Large batches are bound by the device, small ones by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from dippm.costs.calls import accumulate_by_call, for_nodes, sum_by_call
from dippm.costs.conditions import Conditions, Runtime
from dippm.costs.device_time import busy_ms
from dippm.costs.edges import IndexArray
from dippm.costs.host import GRAPH_LAUNCH_MS
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel
from dippm.costs.rates import Rates
from dippm.costs.split_convolutions import group_launch_us
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec

__all__ = [
    "OTHER_HOST",
    "LatencyBreakdown",
    "break_down_each",
    "break_down_latency",
    "launched_ms",
    "once_ms",
    "share_of_latency",
]

FloatArray = npt.NDArray[np.float64]

_US_PER_MS = 1e3
#: By what a user's host may be faster or slower than the usual one: assumed. Of the machines of published measurements
#: most lie within 1.4 of it, the slowest within 1.7; a laptop's launches more than twice as fast. Of 179 eager calls in
#: FP32 there that nothing was fitted on the intervals hold 91 % (docs/reports/published.md).
OTHER_HOST = 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class LatencyBreakdown:
    """Where the time of one call goes, or that of a call of each of several graphs.

    How long the device waits is worked out when it is asked for: of times that are only compared nothing does.

    Args:
        busy_ms: Time for which each node keeps the device busy.
        run: Works out the part of the latency that belongs to each node, waits included, behind the host, one that
            launches ``OTHER_HOST`` times faster, and one that launches as many times slower.
        half_width: Half-width of the 90 % interval of ``log(measured / predicted)`` where what made the times knows
            one; None where it does not, NaN at batches where it does not.
        least_ms: What the device takes at least, whatever the times are.
        paused_ms: What of the time of each node no kernel runs in, for the device makes it ready, as far as that is
            known; what a captured graph waits for as well counts as running.
        start: First node of each graph; None where all nodes are of one.

    Shapes:
        busy_ms: [B, n_nodes], and so is paused_ms, or a number; what ``run`` gives: [3, B, n_nodes]; half_width,
        least_ms and all figures of a call: [B], and [B, G] where ``start`` is given; start: [G].
    """

    busy_ms: FloatArray
    run: Callable[[], FloatArray]
    half_width: FloatArray | None = None
    least_ms: FloatArray | float = 0.0
    paused_ms: FloatArray | float = 0.0
    start: IndexArray | None = None

    @classmethod
    def of(
        cls,
        busy: FloatArray,
        launch: Callable[[], FloatArray],
        times: FloatArray | float,
        *,
        half_width: FloatArray | None = None,
        paused: FloatArray | float = 0.0,
        start: IndexArray | None = None,
    ) -> LatencyBreakdown:
        """Run nodes on a device behind a host.

        Args:
            busy: Time for which each node keeps the device busy when it runs once, ms.
            launch: Tells when the host has launched each node, counted from the start, ms; asked where it matters.
            times: How often each node runs.
            half_width: See above.
            paused: What of it no kernel runs in, see above, when the node runs once.
            start: See above.

        Shapes:
            busy: [B, n_nodes]; what is launched: [B, n_nodes] or [n_nodes]; times: [n_nodes]; paused: as busy.
        """
        run = partial(_shares_of_hosts, busy, launch, times, start)
        return cls(busy_ms=busy * times, run=run, half_width=half_width, paused_ms=paused * times, start=start)

    @classmethod
    def of_each(
        cls,
        busy: FloatArray,
        plan: KernelPlan,
        *,
        conditions: Conditions,
        host: Rates,
        times: FloatArray | float,
        half_widths: Sequence[FloatArray | None] | None = None,
        paused: FloatArray | None = None,
    ) -> list[LatencyBreakdown]:
        """Run each graph of a plan by itself.

        Args:
            busy: Time for which each node keeps the device busy when it runs once, ms.
            plan: The kernels of the graphs.
            conditions: The runtime.
            host: Rates of the host.
            times: How often each node runs.
            half_widths: Of each graph, see above; None where there are none.
            paused: What of ``busy`` no kernel runs in, see above; None where that is not known.

        Shapes:
            busy and paused: [B, n_nodes]; times: [n_nodes].
        """
        times, graphs = np.broadcast_to(times, plan.dispatch_us.shape), plan.work.sizes.nodes_of_graphs
        return [
            cls.of(
                busy[:, own],
                partial(launched_ms, plan, conditions, host, nodes=own),
                times[own],
                half_width=half_width,
                paused=0.0 if paused is None else paused[:, own],
            )
            for own, half_width in zip(graphs, half_widths or [None] * len(graphs), strict=True)
        ]

    @classmethod
    def joined(
        cls, breakdowns: Sequence[LatencyBreakdown], times: FloatArray, launch: Callable[[], FloatArray]
    ) -> LatencyBreakdown:
        """Calls of several graphs side by side, each of them as it is.

        Args:
            breakdowns: One of each graph.
            times: How often each node runs, of all graphs.
            launch: Tells when the host has launched each of these, counted from the start of its call, ms.

        Shapes:
            times and what is launched: [n_nodes].
        """
        busy = [each.busy_ms for each in breakdowns]
        half_widths = np.full((len(breakdowns), len(busy[0])), np.nan)
        for own, each in zip(half_widths, breakdowns, strict=True):
            if each.half_width is not None:
                own[:] = each.half_width
        paused = [np.broadcast_to(each.paused_ms, each.busy_ms.shape) for each in breakdowns]
        busy_ms, start = np.concatenate(busy, axis=1), np.cumsum([0, *(each.shape[1] for each in busy[:-1])])
        return cls(
            busy_ms=busy_ms,
            run=partial(_shares_of_hosts, once_ms(busy_ms, times), launch, times, start),
            half_width=half_widths.T,
            least_ms=np.array([np.broadcast_to(each.least_ms, len(each.busy_ms)) for each in breakdowns]).T,
            paused_ms=np.concatenate(paused, axis=1),
            start=start,
        )

    def at_least(self, least: FloatArray, times: FloatArray, launch: Callable[[], FloatArray]) -> LatencyBreakdown:
        """The same where no node keeps the device busy for less than so long.

        Args:
            least: The least time of each node when it runs once, ms.
            times: How often each node runs.
            launch: Tells when the host has launched each node, counted from the start, ms; asked where it matters.

        Shapes:
            least: [B, n_nodes]; times and what is launched: [n_nodes].
        """
        of_nodes = least * times
        result, is_short = replace(self, least_ms=sum_by_call(of_nodes, self.start)), self.busy_ms < of_nodes
        if not is_short.any():
            return result
        return result.with_busy(np.where(is_short, least, self.once_ms(times)), times, launch)

    def at_most(self, most: FloatArray, times: FloatArray, launch: Callable[[], FloatArray]) -> LatencyBreakdown:
        """The same where no node keeps the device busy for longer than so long; arguments as for :meth:`at_least`."""
        is_long = self.busy_ms > most * times
        if not is_long.any():
            return self
        return self.with_busy(np.where(is_long, most, self.once_ms(times)), times, launch)

    def once_ms(self, times: FloatArray) -> FloatArray:
        """Time for which each node keeps the device busy when it runs once, ms, [B, n_nodes].

        Args:
            times: How often each node runs, [n_nodes].
        """
        return once_ms(self.busy_ms, times)

    def paused_once_ms(self, times: FloatArray) -> FloatArray:
        """What of :meth:`once_ms` no kernel runs in, [B, n_nodes]."""
        return once_ms(np.minimum(self.paused_ms, self.busy_ms), times)

    def with_busy(self, busy: FloatArray, times: FloatArray, launch: Callable[[], FloatArray]) -> LatencyBreakdown:
        """The same interval around other times; arguments as those of :meth:`of`.

        Nodes that keep their time keep it to the last digit, whatever others do.
        """
        return replace(
            self,
            busy_ms=np.where(busy == self.once_ms(times), self.busy_ms, busy * times),
            run=partial(_shares_of_hosts, busy, launch, times, self.start),
        )

    @cached_property
    def _shares(self) -> FloatArray:
        return self.run()

    @property
    def share_ms(self) -> FloatArray:
        """Part of the latency that belongs to each node, waits included; adds up to the latency, [B, n_nodes]."""
        result: FloatArray = self._shares[0]
        return result

    @cached_property
    def fast_host_ms(self) -> FloatArray:
        """Latency where the host launches ``OTHER_HOST`` times faster, [B]."""
        return sum_by_call(self._shares[1], self.start)

    @cached_property
    def slow_host_ms(self) -> FloatArray:
        """Latency where it launches as many times slower, [B]."""
        return sum_by_call(self._shares[2], self.start)

    @property
    def knows_interval(self) -> npt.NDArray[np.bool_]:
        """At which batches what made the times knows an interval, [B]."""
        if self.half_width is None:
            return np.zeros(len(self.busy_ms), dtype=np.bool_)
        return ~np.isnan(self.half_width)

    @cached_property
    def latency_ms(self) -> FloatArray:
        """Wall time of one call at each batch, [B]."""
        return sum_by_call(self.share_ms, self.start)

    def share_of(self, is_asked: npt.NDArray[np.bool_]) -> FloatArray:
        """Share of the latency that belongs to some of the nodes, [B].

        Args:
            is_asked: Which nodes.

        Shapes:
            is_asked: [n_nodes], or [B, n_nodes].
        """
        if not is_asked.any():
            return np.zeros_like(self.latency_ms)
        result: FloatArray = sum_by_call(np.where(is_asked, self.share_ms, 0.0), self.start) / self.latency_ms
        return result

    def for_nodes(self, figures: FloatArray) -> FloatArray:
        """A figure of each call for each of its nodes; figures: [..., B]; result: [..., B, n_nodes], or [..., B, 1]."""
        return for_nodes(figures, self.start, count=self.busy_ms.shape[1])


def break_down_latency(
    plan: KernelPlan,
    at: WorkloadAt,
    *,
    devices: Sequence[DeviceSpec],
    conditions: Conditions,
    rates: Rates,
    kernels: KernelModel,
    times: FloatArray | float = 1.0,
) -> list[LatencyBreakdown]:
    """Time of one call, node by node, at every batch size, on each device.

    Args:
        plan: The distinct kernels of the model.
        at: Its work at the batch sizes.
        devices: The devices.
        conditions: Precision, layout and runtime.
        rates: Sustained rates, and those of the host of each device.
        kernels: Learned kernel times.
        times: How often each node runs, [n_nodes].

    Returns:
        One breakdown per device.
    """
    of_devices = break_down_each(
        plan, at, devices=devices, conditions=conditions, rates=rates, kernels=kernels, times=times
    )
    return [breakdown for (breakdown,) in of_devices]


def break_down_each(
    plan: KernelPlan,
    at: WorkloadAt,
    *,
    devices: Sequence[DeviceSpec],
    conditions: Conditions,
    rates: Rates,
    kernels: KernelModel,
    times: FloatArray | float = 1.0,
) -> list[list[LatencyBreakdown]]:
    """What :func:`break_down_latency` gives, for each graph of a plan of several.

    Returns:
        Of each device one breakdown per graph.
    """
    if not devices:
        return []
    busy = busy_ms(plan, at, devices=devices, conditions=conditions, rates=rates, kernels=kernels)
    return [
        LatencyBreakdown.of_each(own, plan, conditions=conditions, host=rates.host_on(device), times=times)
        for own, device in zip(busy, devices, strict=True)
    ]


def launched_ms(
    plan: KernelPlan,
    conditions: Conditions,
    rates: Rates,
    *,
    nodes: slice | None = None,
    more_us: FloatArray | float = 0.0,
) -> FloatArray:
    """When the host has launched each node, counted from the start of the call of its graph, ms.

    A captured graph is launched as a whole, which is taken to depend on no rate of the host. Compiled code launches
    fewer kernels, each as fast as the eager runtime does: settled on compiled rows of ``data/published``.

    Args:
        plan: The kernels.
        conditions: The runtime.
        rates: Rates of the host.
        nodes: The nodes of one graph; None for those of all.
        more_us: What each of these takes beside that, microseconds.

    Shapes:
        more_us: [B, n_nodes], or a number; the result as the sum with [n_nodes].
    """
    own, start = (slice(None), plan.work.sizes.arrays.node_start[:-1]) if nodes is None else (nodes, None)
    if conditions.runtime is Runtime.CUDA_GRAPH:
        return np.full((plan.dispatch_us[own] + more_us).shape, GRAPH_LAUNCH_MS)
    groups_us = group_launch_us(plan, conditions.layout)[own]
    dispatch_us = np.where(plan.is_backward[own], rates.backward_host, 1.0) * (plan.dispatch_us[own] + more_us)
    dispatch_us *= np.where(plan.is_searched[own], rates.convolution_host, 1.0)
    # The device starts with the first group of a node while the host launches the others.
    launched_us = accumulate_by_call(np.add, dispatch_us + groups_us, start) - groups_us
    return launched_us * (rates.host_scale / _US_PER_MS)


def once_ms(busy_ms: FloatArray, times: FloatArray) -> FloatArray:
    """The time of one run of each node, 0 where it never runs."""
    result: FloatArray = np.divide(busy_ms, times, out=np.zeros_like(busy_ms), where=times > 0.0)
    return result


def _shares_of_hosts(
    busy: FloatArray, launch: Callable[[], FloatArray], times: FloatArray | float, start: IndexArray | None = None
) -> FloatArray:
    """What :attr:`LatencyBreakdown.run` gives; arguments as those of :meth:`LatencyBreakdown.of`."""
    hosts = np.array([1.0, 1 / OTHER_HOST, OTHER_HOST])
    result: FloatArray = share_of_latency(busy, launch() * hosts[:, None, None], start) * times
    return result


def share_of_latency(busy: FloatArray, launched: FloatArray, start: IndexArray | None = None) -> FloatArray:
    """Each node's part of the latency.

    Args:
        busy: Time for which each node keeps the device busy.
        launched: When the host has launched each node, counted from the start.
        start: First node of each call where there are several; see :mod:`dippm.costs.calls`.

    Shapes:
        busy, launched and result: [..., n_nodes], of which busy and launched may lack leading axes.
    """
    done = accumulate_by_call(np.add, busy, start)
    # end_i = done_i + max over j <= i of (launched_j - done_{j-1}), which unrolls the recurrence.
    wait = accumulate_by_call(np.maximum, launched - (done - busy), start)
    end = done + np.maximum(wait, 0.0)
    result: FloatArray = end.copy()
    result[..., 1:] -= end[..., :-1]
    if start is not None:
        result[..., start] = end[..., start]
    return result
