"""Captured calls beside the kernels of their traces, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.datasets.store.traces import write_traces
from dippm.evaluation.report_page import render_markdown
from dippm.evaluation.traced_calls import (
    TracedCall,
    explained_errors,
    main,
    sections_of,
    traced_calls,
)
from dippm.measuring.operator_run import KernelRun, OperatorRun


def _run(*durations_us: float) -> OperatorRun:
    kernels = tuple(
        KernelRun(name="relu", launched_by="aten::relu", start_us=float(at), duration_us=duration_us)
        for at, duration_us in enumerate(durations_us)
    )
    return OperatorRun(
        name="aten::relu", input_shapes=((1, 3, 8, 8),), scalars=("",), is_backward=False, kernels=kernels
    )


def _captured(make_label: Callable[..., Label], number: int, call_ms: float, std_ms: float) -> Label:
    label = make_label(number, latency_ms=call_ms, conditions=Conditions.parse(precision="amp", runtime="cuda-graph"))
    return replace(label, measurement=replace(label.measurement, latency_std_ms=std_ms))


def _call(call_ms: float, kernels_ms: float, scatter: float = 0.0) -> TracedCall:
    return TracedCall(device="H200", call_ms=call_ms, scatter=scatter, kernels_ms=kernels_ms)


def test_calls_that_were_captured_and_traced_are_compared(make_label: Callable[..., Label]) -> None:
    first, untraced = (_captured(make_label, number, 0.5, 0.01) for number in range(2))
    eager = make_label(3, latency_ms=0.5)
    traces = {label.key: [_run(100.0, 200.0), _run(50.0), _run()] for label in (first, eager)}
    (call,) = traced_calls([first, untraced, eager], traces)
    assert call.call_ms == 0.5
    assert call.kernels_ms == pytest.approx(0.9943 * 0.35)
    assert call.scatter == pytest.approx(0.02)


def test_the_launch_and_the_kernels_are_set_beside_the_call() -> None:
    assert explained_errors([_call(1.0, 1.03), _call(2.0, 1.98), _call(1.0, 0.78)]) == pytest.approx([0.05, 0.0, -0.2])


def test_the_report_tells_calls_that_scatter_and_short_ones_apart() -> None:
    calls = [_call(0.5, 0.48), _call(10.0, 9.98), _call(2.5, 1.98, scatter=0.2)]
    text = render_markdown("Calls", sections_of(calls), {})
    assert "20 microseconds for the launch" in text
    assert "| all | 3 | 6.7 | 0.0 | 16.0 | +0.0 |" in text
    assert "| timed calls scatter by 10 % or more | 1 | 20.0 | 20.0 | 20.0 | -20.0 |" in text
    assert "| calls of 8 ms to 16 ms | 1 | 0.0 | 0.0 | 0.0 | +0.0 |" in text
    assert "16 ms or more" not in text


def test_the_command_writes_the_report(make_label: Callable[..., Label], tmp_path: Path) -> None:
    label = _captured(make_label, 0, 0.5, 0.01)
    labels, traces, report = tmp_path / "labels.parquet", tmp_path / "traces.parquet", tmp_path / "report.md"
    export_parquet([label], labels)
    write_traces(traces, [(label.key, [_run(100.0, 200.0)])])
    main(["--labels", str(labels), "--traces", str(traces), "--report", str(report)])
    assert "Each of 1 captured calls" in report.read_text(encoding="utf-8")
