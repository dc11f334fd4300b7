"""A border of zeros round an image, which other frameworks write as an operator before the convolution."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fold_borders"]

_CHANNEL_AXES = 2  # samples and channels come first


def fold_borders(editor: GraphEditor) -> None:
    """Let a convolution pad what a border alone was made for, where it grows every dimension on both sides alike.

    A border that one side alone has stays: PyTorch pads it by a kernel of its own too.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.CONV:
            continue
        bordered = node.inputs[0]
        border = editor.writer_of_kind(bordered, OpKind.PAD)
        if border is None or border.attributes.get("mode") != "constant" or editor.only_reader(bordered) != position:
            continue
        before, after = (editor.tensors[tensor].shape for tensor in (border.inputs[0], bordered))
        padding = node.attributes.get("padding")
        growth = [new.fixed - old.fixed for old, new in zip(before, after, strict=True)]
        is_spatial = before[:_CHANNEL_AXES] == after[:_CHANNEL_AXES] and all(
            old.per_sample == new.per_sample for old, new in zip(before, after, strict=True)
        )
        if not is_spatial or any(size < 0 or size % 2 for size in growth):
            continue
        if not isinstance(padding, tuple) or len(padding) != len(growth) - _CHANNEL_AXES:
            continue
        sides = tuple(int(own) + size // 2 for own, size in zip(padding, growth[_CHANNEL_AXES:], strict=True))
        editor.remove(editor.writer(bordered))
        editor.replace(
            position,
            editor.make_node(
                OpKind.CONV,
                (border.inputs[0], *node.inputs[1:]),
                node.outputs,
                like=node,
                attributes={**node.attributes, "padding": sides},
            ),
        )
