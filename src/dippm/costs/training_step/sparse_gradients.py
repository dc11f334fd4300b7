"""Tables whose gradient holds the rows alone that were looked up, as ``nn.Embedding(sparse=True)`` of PyTorch makes it.

Sources: ``embedding_sparse_backward`` and ``_embedding_bag_sparse_backward`` of ATen, ``torch/optim/sgd.py``, PyTorch
2.13. Values are the gradient of what was looked up, row by row, and are not copied; a row that was looked up twice is
there twice. Plain SGD adds them to the rows of the table. Of the other optimizers here SGD with momentum alone takes
such gradients: its buffer has more rows after each step, until it is as large as the table, and is counted so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from dippm.costs.conditions import Optimizer
from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind, TensorRole

__all__ = ["SPARSE", "find_sparse_tables", "refuse_sparse", "warn_of_dense"]

SPARSE = "is_sparse"
"""Attribute of a lookup whose table has a sparse gradient."""

# Those that raise an error at such a gradient.
_REFUSING = frozenset(Optimizer) - {Optimizer.SGD, Optimizer.MOMENTUM, Optimizer.NONE}
_NAMED = 3


def _marked(graph: Graph) -> list[int]:
    """Trained tables that are looked up with a sparse gradient, in the order of their lookups."""
    return list(
        dict.fromkeys(
            node.inputs[0]
            for node in graph.nodes
            if node.kind is OpKind.EMBEDDING
            and node.attributes.get(SPARSE, False)
            and graph.tensors[node.inputs[0]].role is TensorRole.PARAMETER
        )
    )


def find_sparse_tables(graph: Graph, optimizer: Optimizer, *, accumulation: int = 1) -> frozenset[int]:
    """Tables whose gradient counts as the rows that were looked up.

    A table that anything else reads has the sum of its gradients, and one of several passes grows with each: those
    count as a whole.

    Args:
        graph: The forward pass.
        optimizer: What updates the weights.
        accumulation: Passes whose gradients are added up.
    """
    if accumulation > 1 or optimizer not in {Optimizer.SGD, Optimizer.NONE}:
        return frozenset()
    tensors = graph.tensors
    readers = Counter(
        tensors[index].alias_of if tensors[index].alias_of is not None else index
        for node in graph.nodes
        for index in node.inputs
        if index >= 0
    )
    return frozenset(index for index in _marked(graph) if readers[index] == 1)


def refuse_sparse(graph: Graph, optimizer: Optimizer, trained: Collection[int]) -> None:
    """Refuse an optimizer that PyTorch does not let update such tables.

    Args:
        graph: The forward pass.
        optimizer: What updates the weights.
        trained: The weights that it updates.

    Raises:
        UnsupportedError: ``optimizer.sparse``.
    """
    found = [index for index in _marked(graph) if index in trained]
    if not found or optimizer not in _REFUSING:
        return
    raise UnsupportedError(
        f"{optimizer.value} takes no sparse gradients. '{graph.source}' has tables with sparse=True: "
        f"{_names(graph, found)}.",
        code="optimizer.sparse",
        cure=f"Use {Optimizer.SGD.value}, or build these tables with sparse=False.",
    )


def warn_of_dense(graph: Graph, optimizer: Optimizer, *, accumulation: int = 1) -> tuple[str, ...]:
    """What is said of tables with a sparse gradient that counts as a whole.

    Args:
        graph: The forward pass.
        optimizer: What updates the weights.
        accumulation: Passes whose gradients are added up.
    """
    counted = find_sparse_tables(graph, optimizer, accumulation=accumulation)
    found = [index for index in _marked(graph) if index not in counted]
    if not found:
        return ()
    is_momentum = optimizer is Optimizer.MOMENTUM
    why = "which the buffer of momentum grows to step by step" if is_momentum else "as sums of them become"
    return (
        f"Sparse gradients of {_names(graph, found)} count as whole tables, {why}: time and memory of the first steps "
        "are less.",
    )


def _names(graph: Graph, tables: list[int]) -> str:
    names = ", ".join(graph.tensors[index].name for index in tables[:_NAMED])
    return names + (", ..." if len(tables) > _NAMED else "")
