"""PMGNS on NumPy, for predictions where PyTorch is not installed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["FloatArray", "forward"]

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

_BLOCKS = range(3)
# That of dippm.models.pooling.pool_nodes, which only PyTorch can import.
_SHARPNESS = 8.0


def forward(
    weights: Mapping[str, FloatArray],
    node_features: FloatArray,
    edge_index: IndexArray,
    graph_ids: IndexArray,
    static_features: FloatArray,
) -> FloatArray:
    """What :class:`dippm.models.pmgns.PMGNS` gives in evaluation mode, to float32's rounding.

    Args:
        weights: The network's state by PyTorch's names, such as ``"convolutions.0.lin_l.weight"``.
        node_features: Scaled node features of all graphs.
        edge_index: Source and target of each edge, rows of ``node_features``.
        graph_ids: Graph of each node.
        static_features: Scaled static features of each graph.

    Shapes:
        node_features: [N, 32]; edge_index: [2, E]; graph_ids: [N]; static_features: [G, 5]; result: [G, outputs].
    """
    values = node_features.astype(np.float32)
    source, target = edge_index
    neighbours = np.bincount(target, minlength=len(values)).clip(1)[:, None].astype(np.float32)
    for block in _BLOCKS:
        name = f"convolutions.{block}"
        mean = _sum_by(target, values[source], count=len(values)) / neighbours
        own = values @ weights[f"{name}.lin_r.weight"].T
        values = _relu(_linear(weights, f"{name}.lin_l", mean) + own)
    nodes = np.bincount(graph_ids, minlength=len(static_features)).clip(1)[:, None].astype(np.float32)
    mean = _sum_by(graph_ids, values, count=len(static_features)) / nodes
    sharp = np.float32(_SHARPNESS) * values
    top = _gather(np.maximum, graph_ids, sharp, count=len(static_features))
    total = np.exp(-top) + _sum_by(graph_ids, np.exp(sharp - top[graph_ids]), count=len(static_features))
    soft = (top + np.log(total)) / np.float32(_SHARPNESS)
    values = np.concatenate([mean, soft, static_features.astype(np.float32)], axis=1)
    for block in _BLOCKS:
        values = _relu(_linear(weights, f"head.layers.{block}", values))
    return _linear(weights, "head.output", values)


def _linear(weights: Mapping[str, FloatArray], name: str, values: FloatArray) -> FloatArray:
    result: FloatArray = values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def _relu(values: FloatArray) -> FloatArray:
    result: FloatArray = np.maximum(values, np.float32(0))
    return result


def _sum_by(group: IndexArray, rows: FloatArray, *, count: int) -> FloatArray:
    """Sum of the rows of each group, [k], [k, F] -> [count, F]; zeros for a group without rows."""
    return _gather(np.add, group, rows, count=count)


def _gather(operation: np.ufunc, group: IndexArray, rows: FloatArray, *, count: int) -> FloatArray:
    result = np.zeros((count, rows.shape[1]), dtype=np.float32)
    if len(group):
        order = np.argsort(group, kind="stable")
        ordered = group[order]
        # reduceat goes from each start to the next one.
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        result[ordered[starts]] = operation.reduceat(rows[order], starts, axis=0)
    return result
