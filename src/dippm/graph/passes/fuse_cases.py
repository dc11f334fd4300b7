"""Functions whose cases exporters write out, one kernel each: ``atan2``, ``lerp``, ``nan_to_num``, ``remainder``."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_cases"]

_CONDITIONS = frozenset({"isnan", "isinf", "less", "greater", "logical_and"})
_CASES_OF_NAN_TO_NUM = 3


def fuse_cases(editor: GraphEditor) -> None:
    """Recognize what no one writes out who has the function.

    Those are ``x - floor(x / y) y``; ``a + w (b - a)`` where a weight is small and ``b - (1 - w) (b - a)`` elsewhere;
    ``atan(y / x)`` moved by pi where x is negative; and three numbers in place of NaN and both infinities.
    """
    # From the end, so that the last choice is seen before those that it chooses from.
    for position in range(len(editor.nodes) - 1, -1, -1):
        node = editor.nodes[position]
        if node is None:
            continue
        found = None
        if node.kind is OpKind.SUB and len(node.inputs) == 2:
            found = _remainder(editor, node)
        elif _is_choice(node):
            found = _angle(editor, node) or _between(editor, node) or _finite(editor, node)
        if found is not None:
            kind, function, inputs = found
            new = editor.make_node(
                kind, inputs, node.outputs, like=node, source_op=function, attributes={"function": function}
            )
            # The parts in between lose their reader and go with the unused nodes.
            editor.replace(position, new)


Found = tuple[OpKind, str, tuple[int, ...]]


def _is_choice(node: Node) -> bool:
    return node.kind is OpKind.BINARY and node.attributes.get("function") == "where"


def _remainder(editor: GraphEditor, node: Node) -> Found | None:
    x, multiple = node.inputs
    product = editor.writer_of_kind(multiple, OpKind.MUL)
    if product is None:
        return None
    for whole in product.inputs:
        floor = editor.writer_of_kind(whole, OpKind.UNARY, "floor")
        quotient = None if floor is None else editor.writer_of_kind(floor.inputs[0], OpKind.DIV)
        if quotient is None or quotient.inputs[0] != x or quotient.attributes.get("scalar_first"):
            continue
        divisors = [index for index in product.inputs if index != whole]
        is_same = product.attributes.get("scalar") == quotient.attributes.get("scalar")
        if is_same and list(quotient.inputs[1:]) == divisors:
            return OpKind.BINARY, "remainder", quotient.inputs
    return None


def _angle(editor: GraphEditor, node: Node) -> Found | None:
    for plain in node.inputs:
        inverse = editor.writer_of_kind(plain, OpKind.UNARY, "atan")
        ratio = None if inverse is None else editor.writer_of_kind(inverse.inputs[0], OpKind.DIV)
        if ratio is None or len(ratio.inputs) != 2:
            continue
        for moved in node.inputs:
            inner = editor.writer_of_kind(moved, OpKind.BINARY, "where")
            if inner is not None and all(
                any(_reads(editor, index, kind, plain) for index in inner.inputs) for kind in (OpKind.ADD, OpKind.SUB)
            ):
                return OpKind.BINARY, "atan2", ratio.inputs
    return None


def _reads(editor: GraphEditor, index: int, kind: OpKind, source: int) -> bool:
    writer = editor.writer_of_kind(index, kind)
    return writer is not None and source in writer.inputs


def _between(editor: GraphEditor, node: Node) -> Found | None:
    for index in node.inputs:
        total = editor.writer_of_kind(index, OpKind.ADD)
        if total is None or len(total.inputs) != 2:
            continue
        for start, step in (total.inputs, total.inputs[::-1]):
            share = editor.writer_of_kind(step, OpKind.MUL)
            for way in () if share is None else share.inputs:
                difference = editor.writer_of_kind(way, OpKind.SUB)
                if difference is None or len(difference.inputs) != 2 or difference.inputs[1] != start:
                    continue
                end = difference.inputs[0]
                if share is not None and any(_comes_back(editor, other, end, way) for other in node.inputs):
                    weights = [weight for weight in share.inputs if weight != way and not editor.is_number(weight)]
                    return OpKind.BINARY, "lerp", (start, end, *weights)
    return None


def _comes_back(editor: GraphEditor, index: int, end: int, way: int) -> bool:
    rest = editor.writer_of_kind(index, OpKind.SUB)
    return rest is not None and rest.inputs[0] == end and _reads(editor, rest.inputs[-1], OpKind.MUL, way)


def _finite(editor: GraphEditor, node: Node) -> Found | None:
    chosen: list[int] = []
    asked: set[str] = set()
    current: Node | None = node
    x = -1
    while current is not None and _is_choice(current) and len(current.inputs) >= 2:
        condition = current.inputs[0]
        others = [index for index in current.inputs[1:] if not editor.is_number(index)]
        if len(others) != 1:
            return None
        chosen.append(condition)
        x = others[0]
        current = editor.writer_of_kind(x, OpKind.BINARY, "where")
    if len(chosen) != _CASES_OF_NAN_TO_NUM:
        return None
    for condition in chosen:
        if not _asks(editor, condition, asked, x):
            return None
    return (OpKind.UNARY, "nan_to_num", (x,)) if {"isnan", "isinf"} <= asked else None


def _asks(editor: GraphEditor, index: int, asked: set[str], x: int) -> bool:
    """Whether a truth value tells of x alone, as it is or with numbers put in its place, which value it is."""
    while index != x:
        writer = editor.writer(index)
        if writer < 0:
            return False
        node = editor.node(writer)
        function = node.attributes.get("function")
        if node.kind is OpKind.CAST or _is_choice(node):
            inputs = node.inputs[-1:] if node.kind is OpKind.CAST else node.inputs[1:]
        elif node.kind in (OpKind.UNARY, OpKind.BINARY) and function in _CONDITIONS:
            asked.add(str(function))
            inputs = node.inputs
        else:
            return False
        rest = [item for item in inputs if not editor.is_number(item)]
        if len(rest) > 1:
            return all(_asks(editor, item, asked, x) for item in rest)
        if not rest:
            return False
        index = rest[0]
    return True
