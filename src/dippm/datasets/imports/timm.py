"""Labels from the timm project's published tables: latencies, and which batches did not fit in memory.

The benchmark steps its batch down a ladder from the table's first batch until a run no longer fails for memory. So a
row below the first batch says of the next larger one that it did not fit: that makes a second label. What the first
batch was is taken from the table itself, as the largest in it: it is 1024 in most tables of inference and 512 in those
of training, but not in all. About one in thirteen of these batches did fit under another PyTorch release on the same
card: they lie near the border.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.timm_tables import TimmRow, read_timm_tables
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack

__all__ = ["LADDER", "TIMM_SOURCE", "import_timm_tables", "labels_of_timm_rows"]

LADDER = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Batches that the benchmark tries, one after the other."""

#: How the source of labels of these tables begins; PyTorch's release follows.
TIMM_SOURCE = "timm torch "
_WARMUP_RUNS, _TIMED_RUNS = 10, 40
# First words of timm names that say where weights come from, or which variant it is, and not the architecture.
_ORIGINS = frozenset(
    ("adv", "dm", "eca", "ese", "gc", "gluon", "ig", "jx", "legacy", "nf", "ssl", "swsl", "test", "tf", "tv", "wide")
)
# Letters before the first digit or version; in a few names a digit is part of the word.
_FAMILY = re.compile(r"res2nex?t|cs3[a-z]+|[a-z]+?(?=v?\d|$)")
_INFERRED = "The published run failed for memory at this batch and went on with a smaller one."


def import_timm_tables(folder: Path) -> Iterator[Label]:
    """Labels of every GPU table of a folder.

    Args:
        folder: The folder ``timm`` of the measured tables.

    Raises:
        UsageError: ``data.missing`` where the folder holds no such table.
    """
    return labels_of_timm_rows(read_timm_tables(folder))


def labels_of_timm_rows(rows: Sequence[TimmRow]) -> Iterator[Label]:
    """For each row its label, and before it, where the row tells so, that of the next larger batch, out of memory.

    ``source`` is the table's: ``"timm"`` with the PyTorch release, such as ``"timm torch 2.4.0"``. Measurements of one
    configuration under several releases are different labels, and the store keeps one label of a key.

    Args:
        rows: Whole tables: each table's first batch is the largest among its rows.
    """
    first: dict[tuple[str, ...], int] = {}
    for row in rows:
        first[_table(row)] = max(first.get(_table(row), 0), row.batch)
    for row in rows:
        if row.batch < first[_table(row)]:
            refused = LADDER[LADDER.index(row.batch) - 1] if row.batch in LADDER else None
            if refused is not None:
                yield _label(row, batch=refused, is_refused=True)
        yield _label(row, batch=row.batch, is_refused=False)


def _label(row: TimmRow, *, batch: int, is_refused: bool) -> Label:
    conditions = Conditions.parse(precision=row.precision, mode=row.mode, layout=row.layout, runtime=row.runtime)
    if conditions.mode is Mode.TRAINING:
        conditions = Conditions.parse(
            precision=row.precision,
            mode=row.mode,
            layout=row.layout,
            runtime=row.runtime,
            optimizer=Optimizer.MOMENTUM,
        )
    release = _torch_release(row.torch_version)
    return Label(
        recipe=Recipe(
            collection="timm",
            family=_family(row.model),
            architecture=f"zoo:timm:{row.model}",
            inputs=InputShapes(positional=(InputEntry(shape=(3, row.image_size, row.image_size)),)),
            batch=batch,
        ),
        configuration=Configuration(batch=batch, conditions=conditions),
        measurement=Measurement(
            outcome=Outcome.OUT_OF_MEMORY if is_refused else Outcome.OK,
            message=_INFERRED if is_refused else "",
            device=row.device,
            measured_at="",  # not published
            warmup_runs=0 if is_refused else _WARMUP_RUNS,
            timed_runs=0 if is_refused else _TIMED_RUNS,
            latency_ms=None if is_refused else row.step_time_ms,
            software=SoftwareStack(framework=f"torch {release}", cuda=_cuda_release(row.cuda_version)),
        ),
        source=f"{TIMM_SOURCE}{release}",
    )


def _table(row: TimmRow) -> tuple[str, ...]:
    return (row.mode, row.precision, row.layout, row.runtime, row.device, row.torch_version)


def _family(model: str) -> str:
    """The architecture's word in a timm name: ``"resnet"`` of ``"tv_resnet50d"``, ``"swin"`` of ``"swinv2_tiny"``."""
    words = [word for word in model.split("_") if word not in _ORIGINS] or [model]
    found = _FAMILY.match(words[0])
    return found[0] if found else words[0]


def _torch_release(digits: str) -> str:
    """``"240"`` is 2.4.0; of the releases 1.x the minor number has two digits: ``"113"`` is 1.13."""
    return f"1.{digits[1:]}" if digits.startswith("1") else ".".join(digits)


def _cuda_release(digits: str) -> str:
    return f"{digits[:-1]}.{digits[-1]}" if digits else ""
