"""What the predictor for CPUs was fitted to, and how far off on models and machines that it was not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares
from dippm.errors import DippmError

__all__ = ["CPU_ARTEFACT_PATH", "CpuCalibration", "CpuMachine", "CpuMemory"]

#: The shipped calibration.
CPU_ARTEFACT_PATH = Path(__file__).with_name("artefact") / "cpu.json"

_FORMAT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuMachine:
    """A machine that labels were taken on.

    Args:
        device: Its name.
        rates: What it gave while they were taken.
    """

    device: str
    rates: CpuRates


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuMemory:
    """Resident memory of a process beside what it held before the model.

    Args:
        weights: MiB for each MiB of weights.
        activations: MiB for each MiB of other live tensors at the peak: the heap has gaps, convolutions make copies.
        fixed_mb: MiB that every model adds.
        library_mb: MiB of a library that the model comes from, the first time that the process imports one.
        context_mb: MiB of a process that has imported PyTorch alone.
        spread: 90 % quantile of the error on held-out models over ``what is predicted + slack_mb``.
        slack_mb: Keeps the spread from vanishing with small models, MiB.
    """

    weights: float
    activations: float
    fixed_mb: float
    library_mb: float
    context_mb: float
    spread: float
    slack_mb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuCalibration:
    """Coefficients and errors of the predictor for CPUs.

    Args:
        version: Version of the fit.
        machines: What the labels were taken on, one for each number of threads.
        shares: Coefficients of every family of operators.
        memory: Coefficients of the memory.
        latency_spread: Half-width of the interval of ``log(predicted / measured)``: 90 % quantile on held-out models by
            split conformal prediction.
        doubt_per_rate: What a machine adds to it for each unit of its distance from those of the labels.
        doubt_beyond_labels: What a model adds to it that takes longer than those of the labels, for each unit of the
            logarithm of the ratio.
        longest_ms: Latency of the slowest model of the labels.
        labels: The labels, in words.
        provenance: Seed, data hash, errors and the command that makes the artefact.
    """

    version: str
    machines: tuple[CpuMachine, ...]
    shares: Mapping[CpuFamily, CpuShares]
    memory: CpuMemory
    latency_spread: float
    doubt_per_rate: float
    doubt_beyond_labels: float
    longest_ms: float
    labels: str
    provenance: Mapping[str, object]

    @classmethod
    def read(cls, path: Path = CPU_ARTEFACT_PATH) -> CpuCalibration:
        """Read an artefact.

        Raises:
            DippmError: ``artefact.unreadable`` where the file is missing, damaged or of another format.
        """
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held.pop("format") != _FORMAT:
                raise ValueError("another format")
            shares = held.pop("shares")
            return cls(
                machines=tuple(
                    CpuMachine(device=machine["device"], rates=CpuRates(**machine["rates"]))
                    for machine in held.pop("machines")
                ),
                shares={family: CpuShares(**shares[family.value]) for family in CpuFamily},
                memory=CpuMemory(**held.pop("memory")),
                **held,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DippmError) as exc:
            raise DippmError(
                f"The calibration '{path}' cannot be read: {exc}.", code="artefact.unreadable", cure="Reinstall dippm."
            ) from exc

    def write(self, path: Path) -> None:
        """Write the artefact."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
