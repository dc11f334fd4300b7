import pytest

from dippm.frontends.tensorflow.wire_format import is_graph_def


def node(name: bytes, op: bytes) -> bytes:
    inner = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(op)]) + op
    return b"\x0a" + bytes([len(inner)]) + inner


@pytest.mark.parametrize("op", [b"Placeholder", b"Conv2D", b"_Arg"])
def test_a_graph_begins_with_a_node(op: bytes) -> None:
    assert is_graph_def(node(b"x", op) + b"anything")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\xff\xff",
        node(b"", b"Conv2D"),
        node(b"x", b"not an operator"),
        b"\x0a\x04\x0a\x01x\x12",  # the operator lies beyond the node
        b"\x08\x08\x12\x07pytorch",  # ONNX
        b"\x0a\x10\x08\x00\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # Paddle: a block with its number
    ],
)
def test_anything_else_does_not(head: bytes) -> None:
    assert not is_graph_def(head)
