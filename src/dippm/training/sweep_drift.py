"""The sweep's drift as parameters that are trained beside a network (see `dippm.datasets.kernels.SweepDrift`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.features import Features
from dippm.datasets.kernels import KernelRows, SweepDrift
from dippm.devices import find_device

if TYPE_CHECKING:
    import torch

__all__ = ["TrainableDrift"]

#: Knots of the drift in thousands of rows.
_KNOTS = np.linspace(0.0, 5.0, 11)


class TrainableDrift:
    """The sweep's drift as torch parameters: non-negative steps between knots, per device.

    Args:
        rows: Measured rows of a family.
        features: Their features and baselines.
        chosen: Rows to train on.
    """

    def __init__(self, rows: KernelRows, features: Features, chosen: npt.NDArray[np.bool_]) -> None:
        import torch

        self._names, device = np.unique(rows.device[chosen], return_inverse=True)
        position = np.clip(rows.position[chosen] / (_KNOTS[1] - _KNOTS[0]), 0.0, len(_KNOTS) - 1 - 1e-6)
        self._device = torch.from_numpy(device.astype(np.int64))
        self._left = torch.from_numpy(np.floor(position).astype(np.int64))
        self._part = torch.from_numpy((position - np.floor(position)).astype(np.float32))
        self._baseline = torch.from_numpy(features.baseline_ms[chosen].astype(np.float32))
        # softplus(-3) = 0.05 ms per knot
        self.steps = torch.nn.Parameter(torch.full((len(self._names), len(_KNOTS) - 1), -3.0))
        self._all = sorted({str(name) for name in np.unique(rows.device)})

    def _added(self) -> torch.Tensor:
        import torch

        steps = torch.cumsum(torch.nn.functional.softplus(self.steps), dim=1)
        return torch.cat([torch.zeros(len(steps), 1), steps], dim=1)

    def relative(self, index: torch.Tensor) -> torch.Tensor:
        """Added time over baseline, for rows of the training part."""
        added, device, left, part = self._added(), self._device[index], self._left[index], self._part[index]
        return (added[device, left] * (1 - part) + added[device, left + 1] * part) / self._baseline[index]

    def result(self) -> SweepDrift:
        """The fitted drift; a device without rows gets its relatives' (the same side of Volta, as hosts go by age)."""
        added = self._added().detach().numpy().astype(np.float64)
        generation = {name: find_device(name).compute_capability >= (7, 0) for name in self._all}
        trained = [str(name) for name in self._names]
        relatives = {
            name: tuple(each for each in trained if generation[each] == generation[name]) for name in self._all
        }
        return SweepDrift(knots=_KNOTS, added_ms=dict(zip(trained, added, strict=True)), relatives=relatives)
