"""Models that take the time in front of the batch, as PyTorch's recurrent layers and Transformers do by default.

Their inputs are [time, batch, ...]. With the batch in the first dimension such a model runs as well, on as many steps
as there are samples; only the layer tells, to which the first dimension of what it reads is the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from torch import nn

from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import RECURRENT_KINDS, Graph, Node, OpKind, TensorSpec

__all__ = [
    "TimeFirst", "attention_scopes", "describe_layer", "find_time_first", "name_time_first", "turn_inputs",
    "turnable", "warn_of_time_first",
]  # fmt: skip

_ATTENTION = "MultiheadAttention"
_RANK = 3
# What these read behind their first operand decides no order of dimensions: weights, states and masks.
_FIRST_ALONE = RECURRENT_KINDS | {OpKind.LINEAR, OpKind.MATMUL, OpKind.ATTENTION}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeFirst:
    """A layer to which the batch of a graph is the time.

    Args:
        layer: The layer in words, such as ``"the LSTM 'encoder.lstm'"``.
        inputs: Which of the graph's inputs, by position, it gets its time from; empty where none can be named.
        names: Their names.
    """

    layer: str
    inputs: tuple[int, ...]
    names: tuple[str, ...]


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
    layers = [node for node in graph.nodes if _is_layer(node, attention) and _is_batch_the_time(graph, node.inputs[0])]
    if not layers:
        return None
    found = sorted({position for node in layers for position in _inputs_before(graph, node.inputs[0])})
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


def describe_layer(kind: str, scope: str) -> str:
    """A layer in words, by its kind and the path of its module."""
    return f"the {kind} '{scope[:200]}'" if scope else f"its {kind}"


def warn_of_time_first(found: TimeFirst, *, is_turned: bool) -> str:
    """What is said of such a model.

    Args:
        found: The layer and its inputs.
        is_turned: Whether the batch was taken to be the second dimension of these inputs.
    """
    names = ", ".join(found.names)
    if is_turned:
        return (
            f"The model takes time first, as {found.layer} does without batch_first=True: the batch is taken to be the "
            f"second dimension of {names}. Where it is not, give the whole shape, with ':unbatched' behind it."
        )
    return (
        f"The model takes time first, as {found.layer} does without batch_first=True: what is called the batch here is "
        "its number of steps. Build that layer with batch_first=True, or turn its input in the model's forward."
    )


def _is_layer(node: Node, attention: Collection[str]) -> bool:
    """Whether a node is a recurrent layer with the time first, or the projection that attention begins with."""
    if node.kind in RECURRENT_KINDS:
        return not node.attributes.get("batch_first", False)
    return node.kind is OpKind.LINEAR and node.scope in attention


def _is_batch_the_time(graph: Graph, index: int) -> bool:
    """Whether the first of a sequence's dimensions is the graph's batch, and the second one is not."""
    shape = graph.tensors[index].shape
    if len(shape) != _RANK:
        return False
    if graph.fixed_batch is None:
        return shape[0].per_sample > 0 and not shape[1].per_sample
    # At one batch size sizes alone tell: an input has the same two in front.
    sizes = (shape[0].fixed, shape[1].fixed)
    return sizes[0] == graph.fixed_batch != sizes[1] and any(
        _front(graph.tensors[each]) == sizes for each in graph.inputs
    )


def _front(tensor: TensorSpec) -> tuple[int, ...]:
    return tuple(dim.fixed for dim in tensor.shape[:2])


def _inputs_before(graph: Graph, index: int) -> Iterable[int]:
    """Positions of the inputs that a tensor comes from and that begin with the batch."""
    makers = graph.producers()
    seen, waiting = set(), [index]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if makers[at] >= 0:
            node = graph.nodes[makers[at]]
            sources = node.inputs[:1] if node.kind in _FIRST_ALONE else node.inputs
            if node.kind is OpKind.EMBEDDING:
                sources = node.inputs[1:]
            waiting += [source for source in sources if source >= 0]
    for position, at in enumerate(graph.inputs):
        if at in seen and _begins_with_batch(graph, graph.tensors[at]):
            yield position


def _begins_with_batch(graph: Graph, tensor: TensorSpec) -> bool:
    if not tensor.shape:
        return False
    if graph.fixed_batch is None:
        return tensor.shape[0].per_sample > 0
    return tensor.shape[0].fixed == graph.fixed_batch


def _can_turn(entry: InputEntry) -> bool:
    return entry.is_batched and bool(entry.shape) and entry.rows == 1 and entry.values is None


def _described(node: Node) -> str:
    return describe_layer(node.kind.value.upper() if node.kind in RECURRENT_KINDS else _ATTENTION, node.scope)
