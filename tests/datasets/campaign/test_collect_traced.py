from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dippm.datasets.campaign import collect_traced
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet, read_parquet
from dippm.datasets.store.row import label_to_row
from dippm.datasets.store.traces import read_traces
from dippm.measuring.measurement import Outcome

Maker = Callable[..., Label]
# As a campaign writes them: a name, shapes, scalars, whether it is of a way back, and kernels.
RELU = ["aten::relu", [[8, 64, 7, 7]], [""], False, [["relu_kernel", "aten::relu", 0.0, 2.5]]]
BACK = ["aten::threshold_backward", [[8, 64], []], ["", "0"], True, [["back", "aten::threshold_backward", 3.0, 1.25]]]


def lines(labels: Sequence[Label], *traces: list[Any] | None) -> str:
    rows = []
    for number, (label, trace) in enumerate(zip(labels, traces, strict=True)):
        rows.append(json.dumps({"begun": number}))
        traced = {} if trace is None else {"trace": trace, "trace_s": 0.25}
        rows.append(json.dumps({"row": number, **label_to_row(label), **traced}))
    return "\n".join(rows) + "\n"


@pytest.fixture(name="collect")
def _collect(tmp_path: Path) -> Callable[..., tuple[list[Label], dict[str, Any]]]:
    """Collects files into the same two, and reads them."""

    def run(*paths: Path | str) -> tuple[list[Label], dict[str, Any]]:
        labels, traces = tmp_path / "labels.parquet", tmp_path / "traces.parquet"
        collect_traced.main([*map(str, paths), "--labels", str(labels), "--traces", str(traces)])
        return list(read_parquet(labels)), dict(read_traces(traces))

    return run


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_labels_are_added_and_traces_have_their_keys(
    name: str, tmp_path: Path, make_label: Maker, collect: Any
) -> None:
    old, first, second = make_label(0), make_label(1), make_label(2)
    failed = replace(make_label(3, latency_ms=None, outcome=Outcome.FAILED), repeat=0)
    export_parquet([old], tmp_path / "labels.parquet")
    path = tmp_path / name
    text = lines([first, failed, second], [RELU, BACK], None, [RELU]).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    labels, traces = collect(path)
    assert labels == [old, first, failed, second]
    assert list(traces) == [first.key, second.key]
    assert [run.name for run in traces[first.key]] == ["aten::relu", "aten::threshold_backward"]
    back = traces[first.key][1]
    assert (back.input_shapes, back.scalars, back.is_backward) == (((8, 64), ()), ("", "0"), True)
    (kernel,) = back.kernels
    assert (kernel.name, kernel.launched_by, kernel.start_us, kernel.duration_us) == (
        "back",
        "aten::threshold_backward",
        3.0,
        1.25,
    )


def test_later_measurements_become_repeats(tmp_path: Path, make_label: Maker, collect: Any) -> None:
    known, new = make_label(0), make_label(1)
    export_parquet([known], tmp_path / "labels.parquet")
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(lines([make_label(0, latency_ms=8.0), new], [RELU], [RELU]))
    second.write_text(lines([make_label(0, latency_ms=9.0), make_label(1, latency_ms=10.0)], [BACK], [BACK, RELU]))
    labels, traces = collect(first, second)
    assert [(label.recipe.key, label.repeat, label.measurement.latency_ms) for label in labels] == [
        (known.recipe.key, 0, 7.25),
        (known.recipe.key, 1, 8.0),
        (new.recipe.key, 0, 7.25),
        (known.recipe.key, 2, 9.0),
        (new.recipe.key, 1, 10.0),
    ]
    assert len({label.key for label in labels}) == 5
    assert list(traces) == [label.key for label in labels[1:]]
    assert [len(runs) for runs in traces.values()] == [1, 1, 1, 2]


def test_a_line_that_was_cut_is_passed_over(tmp_path: Path, make_label: Maker, collect: Any) -> None:
    whole, after = make_label(0), make_label(2)
    cut = lines([make_label(1)], [RELU])[:-100]
    path = tmp_path / "rows.jsonl"
    path.write_text(lines([whole], [RELU]) + cut + "\n" + lines([after], [RELU]) + cut)
    labels, traces = collect(path)
    assert labels == [whole, after]
    assert list(traces) == [whole.key, after.key]


def test_rows_are_added_to_what_the_files_hold_and_may_have_a_source_of_their_own(
    tmp_path: Path, make_label: Maker, collect: Any
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(lines([make_label(0)], [RELU]))
    second.write_text(lines([make_label(0, latency_ms=8.0)], [BACK]))
    (before,), _ = collect(first)
    labels, traces = collect(second, "--source", "shared")
    assert labels[0] == before
    assert [(label.source, label.repeat) for label in labels] == [(before.source, 0), ("shared", 0)]
    assert [[run.name for run in traces[label.key]] for label in labels] == [
        ["aten::relu"],
        ["aten::threshold_backward"],
    ]
