import pytest

from dippm.graph import DType


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("bfloat16", 16), ("int4", 4), ("bool", 8)])
def test_bits(dtype: str, bits: int) -> None:
    assert DType(dtype).bits == bits


def test_every_type_has_a_size() -> None:
    assert all(dtype.bits >= 0 for dtype in DType)


def test_only_real_numbers_are_floating() -> None:
    assert {dtype for dtype in DType if dtype.is_floating} == {
        DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8, DType.FLOAT4,
    }  # fmt: skip


def test_which_types_are_complex() -> None:
    assert {dtype for dtype in DType if dtype.is_complex} == {DType.COMPLEX64, DType.COMPLEX128}
