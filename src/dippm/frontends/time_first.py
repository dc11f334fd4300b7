"""Models that take the time in front of the batch, as PyTorch's recurrent layers and Transformers do by default.

Their inputs are [time, batch, ...]. With the batch in the first dimension such a model runs as well, on as many steps
as there are samples; only the layer tells, to which the first dimension of what it reads is the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dippm.graph import RECURRENT_KINDS, Graph, OpKind, TensorSpec

__all__ = ["TimeFirst", "describe_layer", "inputs_before", "is_batch_the_time", "warn_of_time_first"]

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


def is_batch_the_time(graph: Graph, index: int) -> bool:
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


def inputs_before(graph: Graph, index: int) -> Iterable[int]:
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
