from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dippm.frontends.onnx.element_types import NUMPY_TYPES, element_type, from_numpy
from dippm.graph import DType


@pytest.mark.parametrize("number", [n for n in TensorProto.DataType.values() if n != TensorProto.UNDEFINED])
def test_every_type_of_the_standard_is_known_by_its_size(number: int) -> None:
    dtype = element_type(number)
    name = TensorProto.DataType.Name(number)
    assert dtype is not DType.OTHER, name
    if number == TensorProto.STRING:
        return
    stored = helper.tensor_dtype_to_np_dtype(number)
    digits = "".join(letter for letter in name.split("E")[0] if letter.isdigit())
    assert dtype.bits == (int(digits) if digits else 8 * stored.itemsize), (name, onnx.__version__)
    assert dtype.is_floating == ("FLOAT" in name or name == "DOUBLE")


def test_a_type_of_later_is_other() -> None:
    assert element_type(0) is element_type(999) is DType.OTHER


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_numpys_types_are_the_same_both_ways(dtype: DType) -> None:
    assert from_numpy(NUMPY_TYPES[dtype]) is dtype
    assert 8 * NUMPY_TYPES[dtype].itemsize == dtype.bits


def test_what_numpy_has_alone_is_other() -> None:
    assert from_numpy(np.dtype("M8[s]")) is DType.OTHER
