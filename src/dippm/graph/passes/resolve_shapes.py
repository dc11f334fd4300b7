"""A graph at one batch size."""

from __future__ import annotations

from dataclasses import replace

from dippm.errors import UsageError
from dippm.graph.dim import Dim
from dippm.graph.graph import Graph, TensorSpec

__all__ = ["resolve_shapes"]


def resolve_shapes(graph: Graph, batch: int) -> Graph:
    """Put a number in the place of the batch.

    Args:
        graph: A graph with the batch left open, or fixed at the same number.
        batch: The batch size, at least 1.

    Raises:
        UsageError: ``batch.invalid`` for a batch below 1, ``batch.fixed`` where the graph holds for another one.
    """
    if batch < 1:
        raise UsageError(
            f"The batch must be at least 1. Got {batch}.", code="batch.invalid", cure="Give a positive number."
        )
    if graph.fixed_batch not in (None, batch):
        raise UsageError(
            f"'{graph.source}' holds for batch {graph.fixed_batch} alone. Got {batch}. {graph.fixed_batch_reason}",
            code="batch.fixed",
            cure=f"Use batch {graph.fixed_batch}, or export the model with an open batch.",
        )
    return replace(graph, tensors=tuple(_resolve(tensor, batch) for tensor in graph.tensors), fixed_batch=batch)


def _resolve(tensor: TensorSpec, batch: int) -> TensorSpec:
    shape = tuple(Dim(0, dim.at(batch)) for dim in tensor.shape)
    if tensor.storage_bytes_per_sample is None or tensor.storage_bytes_fixed is None:
        return replace(tensor, shape=shape) if shape != tensor.shape else tensor
    stored = tensor.storage_bytes_per_sample * batch + tensor.storage_bytes_fixed
    return replace(tensor, shape=shape, storage_bytes_per_sample=0, storage_bytes_fixed=stored)
