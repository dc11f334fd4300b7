import pytest

from dippm.graph import DType


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("bfloat16", 16), ("int4", 4), ("bool", 8)])
def test_bits(dtype: str, bits: int) -> None:
    assert DType(dtype).bits == bits


def test_every_type_has_a_size() -> None:
    assert all(dtype.bits >= 0 for dtype in DType)


def test_only_real_numbers_are_floating() -> None:
    assert {dtype for dtype in DType if dtype.is_floating} == {
        DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8, DType.FLOAT6, DType.FLOAT4,
    }  # fmt: skip


def test_a_complex_number_has_two_parts() -> None:
    assert all(dtype.real.bits * 2 == dtype.bits for dtype in DType if dtype.is_complex)
    assert all(dtype.real is dtype for dtype in DType if not dtype.is_complex)


def test_real_and_complex_numbers_have_gradients() -> None:
    assert {dtype for dtype in DType if dtype.is_complex} == {DType.COMPLEX64, DType.COMPLEX128}
    assert {dtype for dtype in DType if dtype.is_differentiable and not dtype.is_floating} == {
        DType.COMPLEX64, DType.COMPLEX128,
    }  # fmt: skip
