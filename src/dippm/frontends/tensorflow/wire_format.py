"""A TensorFlow graph told by its bytes, without TensorFlow."""

from __future__ import annotations

import re

__all__ = ["is_graph_def"]

_LENGTH_DELIMITED_1, _LENGTH_DELIMITED_2 = 0x0A, 0x12
_OP = re.compile(rb"[A-Z_][A-Za-z0-9_>]*")
_LONGEST_VARINT = 5


def is_graph_def(head: bytes) -> bool:
    """Whether a file begins as a frozen graph does: with a node that has a name and, right after it, an operator.

    Field numbers are those of tensorflow/core/framework/graph.proto and node_def.proto.

    Args:
        head: The file's first bytes, a few hundred or more.
    """
    node = _length_after(head, 0, _LENGTH_DELIMITED_1)
    name = None if node is None else _length_after(head, node[1], _LENGTH_DELIMITED_1)
    if node is None or name is None:
        return False
    op = _length_after(head, name[1] + name[0], _LENGTH_DELIMITED_2)
    if op is None or op[1] + op[0] > node[1] + node[0]:
        return False
    return name[0] > 0 and _OP.fullmatch(head[op[1] : op[1] + op[0]]) is not None


def _length_after(head: bytes, position: int, tag: int) -> tuple[int, int] | None:
    """Length of the field with that tag at a position, and where its content begins."""
    if position >= len(head) or head[position] != tag:
        return None
    length = 0
    for place, byte in enumerate(head[position + 1 : position + 1 + _LONGEST_VARINT]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length, position + 2 + place
    return None
