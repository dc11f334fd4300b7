"""What a prediction says: the numbers, how sure they are, and where they come from."""

from __future__ import annotations

import enum
import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dippm.costs.conditions import Conditions, Mode
from dippm.costs.software import Software
from dippm.devices import DeviceSpec
from dippm.graph import Graph, OpKind
from dippm.graph.linear_layers import count_all_quantised, count_frozen
from dippm.predictors.warning_order import order_warnings

__all__ = ["ModelInfo", "NoSlice", "Prediction", "PredictorInfo"]

Interval = tuple[float, float]

_VIEW = tuple(OpKind).index(OpKind.VIEW)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """The model that was read.

    Args:
        source: Path or name.
        framework: Framework of the file.
        nodes: Number of operators, views left out.
        parameters: Number of trained weights.
        frozen_parameters: Number of those that it has beside them where adapters alone are trained; else 0.
        quantised_weights: Number of weights that are stored in fewer than 16 bits, by their type; empty where none are.
        unsupported_ops: Operators without a rule of their own: name to count.
    """

    source: str
    framework: str
    nodes: int
    parameters: int
    frozen_parameters: int = 0
    quantised_weights: Mapping[str, int] = field(default_factory=dict)
    unsupported_ops: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, *, parameters: int | None = None, has_adapters: bool = False, is_whole: bool = False
    ) -> ModelInfo:
        """What a graph says of its model.

        Args:
            graph: The graph.
            parameters: Number of weights that are trained, where that is known already.
            has_adapters: Whether those are of adapters, and its own are frozen.
            is_whole: Whether it is known to have no quantised weights.
        """
        quantised = {} if is_whole else count_all_quantised(graph)
        return cls(
            source=graph.source,
            framework=graph.framework,
            nodes=int(np.count_nonzero(graph.columns.kind != _VIEW)),
            parameters=graph.parameter_count if parameters is None else parameters,
            frozen_parameters=count_frozen(graph) if has_adapters else 0,
            quantised_weights={dtype.value: count for dtype, count in quantised.items()},
            unsupported_ops=graph.unsupported_ops,
        )

    def to_dict(self) -> dict[str, object]:
        """The ``model`` object of the JSON answer."""
        return {
            "source": self.source,
            "framework": self.framework,
            "nodes": self.nodes,
            "parameters": self.parameters,
            "frozen_parameters": self.frozen_parameters,
            "quantised_weights": dict(self.quantised_weights),
            "unsupported_ops": dict(self.unsupported_ops),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorInfo:
    """Provenance of a prediction.

    Args:
        name: Which predictor.
        version: Its version.
        labels: Measurements that it was fitted on, with device and software.
        warnings: What the prediction cannot vouch for, in words; they are put in the order of what they cost.
    """

    name: str
    version: str
    labels: str
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "warnings", order_warnings(self.warnings))

    def to_dict(self) -> dict[str, object]:
        """The ``predictor`` object of the JSON answer."""
        return {"name": self.name, "version": self.version, "labels": self.labels, "warnings": list(self.warnings)}


class NoSlice(enum.StrEnum):
    """Why a prediction names no MIG slice, as a person reads it."""

    IS_SLICE = "is a slice"
    """The device is one itself, which holds no others."""
    NO_MIG = "no MIG"
    """The device cannot be cut into slices."""
    TOO_LARGE = "too large"
    """No slice of the device is large enough."""
    UNKNOWN = "unknown"
    """The memory or its interval is not known, or which slices the device has."""

    @classmethod
    def why(cls, device: DeviceSpec, *, is_known: bool = True) -> NoSlice:
        """Why no slice of a device is named.

        Args:
            device: The device.
            is_known: Whether the memory is known that a slice is chosen by.
        """
        if device.is_mig_slice:
            return cls.IS_SLICE
        if device.has_unlisted_slices:
            return cls.UNKNOWN
        if not device.mig_profiles:
            return cls.NO_MIG
        return cls.TOO_LARGE if is_known else cls.UNKNOWN


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Predicted cost of one model at one batch on one device.

    Unpacks to ``(memory_mb, energy_j, latency_ms, mig)``, the order of the DIPPM paper.

    Args:
        model: The model that was read.
        device: Canonical name of the device.
        conditions: Precision, mode, layout and runtime that the figures hold for.
        batch: Samples per call.
        inputs: Shape of every input, with the batch, by name.
        macs: Multiply-accumulates of one call (of one training step in training mode).
        latency_ms: Wall time of one call (of one training step in training mode), ms.
        energy_j: Energy that the device draws over one call, idle draw included, J; None where nothing is known of it.
        memory_mb: Device memory that the process holds at its peak, MiB; None where nothing is known of it.
        memory_parts_mb: Parts of ``memory_mb`` by name, MiB; they add up to it. Empty where the predictor knows none.
        mig: Smallest MIG profile that holds it, or None where none is named: ``no_slice`` says why.
        intervals: ``latency_ms``, ``energy_j``, ``memory_mb`` to the [low, high] that holds the measured value in
            90 % of cases; without those that are not known.
        predictor: Provenance and warnings.
        software: The software that the figures hold for; None where ``predictor.labels`` alone say it.
        no_slice: Why ``mig`` is None, where it is.
        needed_mb: Lower and upper end of the memory with which it gets through, MiB: below that of ``memory_mb`` where
            it holds cached memory that it can give back; None where nothing is known of that.
    """

    model: ModelInfo
    device: str
    conditions: Conditions
    batch: int
    inputs: Mapping[str, tuple[int, ...]]
    macs: int
    latency_ms: float
    energy_j: float | None
    memory_mb: float | None
    memory_parts_mb: Mapping[str, float]
    mig: str | None
    intervals: Mapping[str, Interval]
    predictor: PredictorInfo
    software: Software | None = None
    no_slice: NoSlice = NoSlice.UNKNOWN
    needed_mb: Interval | None = None

    @property
    def must_have_mb(self) -> Interval | None:
        """Lower and upper end of what a device must offer, MiB: what is needed, else what is held; None if unknown."""
        return self.needed_mb or self.intervals.get("memory_mb")

    @property
    def step_time_ms(self) -> float | None:
        """Time of one training step, ms; None for inference."""
        return self.latency_ms if self.conditions.mode is Mode.TRAINING else None

    @property
    def mig_name(self) -> str:
        """The MIG slice as a person reads it, or why there is none.

        That is ``"no MIG"``, ``"too large"``, ``"unknown"``, or ``"is a slice"`` of a device that is one itself.
        """
        return self.mig or self.no_slice.value

    @property
    def largest_part(self) -> str:
        """The largest part of the memory at its peak, such as ``"activations"``; ``"unknown"`` without parts."""
        parts = self.memory_parts_mb
        return max(parts, key=lambda name: parts[name]) if parts else "unknown"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the prediction cannot vouch for."""
        return self.predictor.warnings

    def __iter__(self) -> Iterator[float | str | None]:
        """Memory (MiB), energy (J), latency (ms) and MIG profile, as the paper's example unpacks them."""
        yield from (self.memory_mb, self.energy_j, self.latency_ms, self.mig)

    def to_dict(self) -> dict[str, object]:
        """One entry of ``predictions`` in the JSON answer (schema 1)."""
        answer: dict[str, object] = {
            "device": self.device,
            "mode": self.conditions.mode.value,
            "precision": self.conditions.precision.value,
            "layout": self.conditions.layout.value,
            "runtime": self.conditions.runtime.value,
            "software": None if self.software is None else str(self.software),
        }
        if self.conditions.optimizer is not None:
            answer |= {
                "optimizer": self.conditions.optimizer.value,
                "accumulation": self.conditions.accumulation,
                "checkpointing": self.conditions.is_checkpointed,
                "lora": None if self.conditions.adapters is None else str(self.conditions.adapters),
            }
        answer |= {
            "batch": self.batch,
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "macs": self.macs,
            "latency_ms": round_figures(self.latency_ms),
        }
        if self.step_time_ms is not None:
            answer["step_time_ms"] = round_figures(self.step_time_ms)
        answer |= {
            "energy_j": None if self.energy_j is None else round_figures(self.energy_j),
            "memory_mb": None if self.memory_mb is None else round_figures(self.memory_mb),
            "needed_mb": None if self.needed_mb is None else [round_figures(end) for end in self.needed_mb],
            "mig": self.mig,
            "no_slice": None if self.mig else self.no_slice.value,
            "intervals": {
                name: [round_figures(low), round_figures(high)] for name, (low, high) in self.intervals.items()
            },
            "memory_parts_mb": {name: round_figures(value) for name, value in self.memory_parts_mb.items()},
            "predictor": self.predictor.to_dict(),
        }
        return answer

    def __str__(self) -> str:
        mig = text_row("MIG", self.mig_name)
        return "\n".join([self.title(), *self.figure_rows(), mig, *self.warning_rows()])

    def title(self, *, with_batch: bool = True) -> str:
        """What it is of, in one line."""
        conditions = self.conditions
        optimizer = "" if conditions.optimizer is None else f" by {conditions.optimizer.value}"
        batch = f" · batch {self.batch}" if with_batch else ""
        return (
            f"{self.model.source}{batch} · {self.device} · {conditions.precision.value} "
            f"{conditions.layout.value} {conditions.mode.value}{optimizer}, {conditions.runtime.value}"
        )

    def figure_rows(self) -> list[str]:
        """Time, energy and memory with their intervals, each in a line."""
        return [text_row(label, value, unit, interval) for label, value, unit, interval in self._rows()]

    def warning_rows(self) -> list[str]:
        """What it cannot vouch for, each in a line."""
        return [f"  ! {warning}" for warning in self.warnings]

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{label}</th><td>{value} {unit}</td><td>{interval}</td></tr>"
            for label, value, unit, interval in self._rows()
        )
        notes = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        return (
            f"<table><caption>{html.escape(self.model.source)}, batch {self.batch}, {html.escape(self.device)}"
            "</caption>"
            f"<tr><th></th><th>predicted</th><th>90 % interval</th></tr>{rows}"
            f"<tr><th style='text-align:left'>MIG</th><td colspan=2>{html.escape(self.mig_name)}</td></tr></table>"
            + (f"<ul>{notes}</ul>" if notes else "")
        )

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Name, value, unit and interval of each figure; "-" for one that is not known, "" for no interval."""
        for label, value, unit, name in (
            ("latency", self.latency_ms, "ms", "latency_ms"),
            ("energy", self.energy_j, "J", "energy_j"),
            ("memory", self.memory_mb, "MiB", "memory_mb"),
        ):
            if value is None:
                yield label, "-", "", ""
            else:
                ends = self.intervals.get(name)
                yield label, format_figure(value), unit, "" if ends is None else format_interval(ends)


def round_figures(value: float, *, digits: int = 4) -> float:
    """A number at ``digits`` significant digits: more would claim a certainty that is not there."""
    return float(f"{value:.{digits}g}")


def format_figure(value: float) -> str:
    """A number for people: three significant digits, thousands whole."""
    # What rounds to a thousand is one, and not 1e+03.
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_interval(interval: Interval) -> str:
    """Lower and upper end: ``"1.2 – 1.9"``."""
    low, high = interval
    return f"{format_figure(low)} – {format_figure(high)}"


def format_number_of(thing: str, count: int) -> str:
    """How many there are of a thing: ``"1 operator"``, ``"1,204 operators"``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def text_row(label: str, value: str, unit: str = "", interval: str = "") -> str:
    """A figure as answers print it: its name, the value, the unit, and the interval where there is one."""
    return f"  {label:<8} {value:>10} {unit:<4} {f'[{interval}]' if interval else ''}".rstrip()
