"""What a program asks of its input that shapes do not tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from dippm.graph import DType, Node, OpKind, TensorRole, TensorSpec

__all__ = [
    "COMPARISONS",
    "DRAWN_MEANS",
    "FINITENESS",
    "SEARCHES",
    "DataDependentError",
    "FloatIndicesError",
    "buffers_behind",
    "lengths_behind",
    "masks_behind",
]


DRAWN_MEANS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "rand": lambda _: 0.5,
    "uniform": lambda bounds: (bounds["from"] + bounds["to"]) / 2,
    "randint": lambda bounds: (bounds.get("low", 0) + bounds["high"] - 1) // 2,
}
"""What the operators that draw a number draw in the mean, by their arguments."""

FINITENESS: Mapping[Any, bool] = {
    torch.ops.aten.isfinite.default: True,
    torch.ops.aten.isinf.default: False,
    torch.ops.aten.isnan.default: False,
}
"""The questions whether numbers have overflowed, and what they answer of those that have not."""

COMPARISONS: Mapping[Any, tuple[Any, bool]] = {
    torch.ops.aten.eq.Scalar: (torch.ops.aten.any.default, False),
    torch.ops.aten.ne.Scalar: (torch.ops.aten.all.default, True),
    torch.ops.aten.eq.Tensor: (torch.ops.aten.all.default, True),
}
"""What compares elements, what asks about all of them then, and what it answers: a number is nowhere, or all agree."""

SEARCHES = frozenset(search for search, _ in COMPARISONS.values())
"""What asks about all elements at once."""

# What has values that nobody knows; an activation that comes of nothing else is a random one.
_UNKNOWN = frozenset({TensorRole.INPUT, TensorRole.PARAMETER, TensorRole.ACTIVATION})
_INTEGERS = frozenset({DType.INT32, DType.INT64})


class DataDependentError(Exception):
    """The program asks for a value that only the model's real input would give.

    Args:
        asked: The operator or function that asks.
        tensors: Indices of the tensors that it asks.
    """

    def __init__(self, asked: str, tensors: tuple[int, ...] = ()) -> None:
        super().__init__(asked)
        self.tensors = tensors


class FloatIndicesError(Exception):
    """An embedding was asked for rows by numbers that are no integers.

    Args:
        tensor: Index of the tensor that owns the storage of the indices.
    """

    def __init__(self, tensor: int) -> None:
        super().__init__("an embedding takes integer indices and got floating-point numbers")
        self.tensor = tensor


def masks_behind(asked: Iterable[int], nodes: Sequence[Node], tensors: Sequence[TensorSpec]) -> frozenset[int]:
    """The masks among a model's inputs that alone decide what some tensors hold.

    A mask is an input of booleans, or one that the model makes booleans of, by itself or with others beside it.

    Args:
        asked: Indices of the tensors.
        nodes: What ran so far.
        tensors: All tensors so far.

    Returns:
        Their indices; none where something else that is not known decides as well.
    """
    makers = _makers(nodes)
    to_bool = [
        node.inputs[0] for node in nodes if node.kind is OpKind.CAST and tensors[node.outputs[0]].dtype is DType.BOOL
    ]
    for index in to_bool:
        maker = makers.get(index)
        if maker is not None and maker.kind is OpKind.CONCAT:
            to_bool += maker.inputs
    owners = ((index, tensors[index].alias_of) for index in to_bool)
    masks = {index if owner is None else owner for index, owner in owners}
    origins = _origins(asked, nodes)
    inputs = {index for index in origins if tensors[index].role is TensorRole.INPUT}
    found = {index for index in inputs if tensors[index].dtype is DType.BOOL or index in masks}
    if any(tensors[index].role in _UNKNOWN for index in origins - found):
        return frozenset()
    return frozenset(found)


def lengths_behind(asked: Iterable[int], nodes: Sequence[Node], tensors: Sequence[TensorSpec]) -> frozenset[int]:
    """The lengths among a model's inputs, an integer for each sample, by the largest of which some tensors are made.

    Args:
        asked: Indices of the tensors.
        nodes: What ran so far.
        tensors: All tensors so far.

    Returns:
        Their indices; none where something else that is not known decides as well.
    """
    asked = tuple(asked)
    unknown = {index for index in _origins(asked, nodes) if tensors[index].role in _UNKNOWN}
    are_lengths = all(
        tensors[index].role is TensorRole.INPUT and tensors[index].dtype in _INTEGERS and len(tensors[index].shape) == 1
        for index in unknown
    )
    largest = [
        node.outputs[0] for node in nodes if node.kind is OpKind.REDUCE and node.attributes.get("function") == "max"
    ]
    is_largest = bool(_behind(asked, nodes).intersection(largest))
    return frozenset(unknown) if are_lengths and is_largest else frozenset()


def buffers_behind(asked: Iterable[int], nodes: Sequence[Node], tensors: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Names of the buffers that alone decide what some tensors hold; none where anything else does as well.

    Args:
        asked: Indices of the tensors.
        nodes: What ran so far.
        tensors: All tensors so far.
    """
    origins = [tensors[index] for index in sorted(_origins(asked, nodes))]
    are_buffers = all(tensor.role is TensorRole.BUFFER for tensor in origins)
    return tuple(tensor.name for tensor in origins) if are_buffers else ()


def _origins(asked: Iterable[int], nodes: Sequence[Node]) -> set[int]:
    """The tensors that others are made of in the end: what was there before the model ran, and what chance makes."""
    makers = _makers(nodes)
    return {index for index in _behind(asked, nodes) if not _is_made(makers.get(index))}


def _behind(asked: Iterable[int], nodes: Sequence[Node]) -> set[int]:
    """All tensors that others are made of, themselves among them."""
    makers = _makers(nodes)
    waiting = list(asked)
    seen = set(waiting)
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is not None and _is_made(maker):
            new = {source for source in maker.inputs if source >= 0} - seen
            seen |= new
            waiting += new
    return seen


def _makers(nodes: Sequence[Node]) -> dict[int, Node]:
    return {output: node for node in nodes for output in node.outputs}


def _is_made(maker: Node | None) -> bool:
    return maker is not None and maker.kind is not OpKind.RANDOM
