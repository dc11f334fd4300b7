"""Traces as a Parquet file: one row for each kernel, beside the operator that launched it and the key of its label."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from dippm.errors import UsageError
from dippm.measuring.operator_run import KernelRun, OperatorRun

__all__ = ["read_traces", "write_traces"]

_VERSION_KEY, _VERSION = b"dippm.traces.schema", b"1"
_SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.string()),
        ("operator", pyarrow.int32()),
        ("name", pyarrow.string()),
        ("input_shapes", pyarrow.string()),
        ("scalars", pyarrow.string()),
        ("is_backward", pyarrow.bool_()),
        ("kernel", pyarrow.string()),
        ("launched_by", pyarrow.string()),
        ("start_us", pyarrow.float32()),
        ("duration_us", pyarrow.float32()),
    ],
    metadata={_VERSION_KEY: _VERSION},
)
_TEXTS = [field.name for field in _SCHEMA if field.type == pyarrow.string()]


def write_traces(path: Path, traces: Iterable[tuple[str, Sequence[OperatorRun]]]) -> int:
    """Write traces, in their order; operators without a kernel are left out.

    Args:
        path: The file.
        traces: Key of the label that each belongs to, and its operators.

    Returns:
        How many kernels there are.
    """
    rows = [row for key, runs in traces for row in _rows_of(key, runs)]
    table = pyarrow.Table.from_pylist(rows, schema=_SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, compression="zstd", compression_level=15, use_dictionary=_TEXTS)
    return len(rows)


def read_traces(path: Path) -> Mapping[str, tuple[OperatorRun, ...]]:
    """The operators of each label's trace, by the label's key.

    Raises:
        UsageError: ``traces.unreadable`` where the file is missing, damaged, or holds something else.
    """
    try:
        # Asked first: a column that is missing would be read as one of nulls.
        if (pyarrow.parquet.read_schema(path).metadata or {}).get(_VERSION_KEY) != _VERSION:
            raise UsageError(f"The file '{path}' holds no traces of this version.", code="traces.unreadable")
        columns: dict[str, list[Any]] = pyarrow.parquet.read_table(path, schema=_SCHEMA).to_pydict()
    except (pyarrow.ArrowException, OSError) as exc:
        raise UsageError(f"No traces can be read from '{path}': {exc}", code="traces.unreadable") from exc
    found: dict[str, list[OperatorRun]] = {}
    # A text that stands in thousands of rows is parsed once.
    shapes = {text: tuple(tuple(shape) for shape in json.loads(text)) for text in set(columns["input_shapes"])}
    scalars = {text: tuple(json.loads(text)) for text in set(columns["scalars"])}
    for (key, _), rows in groupby(zip(*columns.values(), strict=True), key=lambda row: row[:2]):
        of_operator = list(rows)
        _, _, name, own_shapes, own_scalars, is_backward, *_ = of_operator[0]
        found.setdefault(key, []).append(
            OperatorRun(
                name=name,
                input_shapes=shapes[own_shapes],
                scalars=scalars[own_scalars],
                is_backward=is_backward,
                kernels=tuple(
                    KernelRun(name=kernel, launched_by=launched_by, start_us=start_us, duration_us=duration_us)
                    for *_, kernel, launched_by, start_us, duration_us in of_operator
                ),
            )
        )
    return {key: tuple(runs) for key, runs in found.items()}


def _rows_of(key: str, runs: Sequence[OperatorRun]) -> Iterable[dict[str, object]]:
    for position, run in enumerate(runs):
        for kernel in run.kernels:
            yield {
                "key": key,
                "operator": position,
                "name": run.name,
                "input_shapes": json.dumps(run.input_shapes, separators=(",", ":")),
                "scalars": json.dumps(run.scalars, separators=(",", ":")),
                "is_backward": run.is_backward,
                "kernel": kernel.name,
                "launched_by": kernel.launched_by,
                "start_us": kernel.start_us,
                "duration_us": kernel.duration_us,
            }
