"""Recurrent layers."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import Attribute, OpKind

__all__ = ["recurrent"]

_KINDS = {"LSTM": (OpKind.LSTM, 4), "GRU": (OpKind.GRU, 3), "RNN": (OpKind.RNN, 1)}
_ACTIVATIONS = {
    OpKind.LSTM: ("Sigmoid", "Tanh", "Tanh"),
    OpKind.GRU: ("Sigmoid", "Tanh"),
    OpKind.RNN: ("Tanh",),
}
_VARYING = ("activation_alpha", "activation_beta", "clip", "input_forget", "linear_before_reset")
_SPELLINGS = {"DynamicQuantizeLSTM": "LSTM"}


@rule(*_KINDS)
def recurrent(call: Call) -> list[Value]:
    """One layer, in one or both directions."""
    kind, gates = _KINDS[_SPELLINGS.get(call.op.op_type, call.op.op_type)]
    x, weight, recurrence = call.required(0), call.required(1), call.required(2)
    if len(x.shape) != 3 or len(recurrence.shape) != 3 or len(weight.shape) != 3:
        raise ShapeError("its input, weight and recurrence must have three dimensions")
    hidden = call.int_attribute("hidden_size", recurrence.shape[2])
    directions = 2 if call.text_attribute("direction", "forward") == "bidirectional" else 1
    if weight.shape[:2] != (directions, gates * hidden) or weight.shape[2] != x.shape[2]:
        raise ShapeError(f"a weight of {list(weight.shape)} does not fit {hidden} hidden and {x.shape[2]} input units")
    is_batch_first = bool(call.int_attribute("layout"))
    batch, length = (x.shape[0], x.shape[1]) if is_batch_first else (x.shape[1], x.shape[0])
    if is_batch_first:
        sequence, state = (batch, length, directions, hidden), (batch, directions, hidden)
    else:
        sequence, state = (length, directions, batch, hidden), (directions, batch, hidden)
    outputs = [(sequence, x.dtype), (state, x.dtype)]
    if kind is OpKind.LSTM:
        outputs.append((state, x.dtype))
    # x, then states and weights; the lengths of padded sequences are not a tensor that the kernel reads.
    states = [call.optional(position) for position in range(5, len(call.inputs))]
    inputs = [x, *states, *_apart(weight, 1), *_apart(recurrence, 1), *_apart(call.optional(3), 2)]
    kept = [value for value in inputs if value is not None]
    attributes: dict[str, Attribute] = {
        "hidden_size": hidden,
        "num_layers": 1,
        "num_directions": directions,
        "batch_first": is_batch_first,
    }
    if call.text_attribute("direction", "forward") == "reverse":
        attributes["is_reversed"] = True
    variant = _variant(call, kind, directions)
    if variant:
        attributes["variant"] = variant
    return call.emit_many(kind, kept, outputs, attributes=attributes)


def _variant(call: Call, kind: OpKind, directions: int) -> str:
    """What tells the layer from a plain one of its kind, which must be the same in all layers of one module."""
    given = call.op.attributes.get("activations")
    names = [str(name) for name in given] if isinstance(given, list) else []
    usual = list(_ACTIVATIONS[kind]) * directions
    parts = [] if not names or [name.title() for name in names] == usual else names
    parts += [f"{name}={call.op.attributes[name]}" for name in _VARYING if call.op.attributes.get(name)]
    return " ".join(parts)


def _apart(value: Value | None, per_direction: int) -> list[Value | None]:
    """The tensors that PyTorch keeps apart in each direction and the file stacks into one."""
    if value is None or not value.is_stored or len(value.shape) < 2 or value.shape[1] % per_direction:
        return [value]
    if value.pieces is None:
        directions, rows, *rest = value.shape
        shape = (rows // per_direction, *rest)
        value.pieces = [
            Value(shape, value.dtype, role=value.role, name=value.name, is_static=True)
            for _ in range(directions * per_direction)
        ]
    return list(value.pieces)
