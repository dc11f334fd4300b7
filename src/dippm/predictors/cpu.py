"""Predictions for a CPU whose rates have been measured: the times of all operators, summed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from dippm.costs.autocast import LOWERS_TO, own_formats
from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.cpu_time import CpuRates, node_seconds
from dippm.costs.live_tensors import live_memory
from dippm.costs.open_loops import most_runs_of, warn_of_open_loops
from dippm.costs.precision import Precision
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.errors import UnsupportedError
from dippm.graph import Graph
from dippm.predictors.answerable import (
    DOUBT_PER_UNSUPPORTED_SHARE,
    UNSUPPORTED_KINDS,
    check_answerable,
    name_unsupported,
    warn_of_batch,
)
from dippm.predictors.cpu_calibration import CpuCalibration, CpuMachine
from dippm.predictors.prediction import Interval, ModelInfo, NoSlice, Prediction, PredictorInfo
from dippm.units import BYTES_PER_MIB

__all__ = ["CpuPredictor"]


_NAME = "cpu-0"
# On a CPU PyTorch's FP32 is what it says.
_PRECISIONS = (Precision.FP32, Precision.FP32_STRICT)
# Threads share out a large matrix product well, other operators less so, and wait for each other on a busy machine.
_DOUBT_OF_OTHER_THREADS = math.log(2.0)
_WARNED_FACTOR = 1.5
# Libraries differ in size, and the labels tell of one: assumed.
_DOUBT_PER_LIBRARY = 0.5


class CpuPredictor:
    """Inference in eager PyTorch, FP32; no energy, which nothing was measured of.

    Args:
        calibration: Coefficients and errors.
    """

    def __init__(self, calibration: CpuCalibration) -> None:
        self._calibration = calibration

    @staticmethod
    @cache
    def load() -> CpuPredictor:
        """The shipped predictor, read once per process."""
        return CpuPredictor(CpuCalibration.read())

    def predict(
        self,
        graph: Graph,
        *,
        batches: Sequence[int],
        device: str,
        rates: CpuRates,
        conditions: Conditions,
        context_mb: float | None = None,
        imports_library: bool = False,
    ) -> list[Prediction]:
        """Predict a graph at every batch.

        Args:
            graph: The model.
            batches: Samples per call.
            device: Name of the CPU.
            rates: What it reaches, with the threads that the model will have.
            conditions: Conditions of the run.
            context_mb: Memory that the process holds before the model, MiB; None for one that has imported PyTorch
                alone.
            imports_library: Whether the process will import the library that the model comes from.

        Raises:
            UnsupportedError: ``mode.unsupported``, ``precision.unsupported``, ``layout.unsupported`` or
                ``runtime.unsupported`` where the conditions were not measured; ``graph.fixed_batch`` where the graph
                holds for another batch only; ``graph.empty`` where no operator runs.
        """
        _check_conditions(conditions)
        check_answerable(graph, batches)
        workload = Workload.from_graph(_without_autocast(graph))
        at_macs = workload.at(batches).macs.sum(axis=1)
        nearest, shares = self._nearest(rates).rates, self._calibration.shares
        seconds = node_seconds(workload, batches, rates, shares)
        latency_ms = 1e3 * seconds.sum(axis=1)
        is_unsupported = np.array([node.kind in UNSUPPORTED_KINDS for node in graph.nodes], dtype=np.bool_)
        latency_at_labels_ms = 1e3 * node_seconds(workload, batches, nearest, shares).sum(axis=1)
        beyond = np.log(np.maximum(latency_at_labels_ms / self._calibration.longest_ms, 1.0))
        spread = (
            self._calibration.latency_spread
            + self._calibration.doubt_per_rate * rates.distance_to(nearest)
            + self._calibration.doubt_beyond_labels * beyond
            + (0.0 if rates.threads == nearest.threads else _DOUBT_OF_OTHER_THREADS)
            + DOUBT_PER_UNSUPPORTED_SHARE * 1e3 * seconds[:, is_unsupported].sum(axis=1) / latency_ms
        )
        most_runs = np.array([most_runs_of(node.attributes) for node in graph.nodes])
        longest_ms = (latency_ms + 1e3 * (seconds * (most_runs - 1.0)).sum(axis=1)) * np.exp(spread)
        latency_in = zip((latency_ms / np.exp(spread)).tolist(), longest_ms.tolist(), strict=True)
        memory = self._memory(workload, batches, context_mb=context_mb, imports_library=imports_library)
        model = ModelInfo.of(graph)
        inputs = [graph.tensors[index] for index in graph.inputs]
        return [
            Prediction(
                model=model,
                device=device,
                conditions=conditions,
                batch=batch,
                inputs={tensor.name: tuple(dim.at(batch) for dim in tensor.shape) for tensor in inputs},
                macs=int(macs),
                latency_ms=latency,
                energy_j=None,
                memory_mb=sum(parts.values()),
                memory_parts_mb=parts,
                mig=None,
                no_slice=NoSlice.NO_MIG,
                intervals={"latency_ms": latency_interval, "memory_mb": memory_interval},
                predictor=PredictorInfo(
                    name=_NAME,
                    version=self._calibration.version,
                    labels=self._calibration.labels,
                    warnings=(
                        *self._warnings(graph, rates, beyond=float(past), most_runs=float(most_runs.max())),
                        *warn_of_batch(graph, batch),
                    ),
                ),
            )
            for batch, macs, latency, latency_interval, (parts, memory_interval), past in zip(
                batches, at_macs, latency_ms.tolist(), latency_in, memory, beyond, strict=True
            )
        ]

    def _nearest(self, rates: CpuRates) -> CpuMachine:
        """The machine of the labels that is most like this one, of as many threads where there is one."""
        return min(
            self._calibration.machines,
            key=lambda machine: (machine.rates.threads != rates.threads, rates.distance_to(machine.rates)),
        )

    def _memory(
        self, workload: Workload, batches: Sequence[int], *, context_mb: float | None, imports_library: bool
    ) -> list[tuple[dict[str, float], Interval]]:
        """Parts and interval at every batch; the interval's lower end does without the library."""
        memory = self._calibration.memory
        live = live_memory(MemoryTimeline.from_workload(workload), batches)
        held = memory.context_mb if context_mb is None else context_mb
        library = memory.library_mb if imports_library else 0.0
        weights_mb = live.weight_bytes / BYTES_PER_MIB
        others_mb = (live.peak_bytes - live.weight_bytes) / BYTES_PER_MIB
        answers = []
        for weights, others in zip(weights_mb.tolist(), others_mb.tolist(), strict=True):
            slack = (memory.weights - 1.0) * weights + (memory.activations - 1.0) * others + memory.fixed_mb
            parts = {"context": held, "library": library, "weights": weights, "activations": others, "slack": slack}
            total = sum(parts.values())
            margin = memory.spread * (weights + others + slack + memory.slack_mb)
            low = max(total - library - margin, held + weights)
            answers.append((parts, (low, total + margin + _DOUBT_PER_LIBRARY * library)))
        return answers

    def _warnings(self, graph: Graph, rates: CpuRates, *, beyond: float, most_runs: float) -> tuple[str, ...]:
        warnings = [*graph.warnings, *warn_of_open_loops(most_runs)]
        known = self._nearest(rates)
        if own_formats(graph.columns.attributes, None):
            warnings.append("The model switches autocast on for parts of it: on a CPU they are taken to stay in FP32.")
        if names := name_unsupported(graph):
            warnings.append(f"Operators without a rule of their own, costed by their bytes: {names}.")
        if rates.threads != known.rates.threads:
            threads = ", ".join(sorted({str(machine.rates.threads) for machine in self._calibration.machines}))
            warnings.append(
                f"Threads of the labels: {threads}, of this run: {rates.threads}: the interval is widened by "
                "assumption."
            )
        if rates.distance_to(known.rates) > math.log(_WARNED_FACTOR):
            warnings.append(
                f"This CPU reaches {_describe(rates)}; the nearest one of the labels ({known.device}) reached "
                f"{_describe(known.rates)}: the interval is wider for it."
            )
        if beyond > math.log(_WARNED_FACTOR):
            warnings.append(
                "It is slower than every model of the labels "
                f"({self._calibration.longest_ms:.0f} ms at most): the interval is wider for it."
            )
        return tuple(warnings)


def _without_autocast(graph: Graph) -> Graph:
    """A model that switches autocast on for no part: a model means that of a GPU, and no CPU was measured with it."""
    if not own_formats(graph.columns.attributes, None):
        return graph
    nodes = [
        replace(node, attributes={name: value for name, value in node.attributes.items() if name != LOWERS_TO})
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _describe(rates: CpuRates) -> str:
    return (
        f"{rates.gflops:.0f} GFLOP/s in matrix products, {rates.convolution_gflops:.0f} in convolutions and "
        f"{rates.bandwidth_gb_s:.1f} GB/s"
    )


def _check_conditions(conditions: Conditions) -> None:
    checks = (
        (conditions.mode is Mode.INFERENCE, "mode", conditions.mode, Mode.INFERENCE),
        (conditions.precision in _PRECISIONS, "precision", conditions.precision, Precision.FP32),
        (conditions.layout is Layout.NCHW, "layout", conditions.layout, Layout.NCHW),
        (conditions.runtime is Runtime.EAGER, "runtime", conditions.runtime, Runtime.EAGER),
    )
    for is_supported, what, given, known in checks:
        if not is_supported:
            raise UnsupportedError(
                f"The predictor for CPUs does not know the {what} {given.value}.",
                code=f"{what}.unsupported",
                cure=f"It predicts {known.value}.",
            )
