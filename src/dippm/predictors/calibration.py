"""What predictor 0 was fitted to, and how far it was off on models that it was not fitted to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.context import eager_margin_mb
from dippm.costs.energy import PowerModel
from dippm.costs.rates import Rates, architecture_of
from dippm.costs.software import Software
from dippm.devices import DeviceSpec
from dippm.errors import DippmError

__all__ = ["ARTEFACT_PATH", "CERTAIN_PARTS", "TRAINING_ARTEFACT_PATH", "Calibration"]

FloatArray = npt.NDArray[np.float64]

# Calls that wait for the host for this part of their time or more are unlike those that keep the board busy: assumed.
_HALF = 0.5

#: The shipped calibration.
ARTEFACT_PATH = Path(__file__).with_name("artefact") / "physics.json"

#: The same for training steps.
TRAINING_ARTEFACT_PATH = ARTEFACT_PATH.with_name("physics_training.json")

#: Parts of the memory whose size follows from the model alone.
CERTAIN_PARTS = ("weights", "gradients", "optimizer", "kv_cache")

_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Coefficients and errors of predictor 0.

    Spreads are half-widths of intervals of ``log(predicted / measured)``. Those of the latency are 90 % quantiles by
    split conformal prediction. That of the memory is not: there are no labels of it in inference.

    Args:
        version: Version of the fit.
        rates: Sustained rates.
        power: Power model.
        measured_devices: Devices with whole-model labels.
        measured_precisions: Precisions with whole-model labels.
        latency_spread: On unseen models of a measured device and precision.
        latency_spread_elsewhere: On a device left out of the fit, in the same precision and runtime.
        power_spread: 90 % quantile over the rows of the process that is met worst when all boards whose chip is made in
            it are left out, at the measured time.
        memory_spread: Of the memory beside context and weights, upwards: the least that contradicts at most 5 % of the
            statements that a batch did not fit a device. A statement cannot confirm an interval.
        memory_spread_low: The same downwards, of the statements that a batch fitted.
        context_margin_mb: By how much less than estimated a process may hold beside tensors, MiB, where kernels are
            loaded lazily; assumed.
        context_margin_high_mb: By how much more it may hold, MiB: 900 leads to what best tells batches that fitted from
            those that failed on an RTX 3090 in NHWC under PyTorch 2.4, about 1,200 MiB beside tensors.
        labels: The labels, in words.
        provenance: Seed, data hash, errors and the command that makes the artefact.
        power_devices: Devices whose energy the power model was fitted on.
        power_spreads: The spread of the power by compute capability, on those of ``power_devices`` that are of it and
            have coefficients of their own: the 90 % quantile over the rows of families that were left out of their fit,
            at the measured time.
        busy_power_spreads: The same for calls whose kernels keep the board busy throughout, beside the doubt of the
            time: where that is met amiss the power errs the other way. The least with which nine in ten energies of
            models and families that were left out lie in their intervals. None of these waited for the host.
        architectures: By compute capability, where ``rates`` has rates that were measured on an architecture: the
            ``device`` and ``precisions`` of the labels, at inference, the ``half_width`` of the interval on families
            that were left out of the fit, and its errors.
    """

    version: str
    rates: Rates
    power: PowerModel
    measured_devices: tuple[str, ...]
    measured_precisions: tuple[str, ...]
    latency_spread: float
    latency_spread_elsewhere: float
    power_spread: float
    memory_spread: float
    memory_spread_low: float
    context_margin_mb: float
    context_margin_high_mb: float
    labels: str
    provenance: Mapping[str, object]
    power_devices: tuple[str, ...] = ()
    power_spreads: Mapping[str, float] = field(default_factory=dict)
    busy_power_spreads: Mapping[str, float] = field(default_factory=dict)
    architectures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def power_spread_on(self, device: DeviceSpec, busy_share: FloatArray) -> FloatArray:
        """By what factor, as a logarithm, the power of a device may be off.

        Args:
            device: The device.
            busy_share: Part of the time of each call in which a kernel runs.

        Shapes:
            busy_share: any; result: as that.
        """
        waiting = busy = self.power_spread
        if (device.parent or device.name) in self.power_devices:
            waiting = self.power_spreads.get(architecture_of(device), waiting)
            busy = self.busy_power_spreads.get(architecture_of(device), waiting)
        result: FloatArray = waiting + (busy - waiting) * np.clip((busy_share - _HALF) / (1.0 - _HALF), 0.0, 1.0)
        return result

    def context_margins_mb(self, device: DeviceSpec, software: Software) -> tuple[float, float]:
        """By how much less and by how much more than estimated a process may hold beside tensors, MiB."""
        if software.loads_lazily:
            return self.context_margin_mb, self.context_margin_high_mb
        margin = eager_margin_mb(device, software)
        return margin, margin

    @classmethod
    def read(cls, path: Path = ARTEFACT_PATH) -> Calibration:
        """Read an artefact.

        Raises:
            DippmError: ``artefact.unreadable`` where the file is missing, damaged or of another format.
        """
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held.pop("format") != _FORMAT:
                raise ValueError("another format")
            return cls(
                rates=Rates(**held.pop("rates")),
                power=PowerModel.from_json(held.pop("power")),
                measured_devices=tuple(held.pop("measured_devices")),
                measured_precisions=tuple(held.pop("measured_precisions")),
                power_devices=tuple(held.pop("power_devices", ())),
                **held,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise DippmError(
                f"The calibration '{path}' cannot be read: {exc}.", code="artefact.unreadable", cure="Reinstall dippm."
            ) from exc

    def write(self, path: Path) -> None:
        """Write the artefact."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)
        # Lists of numbers stand in one line each.
        text = re.sub(r"\[[-+.\de,\s]*\]", lambda found: " ".join(found.group().split()), text)
        path.write_text(text + "\n", encoding="utf-8")
