"""Sequences of tensors, which PyTorch code holds as lists."""

from __future__ import annotations

import numpy as np

from dippm.frontends.onnx.element_types import element_type
from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, normalize_axis, numel
from dippm.graph import DType, OpKind

__all__: list[str] = []


def _items(value: Value) -> list[Value]:
    if value.items is None:
        raise ShapeError("it needs a sequence whose elements are known")
    return value.items


def _sequence(items: list[Value], dtype: DType) -> Value:
    return Value((len(items),), items[0].dtype if items else dtype, items=items)


def _position(call: Call, number: int, count: int) -> int:
    where = call.known_ints(number)
    if not where:
        # A position in a loop that is counted once: any element stands for all.
        return count - 1
    position = where[0] + count if where[0] < 0 else where[0]
    if not 0 <= position < count:
        raise ShapeError(f"position {where[0]} does not exist in a sequence of {count}")
    return position


@rule("SequenceConstruct")
def construct(call: Call) -> Value:
    """A sequence of its inputs."""
    return _sequence([call.required(position) for position in range(len(call.inputs))], DType.FLOAT32)


@rule("SequenceEmpty")
def empty(call: Call) -> Value:
    """A sequence of nothing."""
    return _sequence([], element_type(call.int_attribute("dtype", 1)))


@rule("SequenceInsert")
def insert(call: Call) -> Value:
    """One more element."""
    sequence = call.required(0)
    items = list(_items(sequence))
    position = len(items) if call.optional(2) is None else _position(call, 2, len(items) + 1)
    items.insert(position, call.required(1))
    return _sequence(items, sequence.dtype)


@rule("SequenceErase")
def erase(call: Call) -> Value:
    """One element fewer."""
    sequence = call.required(0)
    items = list(_items(sequence))
    if not items:
        raise ShapeError("its sequence is empty")
    del items[len(items) - 1 if call.optional(1) is None else _position(call, 1, len(items))]
    return _sequence(items, sequence.dtype)


@rule("SequenceAt")
def at(call: Call) -> Value:
    """One element."""
    items = _items(call.required(0))
    if not items:
        raise ShapeError("its sequence is empty")
    return items[_position(call, 1, len(items))]


@rule("SequenceLength")
def length(call: Call) -> Value:
    """The number of elements."""
    sequence = call.required(0)
    return call.constant(np.array(len(_items(sequence)), dtype=np.int64), [sequence])


@rule("ConcatFromSequence")
def concat_from_sequence(call: Call) -> Value:
    """All elements one after another, or stacked."""
    items = _items(call.required(0))
    if not items or any(len(item.shape) != len(items[0].shape) for item in items):
        raise ShapeError("its sequence is empty or of mixed rank")
    first = items[0].shape
    if call.int_attribute("new_axis"):
        axis = normalize_axis(call.int_attribute("axis"), len(first) + 1)
        shape = (*first[:axis], len(items), *first[axis:])
    else:
        axis = normalize_axis(call.int_attribute("axis"), len(first))
        if len(items) == 1:
            return items[0]
        shape = (*first[:axis], sum(item.shape[axis] for item in items), *first[axis + 1 :])
    arrays = [item.data for item in items if item.is_constant and item.data is not None]
    if len(arrays) == len(items) and numel(shape) <= call.data_limit:
        join = np.stack if call.int_attribute("new_axis") else np.concatenate
        return call.constant(join(arrays, axis=axis), items)
    return call.emit(OpKind.CONCAT, items, shape, items[0].dtype, axis=axis)


@rule("OptionalHasElement")
def has_element(call: Call) -> Value:
    """Whether an optional value is there."""
    return call.constant(np.array(call.optional(0) is not None), call.inputs)
