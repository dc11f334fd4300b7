"""Element types of tensors."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["DType"]

_BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8": 8, "float6": 6, "float4": 4,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2,
    "bool": 8, "complex64": 64, "complex128": 128, "string": 0, "other": 32,
}  # fmt: skip
_FLOATING = frozenset(name for name in _BITS if name.startswith(("float", "bfloat")))
_COMPLEX = frozenset(name for name in _BITS if name.startswith("complex"))


class DType(StrEnum):
    """Element type of a tensor; the value is its usual name.

    ``OTHER`` stands for a type without a fixed size here and counts four bytes; ``STRING`` never reaches a GPU.
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8 = "float8"
    FLOAT6 = "float6"
    FLOAT4 = "float4"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    UINT4 = "uint4"
    UINT2 = "uint2"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    STRING = "string"
    OTHER = "other"

    @property
    def bits(self) -> int:
        """Bits per element."""
        # A member hashes as its value; asking for that takes longer than finding it.
        return _BITS[self]

    @property
    def is_floating(self) -> bool:
        """Whether the type holds real numbers."""
        return self in _FLOATING

    @property
    def is_complex(self) -> bool:
        """Whether the type holds complex numbers."""
        return self in _COMPLEX

    @property
    def real(self) -> DType:
        """The type of the real part of such a number."""
        return {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}.get(self, self)

    @property
    def is_differentiable(self) -> bool:
        """Whether tensors of the type can have a gradient: real and complex numbers."""
        return self in _FLOATING or self in _COMPLEX
