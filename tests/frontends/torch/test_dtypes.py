from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.frontends.torch.dtypes import _FROM_TORCH, from_torch_dtype, to_torch_dtype  # noqa: E402
from dippm.graph import DType  # noqa: E402


@pytest.mark.parametrize("dtype", list(_FROM_TORCH), ids=str)
def test_an_element_takes_as_many_bits_in_both(dtype: torch.dtype) -> None:
    assert from_torch_dtype(dtype).bits == 8 * dtype.itemsize
    assert from_torch_dtype(dtype).is_floating == dtype.is_floating_point


@pytest.mark.parametrize("dtype", DType)
def test_there_and_back_is_the_same(dtype: DType) -> None:
    there = to_torch_dtype(dtype)
    assert there is None or from_torch_dtype(there) is dtype


def test_what_has_no_counterpart() -> None:
    assert to_torch_dtype(DType.STRING) is None
    assert to_torch_dtype(DType.UINT4) is None
    assert from_torch_dtype(torch.quint4x2) is DType.OTHER
