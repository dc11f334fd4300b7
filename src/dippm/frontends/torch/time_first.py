"""Modules that take the time in front of the batch, and their inputs turned."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.time_first import TimeFirst, describe_layer, inputs_before, is_batch_the_time
from dippm.graph import RECURRENT_KINDS, Graph, Node, OpKind

__all__ = ["attention_scopes", "find_time_first", "name_time_first", "turn_inputs", "turnable"]

_ATTENTION = "MultiheadAttention"


def attention_scopes(module: nn.Module) -> frozenset[str]:
    """Paths of the modules of PyTorch's own attention, which take the time first unless they are told otherwise."""
    return frozenset(name for name, child in module.named_modules() if isinstance(child, nn.MultiheadAttention))


def name_time_first(module: nn.Module) -> str:
    """The first layer of a module that takes the time first, in words; ``""`` where it has none."""
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNBase | nn.MultiheadAttention) and not child.batch_first:
            return describe_layer(type(child).__name__, name)
    return ""


def turnable(given: InputShapes) -> tuple[tuple[int, ...], ...]:
    """Which inputs to turn where nothing tells: those with time and features, then also those with the time alone."""
    alone = tuple(position for position, entry in enumerate(given.entries) if _can_turn(entry))
    wide = tuple(position for position in alone if len(given.entries[position].shape) > 1)
    return tuple(dict.fromkeys(each for each in (wide, alone) if each))


def find_time_first(graph: Graph, attention: Collection[str] = ()) -> TimeFirst | None:
    """The first layers to which the batch is the time, and the inputs that they get it from.

    Args:
        graph: The graph as it was recorded, with the batch in the first dimension of its inputs.
        attention: Paths of modules of PyTorch's own attention.

    Returns:
        The first such layer with the inputs of all of them; None where there is none.
    """
    layers = [node for node in graph.nodes if _is_layer(node, attention) and is_batch_the_time(graph, node.inputs[0])]
    if not layers:
        return None
    found = sorted({position for node in layers for position in inputs_before(graph, node.inputs[0])})
    names = tuple(graph.tensors[graph.inputs[position]].name for position in found)
    return TimeFirst(layer=_described(layers[0]), inputs=tuple(found), names=names)


def turn_inputs(given: InputShapes, positions: Collection[int]) -> InputShapes | None:
    """The inputs with the batch in the second dimension of some; None where these have no dimension in front of it.

    Args:
        given: All inputs.
        positions: Which of them are turned.
    """
    entries = given.entries
    if not positions or not all(_can_turn(entries[position]) for position in positions):
        return None
    turned = [
        replace(entry, batch_axis=1) if position in positions else entry for position, entry in enumerate(entries)
    ]
    count = len(given.positional)
    return replace(
        given,
        positional=tuple(turned[:count]),
        named=None if given.named is None else dict(zip(given.named, turned[count:], strict=True)),
    )


def _is_layer(node: Node, attention: Collection[str]) -> bool:
    """Whether a node is a recurrent layer with the time first, or the projection that attention begins with."""
    if node.kind in RECURRENT_KINDS:
        return not node.attributes.get("batch_first", False)
    return node.kind is OpKind.LINEAR and node.scope in attention


def _can_turn(entry: InputEntry) -> bool:
    return entry.is_batched and bool(entry.shape) and entry.rows == 1 and entry.values is None


def _described(node: Node) -> str:
    return describe_layer(node.kind.value.upper() if node.kind in RECURRENT_KINDS else _ATTENTION, node.scope)
