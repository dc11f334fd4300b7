"""Bags of embeddings, which PyTorch's exporters write as a loop over the bags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dippm.frontends.onnx.program import ABSENT, Block, Op, Weight
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import OpKind

__all__ = ["read_bags", "read_stacked_bags"]

_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})
# What else a turn of the loop does: it works out where the rows of its bag begin and end.
_OPERATORS = _REDUCTIONS | {
    "Add", "Cast", "CastLike", "Constant", "Div", "Equal", "Greater", "Identity", "If", "Less", "Reshape",
    "SequenceInsert", "Shape", "Slice", "Squeeze", "Sub", "Unsqueeze",
}  # fmt: skip
# Those of the older exporter, which gathers the bounds and looks the rows of each bag up in its turn.
_STACKING_OPERATORS = _REDUCTIONS | {"Cast", "Constant", "Gather", "Identity", "Mul", "Slice", "Unsqueeze"}
_MATRIX = 2


def read_bags(call: Call, body: Block, carried: Sequence[Value]) -> list[Value] | None:
    """A loop that reduces the rows of a table bag by bag, as the one kernel that ``nn.EmbeddingBag`` runs.

    Args:
        call: The loop.
        body: Its body.
        carried: What goes from turn to turn.

    Returns:
        The bags, as a sequence of one tensor since what reads them joins them, and the number of turns; None for every
        other loop.
    """
    place = _collecting_place(carried)
    if place is None or len(body.outputs) != 3 or len(body.inputs) != 4 or not _is_joined(call, place):
        return None
    ops = list(_all_ops(body.ops))
    turns = _turns(call, body, place)
    if turns is None or any(op.op_type not in _OPERATORS or op.domain for op in ops):
        return None
    made = {number for op in ops for number in op.outputs}
    sources = {op.inputs[0] for op in ops if op.op_type == "Slice"} - made - {*body.inputs}
    outer = {number: call.evaluator.value(number) for number in sources}
    rows = [number for number, value in outer.items() if len(value.shape) == _MATRIX]
    offsets = [value for value in outer.values() if len(value.shape) == 1]
    reductions = [op for op in ops if op.op_type in _REDUCTIONS]
    if len(rows) != 1 or len(offsets) != 1 or not reductions:
        return None
    if not all(len(op.inputs) > 1 and _known(call, body, op.inputs[1]) == 0 for op in reductions):
        return None
    looked_up = _looked_up(call, rows[0])
    if looked_up is None:
        return None
    table, indices = looked_up
    bags = call.emit(OpKind.EMBEDDING, [table, indices, offsets[0]], (turns, table.shape[1]), table.dtype)
    joined = Value((1,), bags.dtype, items=[bags])
    results = [joined, call.constant_number(turns)]
    return results if place == 0 else results[::-1]


def read_stacked_bags(call: Call, body: Block) -> list[Value] | None:
    """A loop that looks the rows of one bag up in each turn and stacks what it reduces them to, as one kernel too.

    Args:
        call: The loop.
        body: Its body.

    Returns:
        The bags; None for every other loop.
    """
    turns = call.known_ints(0)
    if not turns or len(body.inputs) != 2 or len(body.outputs) != 2:
        return None
    if any(op.op_type not in _STACKING_OPERATORS or op.domain for op in body.ops):
        return None
    makers = {number: op for op in body.ops for number in op.outputs}
    goes_on = _known(call, body, body.outputs[0])
    reduction = makers.get(body.outputs[1])
    if (
        goes_on != 1
        or reduction is None
        or reduction.op_type not in _REDUCTIONS
        or not _is_of_rows(call, body, reduction)
    ):
        return None
    lookup = makers.get(reduction.inputs[0])
    if lookup is not None and lookup.op_type == "Mul":  # a weight for each row
        lookup = makers.get(lookup.inputs[0])
    own = None if lookup is None or lookup.op_type != "Gather" else makers.get(lookup.inputs[1])
    if lookup is None or own is None or own.op_type != "Slice" or lookup.attributes.get("axis", 0) != 0:
        return None
    bounds = [_gathered_bound(makers, body, number) for number in own.inputs[1:3]]
    outer = (lookup.inputs[0], own.inputs[0], *bounds)
    if len(bounds) != 2 or any(number is None or number in makers or number in body.inputs for number in outer):
        return None
    table, indices, offsets, _ = (call.evaluator.value(number) for number in outer if number is not None)
    is_table = table.is_static and table.dtype.is_floating and len(table.shape) == _MATRIX
    if not is_table or len(indices.shape) != 1 or len(offsets.shape) != 1:
        return None
    return [call.emit(OpKind.EMBEDDING, [table, indices, offsets], (turns[0], table.shape[1]), table.dtype)]


def _is_of_rows(call: Call, body: Block, reduction: Op) -> bool:
    """Whether a reduction in a loop's body is over the first dimension, which it drops."""
    if reduction.attributes.get("keepdims", 1):
        return False
    if len(reduction.inputs) > 1:
        return _known(call, body, reduction.inputs[1]) == 0
    axes = reduction.attributes.get("axes")
    return isinstance(axes, (list, tuple)) and [*axes] == [0]


def _gathered_bound(makers: Mapping[int, Op], body: Block, number: int) -> int | None:
    """What a bound of a slice is gathered from by the number of the turn."""
    maker = makers.get(number)
    while maker is not None and maker.op_type in {"Unsqueeze", "Cast", "Identity"}:
        maker = makers.get(maker.inputs[0])
    is_by_turn = maker is not None and maker.op_type == "Gather" and maker.inputs[1] == body.inputs[0]
    return maker.inputs[0] if maker is not None and is_by_turn else None


def _collecting_place(carried: Sequence[Value]) -> int | None:
    """Which of two carried values is an empty sequence, where the other one is turn 0."""
    if len(carried) != 2:
        return None
    for place, (sequence, turn) in enumerate((carried, carried[::-1])):
        if sequence.items == [] and turn.data is not None and turn.data.size == 1 and turn.number() == 0:
            return place
    return None


def _is_joined(call: Call, place: int) -> bool:
    """Whether nothing but a concatenation along the bags reads what the loop collects, and nothing its last turn."""
    outputs = {*call.op.outputs} - {ABSENT}
    readers = [op for op in _all_ops(call.evaluator.program.ops) if not {*op.inputs}.isdisjoint(outputs)]
    if len(readers) != 1 or not outputs.isdisjoint(call.evaluator.program.outputs):
        return False
    (reader,) = readers
    attributes = reader.attributes
    is_along_bags = attributes.get("axis") == 0 and not attributes.get("new_axis", 0)
    return reader.op_type == "ConcatFromSequence" and reader.inputs[0] == call.op.outputs[place] and is_along_bags


def _turns(call: Call, body: Block, place: int) -> int | None:
    """How often the body runs: it goes on while its turn is below a number that is known."""
    makers = {number: op for op in body.ops for number in op.outputs}
    condition, collected, turn = body.outputs[0], body.outputs[1 + place], body.outputs[2 - place]
    test, insertion = makers.get(condition), makers.get(collected)
    if test is None or test.op_type != "Less" or test.inputs[0] != turn or test.inputs[1] in makers:
        return None
    if insertion is None or insertion.op_type != "SequenceInsert" or insertion.inputs[0] != body.inputs[2 + place]:
        return None
    step = makers.get(turn)
    if step is None or step.op_type != "Add" or step.inputs[0] != body.inputs[3 - place]:
        return None
    turns, most = _known(call, body, test.inputs[1]), call.optional(0)
    is_stopped = most is not None and (most.data is None or turns is None or most.number() < turns)
    return turns if _known(call, body, step.inputs[1]) == 1 and not is_stopped else None


def _known(call: Call, body: Block, number: int) -> int | None:
    """The one whole number that a value of the loop's body is, whatever type it is brought to; None for any other."""
    makers = {number: op for op in body.ops for number in op.outputs}
    while (maker := makers.get(number)) is not None and maker.op_type in {"Cast", "CastLike", "Identity"}:
        number = maker.inputs[0]
    if maker is not None and maker.op_type == "Constant":
        stored = maker.attributes.get("value")
        data = stored.data if isinstance(stored, Weight) else None
        return int(data.flat[0]) if data is not None and data.size == 1 else None
    if maker is not None or number in body.inputs:
        return None
    try:
        value = call.evaluator.value(number)
    except ShapeError:  # made within a block of the body
        return None
    return value.integer() if value.data is not None and value.data.size == 1 else None


def _looked_up(call: Call, rows: int) -> tuple[Value, Value] | None:
    """The table and the indices that rows are looked up by, which may be multiplied by a weight each."""
    makers = {number: op for op in call.evaluator.program.ops for number in op.outputs}
    maker = makers.get(rows)
    if maker is not None and maker.op_type == "Mul" and call.evaluator.value(maker.inputs[1]).shape[1:] == (1,):
        maker = makers.get(maker.inputs[0])
    if maker is None or maker.op_type != "Gather" or maker.attributes.get("axis", 0) != 0:
        return None
    table, indices = (call.evaluator.value(number) for number in maker.inputs)
    is_table = table.is_static and table.dtype.is_floating and len(table.shape) == _MATRIX
    return (table, indices) if is_table and len(indices.shape) == 1 else None


def _all_ops(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        for block in op.blocks():
            yield from _all_ops(block.ops)
