"""Measurements of whole models that others have published: ``data/published`` of the project's repository.

Each row says in the words of its source what was run; ``data/published/README.md`` says where each table comes from,
how it was taken and what is doubtful about it.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dippm.datasets.tables import PUBLISHED_CURE, existing_table, read_records

__all__ = [
    "PublishedRow",
    "digest_published",
    "read_configurations",
    "read_deep_learning_examples",
    "read_held_out_configurations",
    "read_held_out_power",
    "read_mig_slices",
    "read_published",
    "read_published_power",
]

# No fit takes their rows.
_TABLES_OF_TESTS = ("adapters.csv", "quantised.csv")
_TABLES = ("transformers_docs.csv", "benchmarks.csv")
_POWER_TABLE = "power.csv"
_CONFIGURATIONS = "models.toml"
# Models of tables that no fit takes.
_CONFIGURATIONS_OF_TESTS = ("quantised.toml", "mig.toml")
# Rows with energy that nothing is fitted on, and their models.
_HELD_OUT_POWER_TABLE = "power_held_out.csv"
_HELD_OUT_CONFIGURATIONS = "power_held_out.toml"
# Rows of MIG slices, which no fit takes and no other table has.
_SLICE_TABLE = "mig.csv"
# Rows of networks that no library builds, which no fit takes.
_EXAMPLES_TABLE = "deep_learning_examples.csv"
# Bytes of the unit that a figure of memory is given in.
_UNIT_BYTES = {"MiB": 2**20, "MB": 10**6}

_existing = partial(existing_table, cure=PUBLISHED_CURE)
_records = partial(read_records, cure=PUBLISHED_CURE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRow:
    """One published measurement; an empty text or None where the source does not say.

    Args:
        source: Which table.
        model: Name of the model: of a checkpoint, or ``timm:NAME``, ``torchvision:NAME``.
        model_class: The class that was run.
        device: The device in the words of the source.
        software: Releases, as far as stated.
        precision: ``fp32``, ``tf32``, ``fp16``, ``bf16`` or ``amp``.
        attention: ``eager``, ``sdpa`` or ``flash2``.
        mode: ``inference``, ``prefill``, ``decode`` or ``training``.
        optimizer: In training; ``none`` for a step without an update.
        batch: Samples a call.
        sequence: Tokens a sample.
        image: Height and width.
        past_tokens: Tokens in the cache before the step of a decoder.
        latency_ms: Time of one call, step or token, ms.
        allocated_mb: Peak of ``max_memory_allocated``, MiB.
        energy_j: Energy of one call, J.
        used_mb: Memory of the device or slice that is in use in the mean, as DCGM counts it, MiB.
        notes: What a careful reader has to know.
    """

    source: str
    model: str
    model_class: str
    device: str
    software: str
    precision: str
    attention: str
    mode: str
    optimizer: str
    batch: int
    sequence: int | None
    image: tuple[int, int] | None
    past_tokens: int | None
    latency_ms: float | None
    allocated_mb: float | None
    energy_j: float | None
    notes: str
    used_mb: float | None = None


def read_published(folder: Path) -> list[PublishedRow]:
    """Read all tables of the folder.

    Raises:
        UsageError: ``data.missing`` where a table is not there.
    """
    return [_row(record) for name in (*_TABLES, *_TABLES_OF_TESTS) for record in _records(folder / name)]


def read_published_power(folder: Path) -> list[PublishedRow]:
    """Read all rows that state energy: those of ``power.csv``, which stands apart, and those of the other tables.

    Raises:
        UsageError: ``data.missing`` where a table is not there.
    """
    rows = [*read_published(folder), *(_row(record) for record in _records(folder / _POWER_TABLE))]
    return [row for row in rows if row.energy_j is not None]


def read_held_out_power(folder: Path) -> list[PublishedRow]:
    """Read the rows that state energy and that no fit may take: those of ``power_held_out.csv``.

    Raises:
        UsageError: ``data.missing`` where the table is not there.
    """
    return [_row(record) for record in _records(folder / _HELD_OUT_POWER_TABLE)]


def read_mig_slices(folder: Path) -> list[PublishedRow]:
    """Read the rows of MIG slices, that no fit may take: those of ``mig.csv``.

    Raises:
        UsageError: ``data.missing`` where the table is not there.
    """
    return [_row(record) for record in _records(folder / _SLICE_TABLE)]


def read_deep_learning_examples(folder: Path) -> list[PublishedRow]:
    """Read the rows of NVIDIA's DeepLearningExamples whose networks no library builds, and that no fit may take.

    Raises:
        UsageError: ``data.missing`` where the table is not there.
    """
    return [_row(record) for record in _records(folder / _EXAMPLES_TABLE)]


def read_configurations(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Of each published model what its configuration has otherwise than its class's default.

    Raises:
        UsageError: ``data.missing``.
    """
    tables = (_CONFIGURATIONS, *_CONFIGURATIONS_OF_TESTS)
    return {
        model: settings
        for name in tables
        for model, settings in tomllib.loads(_existing(folder / name).read_text(encoding="utf-8")).items()
    }


def read_held_out_configurations(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """The same of the models of :func:`read_held_out_power`.

    Raises:
        UsageError: ``data.missing``.
    """
    return tomllib.loads(_existing(folder / _HELD_OUT_CONFIGURATIONS).read_text(encoding="utf-8"))


def digest_published(folder: Path) -> str:
    """SHA-256 of the tables that :func:`read_published` reads and fits take, and of the configurations, hexadecimal.

    Raises:
        UsageError: ``data.missing``.
    """
    tables = [_existing(folder / name).read_bytes() for name in (*_TABLES, _CONFIGURATIONS)]
    return hashlib.sha256(b"".join(tables)).hexdigest()


def _row(record: Mapping[str, str]) -> PublishedRow:
    height, width = (_number(record[name]) for name in ("image_height", "image_width"))
    memory, unit = _number(record["peak_memory_mb"]), _UNIT_BYTES.get(record["memory_unit"])
    memory_mb = None if memory is None or unit is None else memory * unit / 2**20
    return PublishedRow(
        **{
            name: record[name]
            for name in (
                "source", "model", "model_class", "device", "software", "precision", "attention", "mode", "optimizer",
                "notes",
            )
        },
        batch=int(record["batch"]),
        sequence=_whole(record["sequence"]),
        image=None if height is None else (int(height), int(height if width is None else width)),
        past_tokens=_whole(record["past_tokens"]),
        latency_ms=_number(record["latency_ms"]),
        allocated_mb=memory_mb if record["memory_kind"] == "max_memory_allocated" else None,
        energy_j=_number(record["energy_j"]),
        used_mb=memory_mb if record["memory_kind"] == "dcgm-fb-used" else None,
    )  # fmt: skip


def _number(text: str) -> float | None:
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


def _whole(text: str) -> int | None:
    value = _number(text)
    return None if value is None else int(value)
