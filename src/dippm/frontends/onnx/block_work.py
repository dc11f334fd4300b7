"""How much work operators are, to tell which of two branches is the larger one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dippm.frontends.onnx.values import Sizes, numel
from dippm.graph import CONTRACTION_KINDS, RECURRENT_KINDS, Node, OpKind

__all__ = ["work_of"]

_CONVOLUTIONS = frozenset({OpKind.CONV, OpKind.CONV_TRANSPOSE})


def work_of(nodes: Iterable[Node], shape: Callable[[int], Sizes]) -> int:
    """Multiplications of matrix products plus elements written, a rough measure for comparisons alone.

    Args:
        nodes: The operators.
        shape: Gives the sizes of a tensor by its index.
    """
    return sum(_of_node(node, shape) for node in nodes)


def _of_node(node: Node, shape: Callable[[int], Sizes]) -> int:
    if node.kind is OpKind.VIEW:
        return 0
    written = sum(numel(shape(index)) for index in node.outputs)
    if node.kind not in CONTRACTION_KINDS | RECURRENT_KINDS or not node.inputs:
        return written
    read = [shape(index) if index >= 0 else () for index in node.inputs]
    first = read[0]
    if node.kind in RECURRENT_KINDS:
        # Each step of each sample meets every weight once.
        return written + numel(first[:-1]) * sum(numel(sizes) for sizes in read[1:] if len(sizes) > 1)
    if node.kind in _CONVOLUTIONS and len(read) > 1:
        weight = read[1]
        meets = numel(first) if node.kind is OpKind.CONV_TRANSPOSE else written
        return written + meets * numel(weight[1:])
    if node.kind is OpKind.ATTENTION and len(read) > 1:
        return written + 2 * numel(first) * (read[1][-2] if len(read[1]) > 1 else 1)
    contracted = node.attributes.get("contracted")
    inner = contracted if isinstance(contracted, int) else (first[-1] if first else 1)
    return written + written * inner
