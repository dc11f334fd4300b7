"""Two readings of one model at two batch sizes become one graph with the batch left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dippm.errors import UnsupportedError
from dippm.graph.dim import Dim
from dippm.graph.graph import Attribute, Graph, Node, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["batch_dependent", "check_batch", "unify_batches"]

# Their attributes repeat what the tensors' shapes say, sizes among them.
_SHAPED_BY_TENSORS = frozenset({OpKind.VIEW, OpKind.COPY, OpKind.FILL, OpKind.RANDOM})


def unify_batches(first: Graph, second: Graph, *, batches: tuple[int, int]) -> Graph:
    """Fit every dimension of two concrete graphs to ``a * N + b``.

    Args:
        first: The model read at ``batches[0]``, all dimensions fixed.
        second: The same model read at ``batches[1]``.
        batches: The two batch sizes, different.

    Returns:
        The first graph with its dimensions made symbolic.

    Raises:
        UnsupportedError: ``graph.batch_dependent`` where the two readings differ in more than sizes, or a dimension
            does not grow in proportion to the batch.
    """
    ran, ran_again = _all_nodes(first), _all_nodes(second)
    if len(ran) != len(ran_again):
        raise batch_dependent(
            f"it runs {len(ran)} operators at batch {batches[0]} and {len(ran_again)} at {batches[1]}"
        )
    if len(first.tensors) != len(second.tensors):
        raise batch_dependent(
            f"it makes {len(first.tensors)} tensors at batch {batches[0]} and {len(second.tensors)} at {batches[1]}"
        )
    for position, (a, b) in enumerate(zip(ran, ran_again, strict=True)):
        if a.kind is not b.kind or a.inputs != b.inputs or a.outputs != b.outputs:
            raise batch_dependent(f"operator {position} is {a.source_op} at one batch and {b.source_op} at another")
        if a.kind not in _SHAPED_BY_TENSORS and a.attributes != b.attributes:
            raise batch_dependent(f"an attribute of operator {position} ({a.source_op}) depends on the batch")
    if not _have_like_gradients(first, second):
        raise batch_dependent("gradients of its own are others")
    tensors = tuple(_unify_tensor(a, b, batches=batches) for a, b in zip(first.tensors, second.tensors, strict=True))
    return replace(first, tensors=tensors, fixed_batch=None, fixed_batch_reason="")


def check_batch(graph: Graph, concrete: Graph, batch: int) -> Graph:
    """Prove that a graph with its batch left open is the model at one more batch, and note that in it.

    Two readings always lie on some straight line, whatever the sizes do: ``min(N, 4)`` is N at 2 and at 3, and
    ``N // 4`` is 0 at both. A third reading at a batch far larger tells.

    Args:
        graph: What :func:`unify_batches` made of two other batches.
        concrete: The model read at ``batch``.
        batch: The batch size of ``concrete``.

    Raises:
        UnsupportedError: ``graph.batch_dependent`` where the two differ at that batch.
    """
    ran, ran_again = _all_nodes(graph), _all_nodes(concrete)
    if len(ran) != len(ran_again) or len(graph.tensors) != len(concrete.tensors):
        raise batch_dependent(f"it runs {len(ran_again)} operators at batch {batch} and {len(ran)} at smaller ones")
    for position, (a, b) in enumerate(zip(ran, ran_again, strict=True)):
        if a.kind is not b.kind or a.inputs != b.inputs or a.outputs != b.outputs:
            raise batch_dependent(
                f"operator {position} is {b.source_op} at batch {batch} and {a.source_op} at smaller ones"
            )
        if a.kind not in _SHAPED_BY_TENSORS and _without_scalar(a) != _without_scalar(b):
            raise batch_dependent(f"an attribute of operator {position} ({a.source_op}) depends on the batch")
    if graph.inputs != concrete.inputs or graph.outputs != concrete.outputs:
        raise batch_dependent("its inputs or outputs are others")
    if not _have_like_gradients(graph, concrete):
        raise batch_dependent("gradients of its own are others")
    for mixed, fixed in zip(graph.tensors, concrete.tensors, strict=True):
        _check_tensor(mixed, fixed, batch=batch)
    return replace(graph, proved_batch=batch)


def _all_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph, and those of the gradients that the model defines itself."""
    return (*graph.nodes, *(node for gradient in graph.own_gradients for node in gradient.nodes))


def _have_like_gradients(first: Graph, second: Graph) -> bool:
    """Whether gradients that the model defines itself have the same numbers of nodes, and name the same tensors."""
    return [(len(one.nodes), one.name, one.tensors) for one in first.own_gradients] == [
        (len(one.nodes), one.name, one.tensors) for one in second.own_gradients
    ]


def _without_scalar(node: Node) -> Mapping[str, Attribute]:
    """The number in code such as ``x / len(x)`` may follow the batch; it costs the same whatever it is."""
    if "scalar" not in node.attributes:
        return node.attributes
    return {name: value for name, value in node.attributes.items() if name != "scalar"}


def _check_tensor(mixed: TensorSpec, fixed: TensorSpec, *, batch: int) -> None:
    if mixed.alias_of != fixed.alias_of:
        raise batch_dependent(f"tensor '{mixed.name}' changes its storage with the batch")
    if mixed.shape != fixed.shape:
        expected = [dim.at(batch) for dim in mixed.shape]
        actual = [dim.at(batch) for dim in fixed.shape]
        if expected != actual:
            raise batch_dependent(f"'{mixed.name}' is of shape {actual} at batch {batch}, not {expected}")
    if mixed.storage_bytes_fixed is not None and fixed.storage_bytes_fixed is not None:
        stated = (mixed.storage_bytes_per_sample or 0) * batch + mixed.storage_bytes_fixed
        if stated != fixed.storage_bytes_fixed:
            raise batch_dependent(
                f"'{mixed.name}' takes {fixed.storage_bytes_fixed} bytes at batch {batch}, not {stated}"
            )


def _unify_tensor(first: TensorSpec, second: TensorSpec, *, batches: tuple[int, int]) -> TensorSpec:
    if len(first.shape) != len(second.shape) or first.alias_of != second.alias_of:
        raise batch_dependent(f"tensor '{first.name}' changes its rank or storage with the batch")
    if first.shape == second.shape and first.storage_bytes_fixed == second.storage_bytes_fixed:
        return first
    shape = tuple(
        _fit(a.fixed, b.fixed, name=first.name, batches=batches) for a, b in zip(first.shape, second.shape, strict=True)
    )
    if first.storage_bytes_fixed is None or second.storage_bytes_fixed is None:
        return replace(first, shape=shape)
    storage = _fit(first.storage_bytes_fixed, second.storage_bytes_fixed, name=first.name, batches=batches)
    return replace(first, shape=shape, storage_bytes_per_sample=storage.per_sample, storage_bytes_fixed=storage.fixed)


def _fit(first: int, second: int, *, name: str, batches: tuple[int, int]) -> Dim:
    growth, remainder = divmod(second - first, batches[1] - batches[0])
    if remainder or growth < 0:
        raise batch_dependent(f"a dimension of '{name}' is {first} at batch {batches[0]} and {second} at {batches[1]}")
    return Dim(growth, first - growth * batches[0])


def batch_dependent(reason: str) -> UnsupportedError:
    """The error for a model that cannot be read for every batch.

    Args:
        reason: What does not follow the batch; the middle of a sentence.
    """
    return UnsupportedError(
        f"The model does not grow in proportion to its batch: {reason}.",
        code="graph.batch_dependent",
        cure="Give the one batch size that you want; it is then read for that batch alone.",
    )
