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
_LEAST_MS = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoardLoad:
    """Work of one graph on one device at each batch, and for which part of the time a kernel runs.

    Args:
        busy_share: Part of the predicted time in which a kernel runs.
        plain_flops: FLOPs outside of tensor cores.
        tensor_flops: FLOPs on tensor cores, as so many of FP16.
        traffic_bytes: Bytes read and written.

    Shapes:
        All: [B].
    """

    busy_share: FloatArray
    plain_flops: FloatArray
    tensor_flops: FloatArray
    traffic_bytes: FloatArray

    @classmethod
    def of(
        cls,
        breakdown: LatencyBreakdown,
        *,
        plain_flops: FloatArray,
        tensor_flops: FloatArray,
        traffic_bytes: FloatArray,
    ) -> BoardLoad:
        """The load of a call whose time is known part by part."""
        busy_ms = np.maximum(breakdown.busy_ms.sum(axis=1), _LEAST_MS)
        return cls(
            busy_share=np.minimum(busy_ms / breakdown.latency_ms, 1.0),
            plain_flops=plain_flops,
            tensor_flops=tensor_flops,
            traffic_bytes=traffic_bytes,
        )

    def power_w(self, model: PowerModel, device: DeviceSpec, latency_ms: FloatArray) -> FloatArray:
        """Mean power where the call takes as long, W: a kernel runs for the same part of it.

        Args:
            model: Coefficients.
            device: The device.
            latency_ms: Time of the call, predicted or measured.

        Shapes:
            latency_ms and result: [B].
        """
        busy_s = np.maximum(self.busy_share * latency_ms, _LEAST_MS) / 1e3
        return power_w(
            model,
            device,
            busy_share=self.busy_share,
            plain_flops_per_s=self.plain_flops / busy_s,
            tensor_flops_per_s=self.tensor_flops / busy_s,
            bytes_per_s=self.traffic_bytes / busy_s,
        )
