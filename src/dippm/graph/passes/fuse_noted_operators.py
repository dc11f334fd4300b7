"""Operators that an exporter takes apart and notes the name of, put together again by these notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind
from dippm.graph.passes.unfuse_bilinear import unfuse_bilinear

__all__ = ["NotedOperator", "fuse_noted_operators"]

_OVER_AXES = frozenset({OpKind.REDUCE, OpKind.CUMULATIVE})


@dataclass(frozen=True, kw_only=True, slots=True)
class NotedOperator:
    """An operator of the framework that runs as one kernel, or a bilinear layer, which is many.

    Args:
        call: Tells this call of it from all others; the same for all parts that it was taken apart into.
        kind: What it is; ``LINEAR`` for a bilinear layer.
        function: Which function, for kinds that have several.
    """

    call: str
    kind: OpKind
    function: str = ""


def fuse_noted_operators(editor: GraphEditor, noted: Mapping[str, NotedOperator]) -> None:
    """Let one node do what the parts of one call do.

    Args:
        editor: The graph.
        noted: What the parts belong to, by the names of the tensors that they write.
    """
    calls: dict[NotedOperator, list[int]] = {}
    for position, node in enumerate(editor.nodes):
        if node is not None and len(node.outputs) == 1:
            operator = noted.get(editor.tensors[node.outputs[0]].name)
            if operator is not None:
                calls.setdefault(operator, []).append(position)
    for operator, positions in calls.items():
        parts = _with_unnamed(editor, positions)
        inputs = _inputs(editor, parts)
        if len(parts) < 2 or not inputs:
            continue
        if operator.kind is OpKind.LINEAR:
            unfuse_bilinear(editor, parts)
        elif operator.kind in _OVER_AXES:
            _fuse_over_axes(editor, operator, parts, inputs)
        else:
            last = editor.node(positions[-1])
            # What stands beside the tensors, as a number that is added, belongs to the operator itself.
            kept = last.attributes if last.kind is operator.kind else {}
            editor.replace(positions[-1], _make_node(editor, operator, inputs, last.outputs, last, kept))
        # The parts in between lose their reader and go with the unused nodes.


def _fuse_over_axes(editor: GraphEditor, operator: NotedOperator, parts: Sequence[int], inputs: list[int]) -> None:
    """One reduction, with all the results that others read, where the first of them stands."""
    axes = {editor.node(part).attributes["axes"] for part in parts if "axes" in editor.node(part).attributes}
    made = [
        part for part in parts for index in editor.node(part).outputs if not set(editor.readers(index)).issubset(parts)
    ]
    if len(inputs) != 1 or len(axes) != 1 or not made:
        return
    outputs = [index for part in made for index in editor.node(part).outputs]
    like = editor.node(made[0])
    for part in made[1:]:
        editor.remove(part)
    editor.replace(made[0], _make_node(editor, operator, inputs, outputs, like, {"axes": axes.pop()}))


def _make_node(
    editor: GraphEditor,
    operator: NotedOperator,
    inputs: Sequence[int],
    outputs: Sequence[int],
    like: Node,
    attributes: Mapping[str, Attribute],
) -> Node:
    given = {**attributes, "function": operator.function} if operator.function else attributes
    name = operator.function or operator.kind.value
    return editor.make_node(operator.kind, inputs, outputs, like=like, source_op=name, attributes=given)


def _with_unnamed(editor: GraphEditor, positions: Sequence[int]) -> list[int]:
    """The parts in order, with those in between that the file has no name for: one of its operators was several."""
    parts = set(positions)
    pending = list(positions)
    while pending:
        for index in editor.node(pending.pop()).inputs:
            writer = editor.writer(index) if index >= 0 and not editor.tensors[index].name else -1
            if writer >= 0 and writer not in parts and parts.issuperset(editor.readers(index)):
                parts.add(writer)
                pending.append(writer)
    return sorted(parts)


def _inputs(editor: GraphEditor, parts: Sequence[int]) -> list[int]:
    """What the parts read of others, numbers left out."""
    made = {index for position in parts for index in editor.node(position).outputs}
    read = dict.fromkeys(index for position in parts for index in editor.node(position).inputs)
    return [index for index in read if index >= 0 and index not in made and not editor.is_number(index)]
