"""Element types of PyTorch and of the graph."""

from __future__ import annotations

import torch

from dippm.graph import DType

__all__ = ["exported_dtype", "from_torch_dtype", "to_torch_dtype"]

_FROM_TORCH = {
    torch.float64: DType.FLOAT64, torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16, torch.int64: DType.INT64, torch.int32: DType.INT32, torch.int16: DType.INT16,
    torch.int8: DType.INT8, torch.uint64: DType.UINT64, torch.uint32: DType.UINT32, torch.uint16: DType.UINT16,
    torch.uint8: DType.UINT8, torch.bool: DType.BOOL, torch.complex64: DType.COMPLEX64,
    torch.complex128: DType.COMPLEX128, torch.qint8: DType.INT8, torch.quint8: DType.UINT8, torch.qint32: DType.INT32,
    torch.float8_e4m3fn: DType.FLOAT8, torch.float8_e5m2: DType.FLOAT8, torch.float8_e4m3fnuz: DType.FLOAT8,
    torch.float8_e5m2fnuz: DType.FLOAT8,
}  # fmt: skip
_TO_TORCH = {
    DType.FLOAT64: torch.float64, DType.FLOAT32: torch.float32, DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16, DType.FLOAT8: torch.float8_e4m3fn, DType.INT64: torch.int64,
    DType.INT32: torch.int32, DType.INT16: torch.int16, DType.INT8: torch.int8, DType.UINT64: torch.uint64,
    DType.UINT32: torch.uint32, DType.UINT16: torch.uint16, DType.UINT8: torch.uint8, DType.BOOL: torch.bool,
    DType.COMPLEX64: torch.complex64, DType.COMPLEX128: torch.complex128,
}  # fmt: skip
# Numbers of element types in the programs that ``torch.export`` writes.
_EXPORTED = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16, 28: torch.uint16,
    29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 31: torch.float8_e4m3fnuz, 32: torch.float8_e5m2fnuz,
    34: torch.uint32, 35: torch.uint64,
}  # fmt: skip


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """The graph's name of a PyTorch element type; ``OTHER`` where it has none."""
    return _FROM_TORCH.get(dtype, DType.OTHER)


def to_torch_dtype(dtype: DType) -> torch.dtype | None:
    """PyTorch's element type for a graph's one, or None where PyTorch has none."""
    return _TO_TORCH.get(dtype)


def exported_dtype(number: int) -> torch.dtype | None:
    """PyTorch's element type for its number in a program of ``torch.export``, or None where that is not known."""
    return _EXPORTED.get(number)
