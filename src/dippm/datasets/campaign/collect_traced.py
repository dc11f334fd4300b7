"""From the rows of traced campaigns to labels and traces in Parquet files.

``python -m dippm.datasets.campaign.collect_traced ROWS.jsonl... --labels labels.parquet --traces traces.parquet``
adds the labels and their traces to those that the files hold; lines may be compressed by gzip. The first measurement
of a configuration stays, a later one becomes a repeat. ``--source`` gives the labels a source of their own, for rows
that were taken in another way than others.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet, read_parquet
from dippm.datasets.store.row import row_to_label
from dippm.datasets.store.traces import read_traces, write_traces
from dippm.measuring.operator_run import KernelRun, OperatorRun

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: read rows, write labels and traces."""
    parser = argparse.ArgumentParser(description="Collect the rows of traced campaigns.")
    parser.add_argument("rows", type=Path, nargs="+", help="rows that the campaigns wrote")
    parser.add_argument("--labels", type=Path, required=True, help="Parquet file of labels to add to")
    parser.add_argument("--traces", type=Path, required=True, help="Parquet file of traces to add to")
    parser.add_argument("--source", help="source that all new labels are to have")
    options = parser.parse_args(arguments)
    labels = {label.key: label for label in (read_parquet(options.labels) if options.labels.exists() else ())}
    traces: dict[str, Sequence[OperatorRun]] = dict(read_traces(options.traces) if options.traces.exists() else {})
    for path in options.rows:
        for row in _read_rows(path):
            label = row_to_label(row)
            if options.source is not None:
                label = replace(label, source=options.source)
            label = _as_new(label, labels)
            labels[label.key] = label
            traces[label.key] = [_run(*values) for values in row.get("trace", ())]
    export_parquet(labels.values(), options.labels)
    write_traces(options.traces, traces.items())


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
        for line in stream:
            try:
                values = json.loads(line)
            except ValueError:  # the line in which a campaign ended
                continue
            if "row" in values:
                yield values


def _as_new(label: Label, known: dict[str, Label]) -> Label:
    while label.key in known:
        label = replace(label, repeat=label.repeat + 1)
    return label


def _run(name: str, shapes: Any, scalars: Any, is_backward: Any, kernels: Any) -> OperatorRun:
    return OperatorRun(
        name=name,
        input_shapes=tuple(tuple(shape) for shape in shapes),
        scalars=tuple(scalars),
        is_backward=is_backward,
        kernels=tuple(
            KernelRun(name=kernel, launched_by=by, start_us=start_us, duration_us=duration_us)
            for kernel, by, start_us, duration_us in kernels
        ),
    )


if __name__ == "__main__":
    main()
