"""ONNX element types and ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from dippm.graph import DType

__all__ = ["NUMPY_TYPES", "element_type", "from_numpy"]

_BY_NUMBER = {
    1: DType.FLOAT32, 2: DType.UINT8, 3: DType.INT8, 4: DType.UINT16, 5: DType.INT16, 6: DType.INT32, 7: DType.INT64,
    8: DType.STRING, 9: DType.BOOL, 10: DType.FLOAT16, 11: DType.FLOAT64, 12: DType.UINT32, 13: DType.UINT64,
    14: DType.COMPLEX64, 15: DType.COMPLEX128, 16: DType.BFLOAT16, 17: DType.FLOAT8, 18: DType.FLOAT8,
    19: DType.FLOAT8, 20: DType.FLOAT8, 21: DType.UINT4, 22: DType.INT4, 23: DType.FLOAT4, 24: DType.FLOAT8,
    25: DType.UINT2, 26: DType.INT2, 27: DType.FLOAT6, 28: DType.FLOAT6,
}  # fmt: skip

NUMPY_TYPES: dict[DType, np.dtype[Any]] = {
    DType.FLOAT32: np.dtype("<f4"), DType.FLOAT64: np.dtype("<f8"), DType.FLOAT16: np.dtype("<f2"),
    DType.INT64: np.dtype("<i8"), DType.INT32: np.dtype("<i4"), DType.INT16: np.dtype("<i2"),
    DType.INT8: np.dtype("i1"), DType.UINT64: np.dtype("<u8"), DType.UINT32: np.dtype("<u4"),
    DType.UINT16: np.dtype("<u2"), DType.UINT8: np.dtype("u1"), DType.BOOL: np.dtype("?"),
}  # fmt: skip
"""Numpy's type for the element types whose values are evaluated."""

_FROM_NUMPY = {dtype: ours for ours, dtype in NUMPY_TYPES.items()}


def element_type(number: int) -> DType:
    """The element type behind a TensorProto.DataType number; ``OTHER`` where it is unknown."""
    return _BY_NUMBER.get(number, DType.OTHER)


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type of a numpy array; ``OTHER`` where there is none."""
    return _FROM_NUMPY.get(dtype, DType.OTHER)
