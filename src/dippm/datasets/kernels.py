"""Importer of the measured kernel tables: one Parquet file per operator, five GPUs.

The tables are not part of the package. They are read from ``kernels/`` in `dippm.datasets.location.data_folder`.

Their columns do not mean the same in every file; this module is where that is put right:

* ``linear``: input (1, M, N), output features K: here ``m = M``, ``n = K`` and the reduced ``k = N``.
* ``bmm``: (B, M, N) x (B, N, K): here ``b = B``, ``m = M``, ``n = K``, ``k = N``.
* ``conv``: 3x3, stride 1, padding 1, square input of ``Input_Size``.
* the others: (B, H) tensors; ``addu`` and so on are the forms with a Python number.

**The conv sweep drifts.** The later a convolution stands in its device's rows, the longer it took: on every device the
smallest convolutions rise from 0.1 - 0.2 ms among the first rows to 0.4 - 0.95 ms among the last, nearly in a straight
line, whatever their shape. So the measuring process added a time of its own that grew with the shapes it had seen. Rows
stand in the order of measuring: `KernelRows.position` keeps it, and `SweepDrift` describes the added time. No other
table drifts so. Times are never altered here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.problems import (
    ConvProblem,
    ElementwiseProblem,
    Family,
    FloatArray,
    GemmProblem,
    Problem,
    RowProblem,
)
from dippm.datasets.location import data_folder
from dippm.errors import DippmError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DEVICE_NAMES",
    "OPERATOR_TABLES",
    "KernelRows",
    "Part",
    "SweepDrift",
    "load_family",
    "rows_from_frame",
    "split_by_shape",
]

# Shares of the shapes in these parts.
_TEST, _VALIDATION = 0.15, 0.10
#: The tables' device names, and ours.
DEVICE_NAMES = {
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIE-80GB",
    "Tesla V100-PCIE-32GB": "V100-PCIE-32GB",
    "Tesla T4": "T4",
    "Tesla P100-PCIE-16GB": "P100-PCIE-16GB",
    "Tesla P4": "P4",
}

#: Table name to element-wise operator.
OPERATOR_TABLES = {
    "add": "add",
    "mul": "mul",
    "div": "div",
    "pow": "pow",
    "addu": "add_scalar",
    "mulu": "mul_scalar",
    "divu": "div_scalar",
    "powu": "pow_scalar",
    "relu": "relu",
    "gelu": "gelu",
    "tanh": "tanh",
}

_TABLES = {
    Family.LINEAR: ("linear",),
    Family.BMM: ("bmm",),
    Family.CONV: ("conv",),
    Family.ELEMENTWISE: tuple(OPERATOR_TABLES),
    Family.SOFTMAX: ("softmax",),
    Family.LAYER_NORM: ("ln",),
}

_SHAPE_COLUMNS = {
    Family.LINEAR: ("M", "N", "K"),
    Family.BMM: ("B", "M", "N", "K"),
    Family.CONV: ("B", "Input_Channel", "Output_Channel", "Input_Size"),
    Family.ELEMENTWISE: ("B", "H"),
    Family.SOFTMAX: ("B", "H"),
    Family.LAYER_NORM: ("B", "H"),
}


class Part:
    """Parts of a split, as stored in the arrays of `split_by_shape`."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelRows:
    """Measured rows of one family.

    Args:
        family: The kernel family.
        problem: What was computed, one entry per row.
        time_ms: Measured time, ms.
        device: Device name of each row, as the catalogue has it.
        table: Table that each row comes from.
        shape: Sizes of each row as in the table, shape (rows, sizes); the unit of splitting.
        position: Place of each row in its device's sweep of that table, 0 for the first row, in thousands of rows.
        data_hash: SHA-256 of the tables' bytes, hexadecimal; empty where rows did not come from files.
    """

    family: Family
    problem: Problem
    time_ms: FloatArray
    device: npt.NDArray[np.str_]
    table: npt.NDArray[np.str_]
    shape: npt.NDArray[np.int64]
    position: FloatArray
    data_hash: str = ""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.time_ms)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SweepDrift:
    """Time that a sweep added to each measurement, growing with the row's position.

    Args:
        knots: Positions (thousands of rows) between which the added time is linear, the first one 0.
        added_ms: Device name to the added time at each knot, ms, the first one 0; empty where nothing drifts.
        relatives: Device name to the devices whose mean stands in for it where it has no entry of its own.
    """

    knots: FloatArray
    added_ms: Mapping[str, FloatArray]
    relatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def none(cls) -> SweepDrift:
        """A sweep that does not drift."""
        return cls(knots=np.zeros(1), added_ms={})

    def time_ms(self, rows: KernelRows) -> FloatArray:
        """Time added to each row, ms.

        Devices without an entry get the mean of their relatives, or of all devices.
        """
        added = np.zeros(len(rows), dtype=np.float64)
        if not self.added_ms:
            return added
        for name in np.unique(rows.device):
            known = [each for each in self.relatives.get(str(name), ()) if each in self.added_ms] or list(self.added_ms)
            values = self.added_ms.get(str(name), np.mean([self.added_ms[each] for each in known], axis=0))
            chosen = rows.device == name
            added[chosen] = np.interp(rows.position[chosen], self.knots, values)
        return added


def load_family(family: Family, *, data: Path | None = None) -> KernelRows:
    """Read all rows of one family.

    Args:
        family: The kernel family.
        data: Folder with ``kernels/`` in it; by default `dippm.datasets.location.data_folder`.

    Raises:
        DippmError: A table is missing, or holds what this importer does not know.
        MissingExtraError: pandas or pyarrow is not installed.
    """
    try:
        import pandas as pd
    except ImportError as exc:
        raise MissingExtraError(package="pandas", extra="train", purpose="read measured tables") from exc
    folder = (data_folder() if data is None else data) / "kernels"
    digest = hashlib.sha256()
    frames = []
    for table in _TABLES[family]:
        path = folder / f"{table}.parquet"
        if not path.is_file():
            raise DippmError(f"The measured table '{path}' does not exist.", code="data.missing")
        digest.update(path.read_bytes())
        try:
            frames.append(pd.read_parquet(path))
        except ImportError as exc:
            raise MissingExtraError(package="pyarrow", extra="train", purpose="read measured tables") from exc
    return rows_from_frame(family, pd.concat(frames, ignore_index=True), data_hash=digest.hexdigest())


def rows_from_frame(family: Family, frame: pd.DataFrame, *, data_hash: str = "") -> KernelRows:
    """Turn a table into rows with our names and meaning.

    Args:
        family: The kernel family.
        frame: The table, columns as published.
        data_hash: Hash to carry along.

    Raises:
        DippmError: A column is missing, a device or operator is unknown, or a value is out of range.
    """
    needed = {"OPName", "Latency", "Device", *_SHAPE_COLUMNS[family]}
    if family is Family.CONV:
        needed |= {"Kernel_Szie", "Stride", "Padding"}  # the tables' own spelling
    missing = sorted(needed - set(frame.columns))
    if missing:
        raise DippmError(f"A {family.value} table lacks the columns {', '.join(missing)}.", code="data.columns")
    unknown = sorted(set(frame["Device"]) - set(DEVICE_NAMES))
    if unknown:
        raise DippmError(f"A {family.value} table names unknown devices: {', '.join(unknown)}.", code="data.device")
    foreign = sorted(set(frame["OPName"]) - set(_TABLES[family]))
    if foreign:
        raise DippmError(f"A {family.value} table holds other operators: {', '.join(foreign)}.", code="data.operator")
    time_ms = frame["Latency"].to_numpy(dtype=np.float64)
    if not np.all(np.isfinite(time_ms)) or (len(time_ms) and time_ms.min() <= 0.0):
        raise DippmError(f"A {family.value} table holds times that are not positive.", code="data.time")
    if (
        family is Family.CONV
        and len(frame)
        and not bool(((frame["Kernel_Szie"] == 3) & (frame["Stride"] == 1) & (frame["Padding"] == 1)).all())
    ):
        raise DippmError("The conv table holds other kernels than 3x3, stride 1, padding 1.", code="data.conv")
    shape = frame[list(_SHAPE_COLUMNS[family])].to_numpy(dtype=np.int64)
    table = frame["OPName"].to_numpy(dtype=np.str_)
    position = frame.groupby(["OPName", "Device"]).cumcount().to_numpy(dtype=np.float64) / 1000.0
    return KernelRows(
        family=family,
        problem=_problem(family, shape, table),
        time_ms=time_ms,
        device=np.array([DEVICE_NAMES[name] for name in frame["Device"]], dtype=np.str_),
        table=table,
        shape=shape,
        position=position,
        data_hash=data_hash,
    )


def split_by_shape(rows: KernelRows, *, seed: int) -> npt.NDArray[np.int8]:
    """Assign every row to training, validation (10 % of the shapes) or test (15 %) by its shape alone.

    A shape falls in the same part on every device and for every operator of its family, so no test shape was ever seen.
    The part depends on the shape's digits and the seed through a hash: it survives reordered or extended tables.

    Args:
        rows: Measured rows.
        seed: Seed of the split.

    Returns:
        One `Part` value per row.
    """
    shapes, inverse = np.unique(rows.shape, axis=0, return_inverse=True)
    prefix = f"{rows.family.value}:{seed}:"
    parts = np.array([_part(prefix, shape) for shape in shapes], dtype=np.int8)
    return parts[np.ravel(inverse)]


def _part(prefix: str, shape: Sequence[int]) -> int:
    key = prefix + ",".join(str(int(size)) for size in shape)
    position = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2.0**64
    if position < _TEST:
        return Part.TEST
    return Part.VALIDATION if position < _TEST + _VALIDATION else Part.TRAIN


def _problem(family: Family, shape: npt.NDArray[np.int64], table: npt.NDArray[np.str_]) -> Problem:
    columns = [shape[:, position] for position in range(shape.shape[1])]
    if family is Family.LINEAR:
        return GemmProblem.of(m=columns[0], k=columns[1], n=columns[2])
    if family is Family.BMM:
        return GemmProblem.of(b=columns[0], m=columns[1], k=columns[2], n=columns[3])
    if family is Family.CONV:
        return ConvProblem.of(batch=columns[0], in_channels=columns[1], out_channels=columns[2], height=columns[3])
    if family is Family.ELEMENTWISE:
        return ElementwiseProblem.of(
            elements=columns[0] * columns[1], operator=[OPERATOR_TABLES[name] for name in table]
        )
    return RowProblem.of(rows=columns[0], width=columns[1])
