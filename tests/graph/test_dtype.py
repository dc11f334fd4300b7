import numpy as np
import pytest

from dippm.graph import DType

_SIZELESS = {DType.STRING: 0, DType.OTHER: 32}


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in _SIZELESS])
def test_a_type_is_as_wide_as_numpy_has_it_else_as_its_name_says(dtype: DType) -> None:
    if dtype is DType.BOOL or hasattr(np, dtype.value):
        assert dtype.bits == 8 * np.dtype(dtype.value).itemsize
    else:
        assert dtype.bits == int(dtype.value.lstrip("abcdefghijklmnopqrstuvwxyz"))


def test_types_without_a_size() -> None:
    assert {dtype: dtype.bits for dtype in _SIZELESS} == _SIZELESS


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
