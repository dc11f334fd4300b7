"""Labels of a CPU laid out for a fit, and what that CPU reached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.cpu_time import CpuRates, CpuWork
from dippm.costs.live_tensors import live_memory
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.datasets.disturbances import even_out_pace
from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.selection import LabelSelection, merge_repeats
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.errors import DippmError, UsageError
from dippm.measuring.cpu_rates import measure_cpu_rates
from dippm.units import BYTES_PER_MIB

__all__ = [
    "RATES",
    "RATES_FILE",
    "CpuRows",
    "CpuTable",
    "MeasuredRates",
    "measure_best_rates",
    "read_rows",
    "read_table",
]

FloatArray = npt.NDArray[np.float64]

RATES_FILE = "rates.json"
"""Name of the file beside a table of labels that holds what the machine reached."""

RATES = tuple(field.name for field in fields(CpuRates) if field.name != "threads")
"""Names of all rates."""

_WORK = tuple(field.name for field in fields(CpuWork))
# What is usual where a rate was not measured: another rate, and the factor on it.
_USUAL = {
    "convolution_gflops": ("gflops", 1.0),
    "cache_gb_s": ("bandwidth_gb_s", 2.5),
    "fresh_gb_s": ("bandwidth_gb_s", 0.125),
    "convolution_us": ("dispatch_us", 45.0),
}
_RATE_TRIES = 10
_DIGITS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRates:
    """What a machine reached, as far as it was measured.

    Args:
        rates: All rates; one that was never measured is what is usual beside the others.
        missing: Names of those that were never measured.
    """

    rates: CpuRates
    missing: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> MeasuredRates:
        """Read a file in which a rate that was never measured is null.

        Raises:
            UsageError: ``rates.unreadable`` where the file is missing or wrong, or lacks one of the first rates.
        """
        try:
            held: Mapping[str, float | None] = json.loads(path.read_text(encoding="utf-8"))
            missing = tuple(name for name in RATES if held[name] is None)
            values = dict(held)
            for name in missing:
                other, factor = _USUAL[name]
                known = held[other]
                if known is None:
                    raise KeyError(other)
                values[name] = factor * known
            return cls(rates=CpuRates(**values), missing=missing)  # type: ignore[arg-type]
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise UsageError(
                f"The rates '{path}' cannot be read: {exc!r}.",
                code="rates.unreadable",
                cure="Measure them on that machine with --measure-rates.",
            ) from exc

    def write(self, path: Path) -> None:
        """Write the file, null for what was never measured."""
        held = {name: None if name in self.missing else value for name, value in asdict(self.rates).items()}
        path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def measure_best_rates() -> MeasuredRates:
    """The best of many tries: what else runs on the machine only ever makes it slower."""
    tries = [measure_cpu_rates() for _ in range(_RATE_TRIES)]
    best = {name: (min if name.endswith("_us") else max)(getattr(rates, name) for rates in tries) for name in RATES}
    rounded = {name: float(f"{value:.{_DIGITS}g}") for name, value in best.items()}
    return MeasuredRates(rates=CpuRates(**rounded, threads=tries[0].threads))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CpuRows:
    """Labels with their work laid out.

    Args:
        labels: The labels.
        work: Work of each by family.
        weights_mb: Weights of each, MiB.
        others_mb: Other live tensors at the peak, MiB.

    Shapes:
        work: [n_labels, n_families]; the others: [n_labels].
    """

    labels: tuple[Label, ...]
    work: CpuWork
    weights_mb: FloatArray
    others_mb: FloatArray

    @property
    def latency_ms(self) -> FloatArray:
        """Measured latencies, ms."""
        return np.array([label.measurement.latency_ms for label in self.labels], dtype=np.float64)

    @property
    def added_mb(self) -> FloatArray:
        """What the process held beyond what it held before the model, MiB."""
        held = [(label.measurement.memory_mb, label.measurement.context_mb) for label in self.labels]
        memory, context = np.array(held, dtype=np.float64).T
        result: FloatArray = memory - context
        return result

    def of(self, labels: Sequence[Label]) -> CpuRows:
        """The rows of some of the labels."""
        keys = {label.key for label in labels}
        chosen = np.array([label.key in keys for label in self.labels], dtype=np.bool_)
        arrays = {name: getattr(self.work, name)[chosen] for name in _WORK}
        return CpuRows(
            labels=tuple(label for label in self.labels if label.key in keys),
            work=replace(self.work, **arrays),
            weights_mb=self.weights_mb[chosen],
            others_mb=self.others_mb[chosen],
        )


def read_rows(labels: Sequence[Label], folder: Path) -> CpuRows:
    """Lay out the work of labels.

    Args:
        labels: Labels of one selection.
        folder: Cache of their graphs, filled where it lacks any.

    Raises:
        DippmError: ``graphs.unread`` where the graph of a model cannot be read.
    """
    cache = GraphCache(folder)
    failures = build_graphs([label.recipe for label in labels], cache, jobs=1)
    if failures:
        raise DippmError(
            f"{len(failures)} models cannot be read, the first of them {failures[0].recipe.model_key}: "
            f"{failures[0].reason}",
            code="graphs.unread",
        )
    works, lives = [], []
    workloads: dict[tuple[str, int | None], tuple[Workload, MemoryTimeline]] = {}
    for label in labels:
        key, batch = label.recipe.model_key, label.recipe.batch
        prepared = workloads.get((key, None)) or workloads.get((key, batch))
        if prepared is None:
            cached = cache.load(key, batch=batch)
            if cached is None:
                raise DippmError(f"The cache '{folder}' has lost the graph of model {key}.", code="graphs.unread")
            workload = Workload.from_graph(cached.graph)
            prepared = workload, MemoryTimeline.from_workload(workload)
            workloads[key, cached.graph.fixed_batch] = prepared
        workload, timeline = prepared
        threads = label.measurement.software.threads
        works.append(CpuWork.of(workload, [batch], threads=threads).by_family())
        lives.append(live_memory(timeline, [batch]))
    weights = np.concatenate([live.weight_bytes for live in lives])
    return CpuRows(
        labels=tuple(labels),
        work=CpuWork(**{name: np.concatenate([getattr(work, name) for work in works]) for name in _WORK}),
        weights_mb=weights / BYTES_PER_MIB,
        others_mb=(np.concatenate([live.peak_bytes for live in lives]) - weights) / BYTES_PER_MIB,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CpuTable:
    """Labels that were taken on one machine with one number of threads.

    Args:
        path: Their Parquet file.
        rows: The labels.
        measured: What the machine reached.
    """

    path: Path
    rows: CpuRows
    measured: MeasuredRates

    @property
    def device(self) -> str:
        """Name of the machine."""
        return self.rows.labels[0].measurement.device

    def of(self, labels: Sequence[Label]) -> CpuTable:
        """The same table with some of its labels."""
        return replace(self, rows=self.rows.of(labels))


def read_table(path: Path, graphs: Path) -> CpuTable:
    """Read a table of labels and the rates beside it.

    Args:
        path: Parquet file; inference in FP32 and eager PyTorch is taken from it.
        graphs: Cache of their graphs, filled where it lacks any.

    Raises:
        UsageError: ``rates.unreadable``, or ``rates.threads`` where the rates are of another number of threads than the
            labels.
        DippmError: ``graphs.unread`` where the graph of a model cannot be read.
    """
    labels = merge_repeats(even_out_pace(LabelSelection().choose(read_parquet(path))))
    measured = MeasuredRates.read(path.with_name(RATES_FILE))
    threads = {label.measurement.software.threads for label in labels}
    if threads != {measured.rates.threads}:
        raise UsageError(
            f"The labels in '{path}' are of {', '.join(map(str, sorted(threads)))} threads, the rates beside them of "
            f"{measured.rates.threads}.",
            code="rates.threads",
            cure="Give each number of threads its own table, and measure its rates with OMP_NUM_THREADS set to it.",
        )
    return CpuTable(path=path, rows=read_rows(labels, graphs), measured=measured)
