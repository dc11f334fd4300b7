"""Kernel families and their problems: what has to be computed, as arrays, with no device in it.

A *problem* holds one NumPy array per size, all of one length, so that a whole network's kernels (or a whole table of
measurements) is one object. What the measured tables cover, per family (single-precision, TF32 off):

===============  =======================================================================================
linear           m 3 - 8192, n 2 - 65519, k 1 - 65371, bias added, one GEMM (``nn.Linear``)
bmm              b 1 - 1025, m 7 - 1025, n 2 - 1025, k 1 - 1025
conv             3x3, stride 1, padding 1, no bias, batch 1 - 64, 3 - 2048 channels, square input 5 - 252
element-wise     up to 67 million elements (rows 1 - 16372 x width 1 - 4094)
softmax          rows 1 - 16372, width 1 - 4094, over the width
layer_norm       rows 4 - 16380, width 260 - 4100, over the width
===============  =======================================================================================

Outside these ranges the models extrapolate: see ``dippm.costs.kernels.model``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from dippm.errors import UsageError

__all__ = [
    "ELEMENTWISE_OPERATORS",
    "ConvProblem",
    "ElementwiseProblem",
    "Family",
    "FloatArray",
    "GemmProblem",
    "Problem",
    "RowProblem",
    "Sizes",
    "equal_columns",
]

FloatArray = npt.NDArray[np.float64]

Sizes = Sequence[float] | npt.NDArray[np.number] | float


class Family(Enum):
    """The kernel families that have a model of their own; the values name the artefact's files."""

    LINEAR = "linear"
    BMM = "bmm"
    CONV = "conv"
    ELEMENTWISE = "elementwise"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer_norm"


#: The measured element-wise operators, and how many tensors each one reads. A name ending in ``_scalar`` combines one
#: tensor with a Python number.
ELEMENTWISE_OPERATORS: dict[str, int] = {
    "add": 2,
    "mul": 2,
    "div": 2,
    "pow": 2,
    "add_scalar": 1,
    "mul_scalar": 1,
    "div_scalar": 1,
    "pow_scalar": 1,
    "relu": 1,
    "gelu": 1,
    "tanh": 1,
}


def equal_columns(owner: str, **sizes: Sizes) -> list[FloatArray]:
    """Turn sizes into equally long float columns.

    Raises:
        UsageError: A size is below one, not finite, or the lengths do not fit together.
    """
    arrays = [np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in sizes.values()]
    try:
        columns = np.broadcast_arrays(*arrays)
    except ValueError as exc:
        lengths = ", ".join(f"{name}={array.shape}" for name, array in zip(sizes, arrays, strict=True))
        raise UsageError(f"The sizes of a {owner} must have one length. Got {lengths}.", code="kernel.sizes") from exc
    for name, column in zip(sizes, columns, strict=True):
        if column.ndim != 1 or not np.all(np.isfinite(column)) or (column.size and column.min() < 1.0):
            raise UsageError(
                f"The size '{name}' of a {owner} must be a list of finite numbers, each 1 or more.", code="kernel.sizes"
            )
    return [np.ascontiguousarray(column) for column in columns]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmProblem:
    """``b`` independent products ``(m, k) x (k, n) -> (m, n)``; ``b`` is 1 for ``nn.Linear``.

    Args:
        m: Rows of the output (tokens of a linear layer), 1 or more.
        n: Columns of the output (output features of a linear layer), 1 or more.
        k: The reduced dimension (input features of a linear layer), 1 or more.
        b: Independent products, 1 or more.
    """

    m: FloatArray
    n: FloatArray
    k: FloatArray
    b: FloatArray

    @classmethod
    def of(cls, *, m: Sizes, n: Sizes, k: Sizes, b: Sizes = 1.0) -> GemmProblem:
        """Build a problem from numbers, lists or arrays that broadcast to one length."""
        columns = equal_columns("matrix product", m=m, n=n, k=k, b=b)
        return cls(m=columns[0], n=columns[1], k=columns[2], b=columns[3])

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.m)

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations, two per multiply-accumulate."""
        return 2.0 * self.b * self.m * self.n * self.k

    @property
    def bytes(self) -> FloatArray:
        """Bytes read and written once each, fp32."""
        return 4.0 * self.b * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvProblem:
    """A 3x3 convolution with stride 1 and padding 1, so that output and input have the same height and width.

    Args:
        batch: Samples, 1 or more.
        in_channels: Input channels, 1 or more.
        out_channels: Output channels, 1 or more.
        height: Input and output height, 1 or more.
        width: Input and output width, 1 or more.
    """

    batch: FloatArray
    in_channels: FloatArray
    out_channels: FloatArray
    height: FloatArray
    width: FloatArray

    @classmethod
    def of(
        cls, *, batch: Sizes, in_channels: Sizes, out_channels: Sizes, height: Sizes, width: Sizes | None = None
    ) -> ConvProblem:
        """Build a problem from numbers, lists or arrays that broadcast to one length; square without ``width``."""
        columns = equal_columns(
            "convolution",
            batch=batch,
            in_channels=in_channels,
            out_channels=out_channels,
            height=height,
            width=height if width is None else width,
        )
        return cls(
            batch=columns[0], in_channels=columns[1], out_channels=columns[2], height=columns[3], width=columns[4]
        )

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.batch)

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations of the direct algorithm, two per multiply-accumulate."""
        return 18.0 * self.batch * self.height * self.width * self.in_channels * self.out_channels

    @property
    def bytes(self) -> FloatArray:
        """Bytes of input, weights and output, once each, fp32."""
        pixels = self.batch * self.height * self.width
        channels = self.in_channels + self.out_channels
        return 4.0 * (pixels * channels + 9.0 * self.in_channels * self.out_channels)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ElementwiseProblem:
    """One element-wise operator per row, over contiguous tensors of one shape.

    Args:
        elements: Elements of the output, 1 or more.
        operator: Position of each row's operator in `ELEMENTWISE_OPERATORS`.
    """

    elements: FloatArray
    operator: npt.NDArray[np.intp]

    @classmethod
    def of(cls, *, elements: Sizes, operator: str | Sequence[str]) -> ElementwiseProblem:
        """Build a problem from element counts and operator names (one name serves all rows).

        Raises:
            UsageError: An operator has no model of its own; the message lists those that have.
        """
        (column,) = equal_columns("element-wise operator", elements=elements)
        names = list(ELEMENTWISE_OPERATORS)
        given = [operator] if isinstance(operator, str) else list(operator)
        unknown = sorted(set(given) - set(names))
        if unknown or (len(given) not in (1, len(column))):
            raise UsageError(
                f"'operator' must be one of {', '.join(names)} for all {len(column)} rows or for each."
                f" Got {len(given)} names, unknown: {', '.join(unknown) or 'none'}.",
                code="kernel.operator",
            )
        index = np.array([names.index(name) for name in given], dtype=np.intp)
        return cls(elements=column, operator=np.ascontiguousarray(np.broadcast_to(index, column.shape)))

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.elements)

    @property
    def bytes(self) -> FloatArray:
        """Bytes of all tensors read and of the one written, fp32."""
        reads = np.array(list(ELEMENTWISE_OPERATORS.values()), dtype=np.float64)[self.operator]
        return 4.0 * self.elements * (reads + 1.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowProblem:
    """A reduction over the last axis that writes a tensor of the same shape: softmax or layer normalisation.

    Args:
        rows: Product of all sizes but the last, 1 or more.
        width: Size of the last axis, 1 or more.
    """

    rows: FloatArray
    width: FloatArray

    @classmethod
    def of(cls, *, rows: Sizes, width: Sizes) -> RowProblem:
        """Build a problem from numbers, lists or arrays that broadcast to one length."""
        columns = equal_columns("row operator", rows=rows, width=width)
        return cls(rows=columns[0], width=columns[1])

    def __len__(self) -> int:
        """Number of problems."""
        return len(self.rows)

    @property
    def bytes(self) -> FloatArray:
        """Bytes read once and written once, fp32."""
        return 8.0 * self.rows * self.width


Problem = GemmProblem | ConvProblem | ElementwiseProblem | RowProblem
