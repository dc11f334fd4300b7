from __future__ import annotations

from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.copy_packed_projection import copy_packed_projection

LENGTH, SIZE = 10, 64


def write(builder: Any, *, parts: int = 3, perm: tuple[int, ...] = (3, 1, 2, 0, 4), reader: str = "select") -> None:
    """A projection with its parts brought to the front as nn.MultiheadAttention does."""
    n = builder.N
    packed = builder.input(LENGTH, n, parts, SIZE)
    unsqueezed = builder.node(OpKind.VIEW, [packed], 1, LENGTH, n, parts, SIZE, function="reshape")
    turned = builder.node(OpKind.VIEW, [unsqueezed], parts, LENGTH, n, 1, SIZE, function="transpose", perm=perm)
    squeezed = builder.node(OpKind.VIEW, [turned], parts, LENGTH, n, SIZE, function="reshape")
    for _ in range(parts):
        if reader == "select":
            part = builder.node(OpKind.VIEW, [squeezed], LENGTH, n, SIZE, function="select", axis=0)
        else:
            part = builder.node(OpKind.RELU, [squeezed], parts, LENGTH, n, SIZE)
        builder.node(OpKind.RELU, [part], LENGTH, n, SIZE)


def kinds(builder: Any) -> list[str]:
    editor = GraphEditor(builder.graph(*(node.outputs[0] for node in builder.nodes[4::2])))
    copy_packed_projection(editor)
    return [node.kind.value for node in editor.to_graph().nodes if node.kind is not OpKind.RELU]


@pytest.mark.parametrize("parts", [2, 3])
def test_the_parts_stand_in_one_copy(builder: Any, parts: int) -> None:
    write(builder, parts=parts)
    assert kinds(builder) == ["view", "view", "view", "copy"] + ["view"] * parts


def test_parts_that_are_brought_to_the_front_otherwise_are_not_copied(builder: Any) -> None:
    write(builder, perm=(3, 2, 1, 0, 4))  # of the same shape where length is the batch, but not what the layer writes
    assert "copy" not in kinds(builder)


def test_what_is_read_as_a_whole_is_not_copied(builder: Any) -> None:
    write(builder, reader="relu")
    assert "copy" not in kinds(builder)


def test_other_numbers_of_parts_are_not_copied(builder: Any) -> None:
    write(builder, parts=4)
    assert "copy" not in kinds(builder)
