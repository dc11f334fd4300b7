"""How much of a captured call its own kernels explain: the error of a sum of kernels that knew each of them.

    python -m dippm.evaluation.traced_calls --labels data/labels/h200/labels.parquet data/labels/h100/labels.parquet
        --traces data/labels/h200/traces.parquet data/labels/h100/traces.parquet --report docs/reports/traced_calls.md

A trace of the same call tells the time of each kernel, and :mod:`dippm.costs.captured_time` what these take in a
captured graph. Before the first of them lies the launch of the graph. What is left is how calls and traces of calls
differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.host import GRAPH_LAUNCH_MS
from dippm.datasets.captured_operators import captured_ms
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.datasets.store.traces import read_traces
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.measuring.operator_run import OperatorRun

__all__ = ["TracedCall", "explained_errors", "main", "sections_of", "traced_calls"]

_SCATTERS = (0.0, 0.01, 0.03, 0.1, np.inf)
_LENGTHS_MS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, np.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedCall:
    """A captured call and the kernels of a trace of it.

    Args:
        device: Name of the device.
        call_ms: Measured time of the call, mean of the timed ones.
        scatter: Standard deviation of the timed calls over their mean.
        kernels_ms: Time of all kernels of the trace in a captured graph, with what lies between them.
    """

    device: str
    call_ms: float
    scatter: float
    kernels_ms: float


def traced_calls(labels: Sequence[Label], traces: Mapping[str, Sequence[OperatorRun]]) -> list[TracedCall]:
    """The captured calls of inference that were traced.

    Args:
        labels: All labels.
        traces: The operators of each traced label, by its key.
    """
    calls = []
    for label in labels:
        conditions, measurement = label.configuration.conditions, label.measurement
        runs = traces.get(label.key, ())
        is_captured = conditions.runtime is Runtime.CUDA_GRAPH and conditions.mode is Mode.INFERENCE
        if not any(run.kernels for run in runs) or not is_captured or not measurement.latency_ms:
            continue
        calls.append(
            TracedCall(
                device=measurement.device,
                call_ms=measurement.latency_ms,
                scatter=(measurement.latency_std_ms or 0.0) / measurement.latency_ms,
                kernels_ms=sum(captured_ms(run) for run in runs),
            )
        )
    return calls


def explained_errors(calls: Sequence[TracedCall]) -> npt.NDArray[np.float64]:
    """By what the launch, kernels and gaps are off the measured call, signed share of it, [n]."""
    return np.array([(GRAPH_LAUNCH_MS + call.kernels_ms) / call.call_ms - 1.0 for call in calls])


def sections_of(calls: Sequence[TracedCall]) -> list[Section]:
    """The report."""
    groups = {"all": list(calls)}
    for device in sorted({call.device for call in calls}):
        groups[device] = [call for call in calls if call.device == device]
    for low, high in pairwise(_SCATTERS):
        name = f"timed calls scatter by {100 * low:.0f} % {'or more' if high == np.inf else f'to {100 * high:.0f} %'}"
        groups[name] = [call for call in calls if low <= call.scatter < high]
    for low, high in pairwise(_LENGTHS_MS):
        name = f"calls of {low:.0f} ms {'or more' if high == np.inf else f'to {high:.0f} ms'}"
        groups[name] = [call for call in calls if low <= call.call_ms < high]
    return [
        Section(
            title="How much of a captured call its own kernels explain",
            text=[
                f"Each of {len(calls)} captured calls was traced once more. The sum of its kernels, of what is waited "
                f"for between them and of {1e3 * GRAPH_LAUNCH_MS:.0f} microseconds for the launch, beside the time "
                "that was measured: the error of a sum that knew every kernel of the call. The rest is how the two "
                "runs differ: other processes on the device, clocks, gaps that are not the same everywhere, kernels "
                "that the tracer has one after the other, libraries that chose another kernel.",
            ],
            tables=[
                Table(
                    header=["calls", "number", "mean absolute error, %", "median, %", "90 % below, %", "bias, %"],
                    rows=[_row(name, explained_errors(own)) for name, own in groups.items() if own],
                )
            ],
        )
    ]


def _row(name: str, errors: npt.NDArray[np.float64]) -> list[str]:
    absolute = 100.0 * np.abs(errors)
    figures = (absolute.mean(), np.median(absolute), np.percentile(absolute, 90.0))
    return [name, str(len(errors)), *(f"{figure:.1f}" for figure in figures), f"{100.0 * np.median(errors):+.1f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: write the report."""
    parser = argparse.ArgumentParser(description="How much of captured calls their own kernels explain.")
    parser.add_argument("--labels", type=Path, nargs="+", required=True, help="labels with captured calls")
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="Parquet files of their traces")
    parser.add_argument("--report", type=Path, required=True, help="Markdown file to write")
    options = parser.parse_args(arguments)
    labels = [label for path in options.labels for label in read_parquet(path)]
    traces = {key: runs for path in options.traces for key, runs in read_traces(path).items()}
    text = render_markdown("Captured calls beside their kernels", sections_of(traced_calls(labels, traces)), {})
    options.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
