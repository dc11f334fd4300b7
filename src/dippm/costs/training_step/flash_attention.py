"""What flash attention copies around its kernel, in 16 bits on devices of compute capability 8 and later.

The kernel writes its result in the order in which its query lies in memory. Where heads lie one after the other there,
as after a concatenation or ``contiguous``, joining the heads copies; FP32's kernel writes token after token. Heads whose
size is no multiple of eight are padded, queries, keys and values alike (``attention.cpp``, PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence

from dippm.costs.training_step.step_builder import change_node
from dippm.graph import Dim, DType, Node, OpKind, TensorSpec

__all__ = ["append_attention"]

_HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})
_ALIGNMENT = 8
_WIDEST_HEAD = 256


def append_attention(node: Node, tensors: list[TensorSpec], nodes: list[Node]) -> None:
    """Append an attention with the copies that it makes.

    Args:
        node: The attention, its tensors in the formats in which they are stored.
        tensors: All tensors; new ones are appended.
        nodes: Where the nodes go.
    """
    query, (result, *others) = node.inputs[0], node.outputs
    width = tensors[query].shape[-1].fixed
    is_padded = bool(width % _ALIGNMENT)
    if not _is_flash(node, tensors) or not (is_padded or node.attributes.get("is_by_head") is True):
        nodes.append(node)
        return
    inputs = node.inputs
    if is_padded:
        inputs = tuple(_like(index, tensors) for index in node.inputs[:3])
        nodes.extend(
            _moved(node, OpKind.PAD, source, target, "constant_pad_nd")
            for source, target in zip(node.inputs, inputs, strict=False)
        )
    written = _like(result, tensors)
    nodes.append(change_node(node, inputs=inputs, outputs=(written, *others), releases=()))
    copy = _moved(node, OpKind.COPY, written, result, "clone")
    nodes.append(change_node(copy, releases=node.releases))


def _is_flash(node: Node, tensors: Sequence[TensorSpec]) -> bool:
    query, _, value = (tensors[index] for index in node.inputs[:3])
    has_mask = len(node.inputs) > 3 and node.inputs[3] >= 0
    width = query.shape[-1]
    return query.dtype in _HALF and not has_mask and width == value.shape[-1] and width.fixed <= _WIDEST_HEAD


def _like(index: int, tensors: list[TensorSpec]) -> int:
    """A new tensor of the same shape, its last dimension padded."""
    source = tensors[index]
    width = -(-source.shape[-1].fixed // _ALIGNMENT) * _ALIGNMENT
    tensors.append(TensorSpec(name=f"{source.name}.flash", shape=(*source.shape[:-1], Dim(0, width)), dtype=source.dtype))
    return len(tensors) - 1


def _moved(node: Node, kind: OpKind, source: int, target: int, function: str) -> Node:
    return Node(
        kind=kind,
        inputs=(source,),
        outputs=(target,),
        attributes={"function": function},
        scope=node.scope,
        source_op=f"aten.{function}",
    )
