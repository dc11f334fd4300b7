"""Files of a few tables, put together by hand; a real one is cut in test_conversion."""

from __future__ import annotations

import struct

import pytest

from dippm.frontends.tensorflow.lite_file import find_signatures, is_cut_short


def _lite(data: bytes, *, behind: bytes = b"") -> bytes:
    """A model with one buffer, whose bytes are in the tree; or behind it, where some are given for there."""
    # Root offset, identifier; vtable of the model, whose fields 0 to 3 are left out; the model; its vector of buffers.
    head = struct.pack("<I4s", 24, b"TFL3") + struct.pack("<HH5H2x", 14, 8, 0, 0, 0, 0, 4)
    vector = struct.pack("<iI", 16, 4) + struct.pack("<II", 1, 16)
    # 40: vtable of the buffer with fields data, offset, size; 52: the buffer.
    described = struct.pack("<HHHHHH", 10, 24, 4, 8 if behind else 0, 16 if behind else 0, 0)
    start = 76 + 4 + len(data)
    buffer = struct.pack("<iIQQ", 12, 20, start, len(behind))
    return head + vector + described + buffer + struct.pack("<I", len(data)) + data + behind


@pytest.mark.parametrize("behind", [b"", b"weights"])
def test_every_byte_of_a_tensor_is_missed(behind: bytes) -> None:
    whole = _lite(b"numbers", behind=behind)
    assert not is_cut_short(memoryview(whole))
    assert [is_cut_short(memoryview(whole[:length])) for length in range(8, len(whole))] == [True] * (len(whole) - 8)


def test_what_is_no_tree_is_told() -> None:
    for content in (b"\xff" * 64, b"\x08\x00\x00\x00TFL3\xff\xff\xff\x7f"):
        assert is_cut_short(memoryview(content))


def _signed(key: bytes, graph: int) -> bytes:
    """A model with one signature."""
    # Root offset, identifier; vtable of the model, whose fields 0 to 6 are left out; the model; its vector.
    head = struct.pack("<I4s", 28, b"TFL3") + struct.pack("<HH8H", 20, 8, 0, 0, 0, 0, 0, 0, 0, 4)
    vector = struct.pack("<iI", 20, 4) + struct.pack("<II", 1, 20)
    # 44: vtable of the signature with its key and its graph; 60: the signature.
    described = struct.pack("<HH5H2x", 14, 12, 0, 0, 4, 0, 8)
    return head + vector + described + struct.pack("<iII", 16, 8, graph) + struct.pack("<I", len(key)) + key


def test_signatures_are_found_with_their_graphs() -> None:
    whole = _signed(b"encode", 3)
    assert find_signatures(memoryview(whole)) == {"encode": 3}
    assert not is_cut_short(memoryview(whole))
    assert is_cut_short(memoryview(whole[:-1]))
    assert find_signatures(memoryview(_lite(b"numbers"))) == {}
