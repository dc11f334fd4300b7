"""An ONNX file without its weights: every message kept, every bulky tensor payload left out.

A model file is mostly weights, and a graph needs none of them. :func:`extract_skeleton` walks the protobuf wire format
of a file of any size and copies all but the payloads, so that what is parsed afterwards is a few hundred kilobytes.
Field numbers are those of onnx.proto3 (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3).
"""

from __future__ import annotations

from enum import Enum

from dippm.errors import ModelReadError

__all__ = ["KEPT_INTEGER_BYTES", "extract_skeleton"]

KEPT_INTEGER_BYTES = 64 * 1024
"""Integer tensors up to this size stay whole, since shapes may depend on their values."""

_KEPT_FLOAT_BYTES = 1024
_KEPT_TEXT_BYTES = 64 * 1024
_COPIED_WHOLE_BYTES = 1024
_DEPTH_LIMIT = 64
_TENSOR_FIELD_LIMIT = 1_000_000
_INTEGER_TYPES = frozenset({2, 3, 4, 5, 6, 7, 9, 12, 13})  # (u)int8..64 and bool of TensorProto.DataType
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class _Message(Enum):
    MODEL = "ModelProto"
    GRAPH = "GraphProto"
    NODE = "NodeProto"
    ATTRIBUTE = "AttributeProto"
    TENSOR = "TensorProto"
    SPARSE_TENSOR = "SparseTensorProto"
    FUNCTION = "FunctionProto"


_CHILDREN: dict[_Message, dict[int, _Message]] = {
    _Message.MODEL: {7: _Message.GRAPH, 25: _Message.FUNCTION},
    _Message.GRAPH: {1: _Message.NODE, 5: _Message.TENSOR, 15: _Message.SPARSE_TENSOR},
    _Message.NODE: {5: _Message.ATTRIBUTE},
    _Message.ATTRIBUTE: {
        5: _Message.TENSOR, 6: _Message.GRAPH, 10: _Message.TENSOR, 11: _Message.GRAPH,
        22: _Message.SPARSE_TENSOR, 23: _Message.SPARSE_TENSOR,
    },
    _Message.SPARSE_TENSOR: {1: _Message.TENSOR, 2: _Message.TENSOR},
    _Message.FUNCTION: {7: _Message.NODE, 11: _Message.ATTRIBUTE},
    _Message.TENSOR: {},
}  # fmt: skip
_PAYLOADS = frozenset({4, 5, 6, 7, 9, 10, 11})  # float_data .. uint64_data, raw_data of TensorProto
_TRAINING_INFO = 20


def extract_skeleton(buffer: memoryview) -> bytes:
    """Copy a serialized ModelProto without its bulky payloads.

    Args:
        buffer: The file's bytes, usually a memory map, of which only the kept parts are touched.

    Returns:
        A smaller serialized ModelProto with the same graph.

    Raises:
        ModelReadError: ``onnx.truncated`` where a length points past the end of its message, ``onnx.damaged`` where
            the bytes are no protobuf or nest too deeply.
    """
    parts: list[bytes] = []
    _copy_message(buffer, 0, len(buffer), _Message.MODEL, 0, parts)
    return b"".join(parts)


def _copy_message(buffer: memoryview, start: int, end: int, message: _Message, depth: int, parts: list[bytes]) -> int:
    """Append the kept bytes of one message to ``parts``; the number of bytes appended."""
    if depth > _DEPTH_LIMIT:
        raise ModelReadError(
            f"The ONNX file nests {message.value} deeper than {_DEPTH_LIMIT} messages.", code="onnx.damaged"
        )
    if message is _Message.TENSOR:
        return _copy_tensor(buffer, start, end, parts)
    children = _CHILDREN[message]
    total = 0
    pending = start  # start of the stretch that is copied as it is
    position = start
    while position < end:
        field_start = position
        number, wire_type, position = _read_tag(buffer, position, end)
        if wire_type != _LENGTH_DELIMITED:
            position = _skip_scalar(buffer, position, end, wire_type)
            continue
        length, position = _read_varint(buffer, position, end)
        content = position
        position += length
        if position > end:
            raise _truncated(message, number, length, end - content)
        if length <= _COPIED_WHOLE_BYTES:
            continue
        child = children.get(number)
        is_dropped = child is None and _is_bulky(message, number, length)
        if child is None and not is_dropped:
            continue
        total += _append(parts, bytes(buffer[pending:field_start]))
        pending = position
        if child is not None:
            inner: list[bytes] = []
            size = _copy_message(buffer, content, position, child, depth + 1, inner)
            total += _append(parts, _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(size))
            parts.extend(inner)
            total += size
    return total + _append(parts, bytes(buffer[pending:end]))


def _is_bulky(message: _Message, number: int, length: int) -> bool:
    if message is _Message.MODEL and number == _TRAINING_INFO:
        return True
    is_text = number in {6, 10, 13} if message in (_Message.MODEL, _Message.GRAPH) else number in {4, 6, 7, 8, 9, 13}
    # Value types of a graph (field 13) are needed whatever they weigh.
    if message is _Message.GRAPH and number == 13:
        return False
    return is_text and length > _KEPT_TEXT_BYTES and message is not _Message.SPARSE_TENSOR


def _copy_tensor(buffer: memoryview, start: int, end: int, parts: list[bytes]) -> int:
    data_type = 0
    fields: list[tuple[int, int, int, int]] = []  # number, start of the field, its end, payload length
    position = start
    while position < end:
        field_start = position
        number, wire_type, position = _read_tag(buffer, position, end)
        length = 0
        if wire_type == _LENGTH_DELIMITED:
            length, position = _read_varint(buffer, position, end)
            if position + length > end:
                raise _truncated(_Message.TENSOR, number, length, end - position)
            position += length
        elif number == 2 and wire_type == _VARINT:
            data_type, position = _read_varint(buffer, position, end)
        else:
            position = _skip_scalar(buffer, position, end, wire_type)
        fields.append((number, field_start, position, length))
        if len(fields) > _TENSOR_FIELD_LIMIT:
            raise ModelReadError(
                f"A tensor of the ONNX file is stored as more than {_TENSOR_FIELD_LIMIT} separate fields.",
                code="onnx.damaged",
            )
    kept_bytes = KEPT_INTEGER_BYTES if data_type in _INTEGER_TYPES else _KEPT_FLOAT_BYTES
    total = 0
    for number, field_start, field_end, length in fields:
        if number in _PAYLOADS and length > kept_bytes:
            continue
        total += _append(parts, bytes(buffer[field_start:field_end]))
    return total


def _append(parts: list[bytes], piece: bytes) -> int:
    if piece:
        parts.append(piece)
    return len(piece)


def _read_tag(buffer: memoryview, position: int, end: int) -> tuple[int, int, int]:
    tag = buffer[position]
    if tag < 0x80:
        position += 1
    else:
        tag, position = _read_varint(buffer, position, end)
    number = tag >> 3
    if number == 0:
        raise ModelReadError("The file is no ONNX model: its bytes are not in protobuf form.", code="onnx.damaged")
    return number, tag & 7, position


def _read_varint(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise ModelReadError("The file is no ONNX model: a number has no end.", code="onnx.damaged")
    raise ModelReadError("The ONNX file ends in the middle of a number.", code="onnx.truncated", cure=_CURE)


def _skip_scalar(buffer: memoryview, position: int, end: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        return _read_varint(buffer, position, end)[1]
    if wire_type in (_FIXED64, _FIXED32):
        position += 8 if wire_type == _FIXED64 else 4
        if position <= end:
            return position
        raise ModelReadError("The ONNX file ends in the middle of a number.", code="onnx.truncated", cure=_CURE)
    raise ModelReadError(
        f"The file is no ONNX model: wire type {wire_type} is not one of protobuf's.", code="onnx.damaged"
    )


def _encode_varint(value: int) -> bytes:
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


_CURE = "Copy or download the file again, or export the model again."


def _truncated(message: _Message, number: int, length: int, available: int) -> ModelReadError:
    return ModelReadError(
        f"The ONNX file is cut short or damaged: field {number} of {message.value} claims {length} bytes, {available} "
        "are left.",
        code="onnx.truncated",
        cure=_CURE,
    )
