"""Branches and loops, written out as the operators that they run."""

from __future__ import annotations

from dippm.costs.open_loops import MOST_ROUNDS
from dippm.frontends.onnx.ops.embedding_bags import read_bags, read_stacked_bags
from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, normalize_axis
from dippm.graph import OpKind

__all__: list[str] = []

_UNROLLED_NODES = 20_000
_UNROLLED_TRIPS = 4_096
_ENDLESS = 2**62
_MANY_TRIPS = 16


@rule("If")
def branch(call: Call) -> list[Value]:
    """The branch that is known to be taken, else the one with more work, beside the weights of the other."""
    condition = call.required(0)
    then_block, else_block = call.block_attribute("then_branch"), call.block_attribute("else_branch")
    if then_block is None or else_block is None:
        raise ShapeError("it lacks a branch")
    if condition.data is not None and condition.data.size == 1:
        return call.evaluator.run_block(then_block if condition.number() else else_block, [])
    call.warn(
        "A branch depends on the data: the side with more work is in the time, the weights of both are in the memory."
    )
    call.evaluator.keep(condition)
    return call.evaluator.run_larger((then_block, else_block))


@rule("Loop")
def loop(call: Call) -> list[Value]:
    """The body, as often as it is known to run."""
    body = call.block_attribute("body")
    if body is None:
        raise ShapeError("it lacks a body")
    limit, condition = call.known_ints(0), call.optional(1)
    call.evaluator.keep(call.optional(0), condition)
    carried = [call.required(position) for position in range(2, len(call.inputs))]
    scanned: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    if len(body.inputs) < 2 + len(carried) or len(body.outputs) < 1 + len(carried):
        raise ShapeError("its body does not fit its inputs")
    bags = read_bags(call, body, carried) if carried else read_stacked_bags(call, body)
    if bags is not None:
        return bags
    is_running = condition is None or condition.data is None or bool(condition.number())
    # A limit that is not known lets nothing be concluded; without one, the condition alone decides.
    most = limit[0] if limit else (_ENDLESS if call.optional(0) is None else 1)
    wanted = most if is_running else 0
    is_known = bool(limit) or not is_running
    is_shortened = False
    start = call.evaluator.node_count()
    trip = 0
    while trip < wanted:
        counter = call.constant_number(trip)
        state = condition if condition is not None and trip == 0 else call.constant_flag(True)
        results = call.evaluator.run_block(body, [counter, state, *carried])
        carried = results[1 : 1 + len(carried)]
        for column, value in zip(scanned, results[1 + len(carried) :], strict=True):
            column.append(value)
        trip += 1
        keep_going = results[0]
        call.evaluator.keep(keep_going)
        if keep_going.data is None:
            if wanted > _UNROLLED_TRIPS:
                # No limit, or one that is never meant to be reached: the data decides.
                is_known = False
                break
            is_shortened = True
        elif keep_going.data.size == 1 and not keep_going.number():
            is_known, wanted = True, trip
            break
        if call.evaluator.node_count() - start > _UNROLLED_NODES or trip >= _UNROLLED_TRIPS:
            break
    if not is_known:
        wanted = trip
        call.evaluator.mark_open(start, MOST_ROUNDS)
        call.warn(f"A loop runs as often as its data says; its body is counted {_times(trip)}.")
    elif trip < wanted:
        call.evaluator.mark_open(start, wanted / trip)
        call.warn(f"A loop runs {wanted} times; its body is counted {_times(trip)}.")
    elif is_shortened:
        call.warn(f"A loop may end before its limit of {wanted} rounds; all of them are counted.")
    _warn_of_recurrence(call, start, trip, len(carried))
    return [*carried, *(_stack(call, column, max(wanted, 0)) for column in scanned)]


@rule("Scan")
def scan(call: Call) -> list[Value]:
    """The body, once for each slice of its scanned inputs."""
    body = call.block_attribute("body")
    count = call.int_attribute("num_scan_inputs", 1)
    if body is None or not 0 < count <= len(call.inputs):
        raise ShapeError("it lacks a body or scanned inputs")
    if call.op.version < 9:
        raise ShapeError("the batched Scan of opset 8 is not read; convert the model to opset 9 or later")
    values = [call.required(position) for position in range(len(call.inputs))]
    carried, sources = values[: len(values) - count], values[len(values) - count :]
    axes = call.ints_attribute("scan_input_axes") or [0] * count
    if len(axes) != count or len(body.inputs) != len(values) or len(body.outputs) < len(carried):
        raise ShapeError("its body does not fit its inputs")
    collected = len(body.outputs) - len(carried)
    stacked = call.ints_attribute("scan_output_axes") or [0] * collected
    if len(stacked) != collected:
        raise ShapeError(f"it has {len(stacked)} output axes, its body {collected} outputs to stack")
    places = [normalize_axis(axis, len(source.shape)) for axis, source in zip(axes, sources, strict=True)]
    trips = sources[0].shape[places[0]]
    scanned: list[list[Value]] = [[] for _ in range(collected)]
    start = call.evaluator.node_count()
    trip = 0
    while trip < trips:
        slices = [
            call.view(source, (*source.shape[:axis], *source.shape[axis + 1 :]), "select", axis=axis)
            for source, axis in zip(sources, places, strict=True)
        ]
        results = call.evaluator.run_block(body, [*carried, *slices])
        for column, value in zip(scanned, results[len(carried) :], strict=True):
            column.append(value)
        carried = results[: len(carried)]
        trip += 1
        if call.evaluator.node_count() - start > _UNROLLED_NODES or trip >= _UNROLLED_TRIPS:
            break
    if trip < trips:
        call.evaluator.mark_open(start, trips / trip)
        call.warn(f"A scan runs {trips} times; its body is counted {trip} times.")
    _warn_of_recurrence(call, start, trip, len(carried))
    outputs = (_stack(call, column, trips, axis) for column, axis in zip(scanned, stacked, strict=True))
    return [*carried, *outputs]


@rule("SequenceMap")
def sequence_map(call: Call) -> list[Value]:
    """The body, once for each element of a sequence."""
    body = call.block_attribute("body")
    sequence = call.required(0)
    if body is None or sequence.items is None:
        raise ShapeError("it needs a body and a sequence whose elements are known")
    columns: list[list[Value]] = [[] for _ in body.outputs]
    others = [call.required(position) for position in range(1, len(call.inputs))]
    for number, item in enumerate(sequence.items):
        rest = [
            other.items[number] if other.items is not None and number < len(other.items) else other for other in others
        ]
        for column, value in zip(columns, call.evaluator.run_block(body, [item, *rest]), strict=True):
            column.append(value)
    return [Value((len(column),), column[0].dtype if column else sequence.dtype, items=column) for column in columns]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _warn_of_recurrence(call: Call, start: int, trips: int, carried_count: int) -> None:
    """Say so where a loop may be one operator, as converters write those that ONNX has none for."""
    kinds = call.evaluator.kinds_since(start) - {OpKind.VIEW, OpKind.FILL}
    if trips > 1 and carried_count and OpKind.LINEAR in kinds:
        call.warn(
            f"A loop with linear layers in it is counted step by step, {trips} times. If it is a recurrent layer that "
            "a converter took apart, such as Keras's GRU, PyTorch's own runs in far fewer kernels and takes less time."
        )
    elif trips >= _MANY_TRIPS and kinds:
        call.warn(
            f"A loop is counted step by step, {trips} times. If it is one operator that an exporter took apart, "
            "PyTorch's own runs in far fewer kernels and takes less time."
        )


def _stack(call: Call, parts: list[Value], count: int, axis: int = 0) -> Value:
    if not parts:
        raise ShapeError("what a loop that never runs collects has no known shape")
    part = parts[0].shape
    axis = normalize_axis(axis, len(part) + 1)
    outputs = [((*part[:axis], count, *part[axis:]), parts[0].dtype)]
    return call.emit_many(OpKind.CONCAT, parts, outputs, source_op="Concat", attributes={"axis": axis})[0]
