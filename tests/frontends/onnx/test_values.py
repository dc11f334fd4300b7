from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dippm.frontends.onnx.program import Op
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast, normalize_axis, numel
from dippm.graph import DType, TensorRole


@pytest.mark.parametrize(
    ("shapes", "common"),
    [
        (((2, 3), (2, 3)), (2, 3)),
        (((2, 3), (3,)), (2, 3)),
        (((2, 1, 4), (5, 1), ()), (2, 5, 4)),
        (((0, 3), (1, 3)), (0, 3)),
    ],
)
def test_shapes_combine_as_numpys(shapes: tuple[tuple[int, ...], ...], common: tuple[int, ...]) -> None:
    assert broadcast(*shapes) == common == np.broadcast_shapes(*shapes)


def test_shapes_that_do_not_combine_are_named() -> None:
    with pytest.raises(ShapeError, match=r"\[2, 3\] and \[4\] do not combine"):
        broadcast((2, 3), (4,))


@pytest.mark.parametrize(("axis", "rank", "counted"), [(0, 3, 0), (-1, 3, 2), (-3, 3, 0), (2, 3, 2)])
def test_axes_count_from_the_front(axis: int, rank: int, counted: int) -> None:
    assert normalize_axis(axis, rank) == counted
    for outside in (rank, -rank - 1):
        with pytest.raises(ShapeError, match="does not exist"):
            normalize_axis(outside, rank)


def test_elements_are_multiplied_without_end() -> None:
    assert numel((2**40, 2**40)) == 2**80
    assert numel(()) == 1


@pytest.mark.parametrize(
    ("data", "role", "is_number", "is_constant"),
    [
        (np.array([3.0]), TensorRole.CONSTANT, True, True),
        (np.array([3.0, 4.0]), TensorRole.CONSTANT, False, True),
        (np.array(3.0), TensorRole.PARAMETER, False, False),
        (None, TensorRole.ACTIVATION, False, False),
    ],
)
def test_a_trained_number_is_no_number_of_the_code(data: Any, role: TensorRole, is_number, is_constant) -> None:
    value = Value((1,), DType.FLOAT32, data, role=role, is_static=True)
    assert (value.is_number, value.is_constant) == (is_number, is_constant)
    assert value.is_stored == (role is TensorRole.PARAMETER)


def test_numbers_of_values() -> None:
    assert Value((), DType.INT64, np.array(7)).integer() == 7
    assert Value((), DType.COMPLEX64, np.array(2 + 1j)).number() == 2.0
    assert Value((), DType.FLOAT32, np.array(np.nan)).number() is math.nan
    for data, said in ((None, "not known"), (np.array([]), "not known"), (np.array(np.inf), "not finite")):
        with pytest.raises(ShapeError, match=said):
            Value((), DType.FLOAT32, data).integer()


def _call(inputs: list[Value | None], **attributes: Any) -> Call:
    op = Op(op_type="Test", domain="", version=17, inputs=(), outputs=(), attributes=attributes)
    return Call(op, inputs, None)  # type: ignore[arg-type]


def test_inputs_that_are_left_out() -> None:
    known = Value((2,), DType.INT64, np.array([3, -1]))
    call = _call([known, None, Value((2,), DType.FLOAT32, np.array([1.0, np.inf])), Value((2,), DType.INT64)])
    assert call.required(0) is known
    assert call.optional(1) is call.optional(9) is None
    assert [call.known_ints(place) for place in (0, 1, 3, 9)] == [[3, -1], None, None, None]
    with pytest.raises(ShapeError, match="input 1 is missing"):
        call.required(1)
    with pytest.raises(ShapeError, match="not finite"):
        call.known_ints(2)


def test_attributes_of_another_kind_are_as_if_left_out() -> None:
    call = _call([], number=3, share=0.5, text="same", sizes=[1, 2], shares=[0.5, 1], names=["a"])
    assert (call.int_attribute("number"), call.int_attribute("text", 9), call.int_attribute("none", 4)) == (3, 9, 4)
    assert [call.float_attribute(name) for name in ("number", "share", "text")] == [3.0, 0.5, 0.0]
    assert (call.text_attribute("text"), call.text_attribute("number", "x")) == ("same", "x")
    assert (call.ints_attribute("sizes"), call.ints_attribute("number")) == ([1, 2], None)
    assert call.floats_attribute("shares") == [0.5, 1.0]
    assert call.tensor_attribute("sizes") is call.block_attribute("text") is None
