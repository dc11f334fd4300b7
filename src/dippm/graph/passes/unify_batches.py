"""Two readings of one model at two batch sizes become one graph with the batch left open."""

from __future__ import annotations

from dataclasses import replace

from dippm.errors import UnsupportedError
from dippm.graph.dim import Dim
from dippm.graph.graph import Graph, TensorSpec
from dippm.graph.op_kind import OpKind

__all__ = ["unify_batches"]

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
    if len(first.nodes) != len(second.nodes) or len(first.tensors) != len(second.tensors):
        raise _batch_dependent(
            f"it runs {len(first.nodes)} operators at batch {batches[0]} and {len(second.nodes)} at {batches[1]}"
        )
    for position, (a, b) in enumerate(zip(first.nodes, second.nodes, strict=True)):
        if a.kind is not b.kind or a.inputs != b.inputs or a.outputs != b.outputs:
            raise _batch_dependent(f"operator {position} is {a.source_op} at one batch and {b.source_op} at another")
        if a.kind not in _SHAPED_BY_TENSORS and a.attributes != b.attributes:
            raise _batch_dependent(f"an attribute of operator {position} ({a.source_op}) depends on the batch")
    tensors = tuple(_unify_tensor(a, b, batches=batches) for a, b in zip(first.tensors, second.tensors, strict=True))
    return replace(first, tensors=tensors, fixed_batch=None, fixed_batch_reason="")


def _unify_tensor(first: TensorSpec, second: TensorSpec, *, batches: tuple[int, int]) -> TensorSpec:
    if len(first.shape) != len(second.shape) or first.alias_of != second.alias_of:
        raise _batch_dependent(f"tensor '{first.name}' changes its rank or storage with the batch")
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
        raise _batch_dependent(f"a dimension of '{name}' is {first} at batch {batches[0]} and {second} at {batches[1]}")
    return Dim(growth, first - growth * batches[0])


def _batch_dependent(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"The model does not grow in proportion to its batch: {reason}.",
        code="graph.batch_dependent",
        cure="Give the one batch size that you want; it is then read for that batch alone.",
    )
