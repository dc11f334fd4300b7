"""What a call asks of its board, from which the board's power follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.energy import PowerModel, power_w
from dippm.costs.latency import LatencyBreakdown
from dippm.devices import DeviceSpec

__all__ = ["BoardLoad"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_LEAST_MS = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoardLoad:
    """Work of one graph on one device at each batch, kernel by kernel, and for which part of the time each one runs.

    Args:
        kernel_share: Part of the predicted time that one run of each kernel takes.
        runs: How often each kernel runs.
        plain_flops: FLOPs outside of tensor cores, in all runs of a kernel.
        tensor_flops: FLOPs on tensor cores, as so many of FP16.
        traffic_bytes: Bytes read and written.

    Shapes:
        runs: [K]; all others: [B, K].
    """

    kernel_share: FloatArray
    runs: FloatArray
    plain_flops: FloatArray
    tensor_flops: FloatArray
    traffic_bytes: FloatArray

    @classmethod
    def of(
        cls,
        breakdown: LatencyBreakdown,
        *,
        times: FloatArray,
        plain_flops: FloatArray,
        tensor_flops: FloatArray,
        traffic_bytes: FloatArray,
        kernel: IndexArray | None = None,
    ) -> BoardLoad:
        """The load of a call whose time is known node by node.

        Args:
            breakdown: Its time.
            times: How often each node runs.
            plain_flops: FLOPs of each node outside of tensor cores, in all its runs.
            tensor_flops: Those on tensor cores, as so many of FP16.
            traffic_bytes: What each node reads and writes.
            kernel: The last node of each node's kernel, -1 where there is none; None where each node runs by itself.

        Shapes:
            times, kernel: [n_nodes]; plain_flops, tensor_flops, traffic_bytes: [B, n_nodes].
        """
        share = breakdown.once_ms(times) / np.maximum(breakdown.latency_ms, _LEAST_MS)[:, None]
        parts = [share, plain_flops, tensor_flops, traffic_bytes]
        if kernel is not None:
            parts = [_add_up(part, kernel) for part in parts]
        return cls(
            kernel_share=parts[0], runs=times, plain_flops=parts[1], tensor_flops=parts[2], traffic_bytes=parts[3]
        )

    @property
    def busy_share(self) -> FloatArray:
        """Part of the predicted time in which a kernel runs, [B]."""
        result: FloatArray = np.minimum((self.kernel_share * self.runs).sum(axis=1), 1.0)
        return result

    def power_w(self, model: PowerModel, device: DeviceSpec, latency_ms: FloatArray) -> FloatArray:
        """Mean power where the call takes as long, W: each kernel runs for the same part of it.

        Args:
            model: Coefficients.
            device: The device.
            latency_ms: Time of the call, predicted or measured.

        Shapes:
            latency_ms and result: [B].
        """
        call_s = np.maximum(latency_ms, _LEAST_MS) / 1e3
        return power_w(
            model,
            device,
            call_s=call_s,
            kernel_s=self.kernel_share * call_s[:, None],
            runs=self.runs,
            plain_flops=self.plain_flops,
            tensor_flops=self.tensor_flops,
            traffic_bytes=self.traffic_bytes,
        )


def _add_up(parts: FloatArray, kernel: IndexArray) -> FloatArray:
    """The sum over the nodes of each kernel, at its last node."""
    (node,) = np.nonzero(kernel >= 0)
    result = np.zeros_like(parts)
    np.add.at(result.T, kernel[node], parts[:, node].T)
    return result
