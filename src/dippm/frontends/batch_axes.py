"""Where the inputs of a model that was read have their batch, for what runs the model itself."""

from __future__ import annotations

from dataclasses import replace

from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import Graph, TensorSpec

__all__ = ["place_batch"]


def place_batch(given: InputShapes, graph: Graph) -> InputShapes:
    """The inputs with the batch behind the time where the graph has it there.

    Args:
        given: The caller's shapes, as the graph was read with them; empty where the file says them.
        graph: The model, read for every batch size.

    Returns:
        The same inputs with the batch in its place; those of the graph by position where none were given and some have
        it elsewhere than in front.
    """
    tensors = [graph.tensors[index] for index in graph.inputs]
    if not any(map(_batch_axis, tensors)):
        return given
    if given.is_empty:
        return InputShapes(positional=tuple(map(_entry_of, tensors)))
    by_name = {tensor.name: tensor for tensor in tensors}
    positional = zip(given.positional, tensors, strict=False)
    return replace(
        given,
        positional=tuple(replace(entry, batch_axis=_batch_axis(tensor)) for entry, tensor in positional),
        named=None
        if given.named is None
        else {
            name: replace(entry, batch_axis=_batch_axis(by_name[name])) if name in by_name else entry
            for name, entry in given.named.items()
        },
    )


def _batch_axis(tensor: TensorSpec) -> int:
    front = tensor.shape[:2]
    return int(len(front) > 1 and front[1].per_sample == 1 and not front[0].per_sample)


def _entry_of(tensor: TensorSpec) -> InputEntry:
    axis = _batch_axis(tensor)
    is_batched = bool(tensor.shape) and tensor.shape[axis].per_sample == 1
    rest = (*tensor.shape[:axis], *tensor.shape[axis + 1 :]) if is_batched else tensor.shape
    return InputEntry(
        shape=tuple(dim.fixed for dim in rest), dtype=tensor.dtype, is_batched=is_batched, batch_axis=axis
    )
