"""What a call asks of its board, from which the board's power follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dippm.costs.calls import for_nodes, sum_by_call
from dippm.costs.edges import IndexArray
from dippm.costs.energy import KernelWork, PowerModel, describe_board_use, power_w
from dippm.costs.latency import LatencyBreakdown
from dippm.devices import DeviceSpec

__all__ = ["BoardLoad"]

FloatArray = npt.NDArray[np.float64]

_LEAST_MS, _LEAST_J = 1e-9, 1e-12


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoardLoad:
    """Work of a graph on one device at each batch, kernel by kernel, and for which part of the time each one runs.

    Args:
        kernel_share: Part of the predicted time of its call that one run of each kernel takes.
        work: What the kernels do.
        paused_share: Part of it in which the device makes its next kernel ready, and draws what an idle one does.
        start: First kernel of each graph where there are several; see :mod:`dippm.costs.calls`.

    Shapes:
        kernel_share: [B, K]; start: [G]. Figures of a call, and paused_share: [B], and [B, G] where ``start`` is given.
    """

    kernel_share: FloatArray
    work: KernelWork
    paused_share: FloatArray | float = 0.0
    start: IndexArray | None = None

    @classmethod
    def of(cls, breakdown: LatencyBreakdown, work: KernelWork, *, kernel: IndexArray | None = None) -> BoardLoad:
        """The load of a call, or of those of several graphs, whose time is known node by node.

        Args:
            breakdown: Its time.
            work: What each node does.
            kernel: The last node of each node's kernel, -1 where there is none; None where each node runs by itself.

        Shapes:
            kernel: [n_nodes].
        """
        call_ms = breakdown.for_nodes(np.maximum(breakdown.latency_ms, _LEAST_MS))
        paused = breakdown.paused_once_ms(work.runs) / call_ms
        share = breakdown.once_ms(work.runs) / call_ms - paused
        paused_share = sum_by_call(paused * work.runs, breakdown.start)
        if kernel is None:
            return cls(kernel_share=share, work=work, paused_share=paused_share, start=breakdown.start)
        return cls(
            kernel_share=_add_up(share, kernel),
            work=KernelWork(
                runs=work.runs,
                plain_flops=_add_up(work.plain_flops, kernel),
                tensor_flops=_add_up(work.tensor_flops, kernel),
                traffic_bytes=_add_up(work.traffic_bytes, kernel),
                results=_add_up(work.results, kernel),
            ),
            paused_share=paused_share,
            start=breakdown.start,
        )

    def of_only_call(self) -> BoardLoad:
        """The same, where there is one graph, with figures that have no axis of graphs."""
        paused_share = np.broadcast_to(self.paused_share, (len(self.kernel_share), 1))[:, 0]
        return replace(self, paused_share=paused_share, start=None)

    @property
    def busy_share(self) -> FloatArray:
        """Part of the predicted time in which a kernel runs or is made ready, [B]: the host is not waited for."""
        running = sum_by_call(self.kernel_share * self.work.runs, self.start)
        result: FloatArray = np.minimum(running + self.paused_share, 1.0)
        return result

    def power_w(self, model: PowerModel, device: DeviceSpec, latency_ms: FloatArray) -> FloatArray:
        """Mean power where the call takes as long, W: each kernel runs for the same part of it.

        Args:
            model: Coefficients.
            device: The device.
            latency_ms: Time of the call, predicted or measured.

        Shapes:
            latency_ms and result: [..., B].
        """
        call_s, kernel_s = self._times(latency_ms)
        return power_w(model, device, call_s=call_s, kernel_s=kernel_s, work=self.work, start=self.start)

    def describe(self, device: DeviceSpec, latency_ms: FloatArray) -> FloatArray:
        """How the call uses its board where it takes as long, see :func:`~dippm.costs.energy.describe_board_use`.

        Args:
            device: The device.
            latency_ms: As for :meth:`power_w`.

        Shapes:
            latency_ms: [..., B]; result: [..., B, F].
        """
        call_s, kernel_s = self._times(latency_ms)
        return describe_board_use(device, call_s=call_s, kernel_s=kernel_s, work=self.work, start=self.start)

    def _times(self, latency_ms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Time of the call, and of one run of each kernel, s."""
        call_s = np.maximum(latency_ms, _LEAST_MS) / 1e3
        return call_s, self.kernel_share * for_nodes(call_s, self.start, count=len(self.work.runs))

    def energy_j(self, model: PowerModel, device: DeviceSpec, latency_ms: FloatArray) -> FloatArray:
        """Energy of the call where it takes as long, J; see :meth:`power_w`."""
        result: FloatArray = self.power_w(model, device, latency_ms) * latency_ms / 1e3
        return result

    def energy_spreads(
        self, model: PowerModel, device: DeviceSpec, latency_ms: FloatArray, energy_j: FloatArray, spread: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """How far the energy's logarithm may be off, downwards and upwards, where that of the kernels' time may be.

        Kernels that run longer for the same work draw less for it. Of some microseconds their start is a part that does
        not shrink with the rest, but no energy is less certain than the time.

        Args:
            model: Coefficients.
            device: The device.
            latency_ms: Time of the call.
            energy_j: Energy of the call, see :meth:`energy_j`.
            spread: How far the time's logarithm may be off.

        Shapes:
            latency_ms, energy_j, spread and results: [B].
        """
        factor = np.exp(spread)
        ends_j = self.energy_j(model, device, np.array([latency_ms / factor, latency_ms * factor]))
        below, above = np.log(np.maximum(ends_j, _LEAST_J) / np.maximum(energy_j, _LEAST_J))
        return np.clip(-below, -spread, spread), np.clip(above, -spread, spread)


def _add_up(parts: FloatArray, kernel: IndexArray) -> FloatArray:
    """The sum over the nodes of each kernel, at its last node."""
    (node,) = np.nonzero(kernel >= 0)
    result = np.zeros_like(parts)
    np.add.at(result.T, kernel[node], parts[:, node].T)
    return result
