"""Batches of training steps from arrays, for DNNPerf's networks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from dippm.datasets.training_samples import TrainingSamples
from dippm.features.dnnperf import COST_COLUMNS, EDGE_COLUMNS, NODE_COLUMNS, OPERATORS
from dippm.features.dnnperf_scaling import DnnperfScaling, Scaler
from dippm.training.graph_batches import gather_rows

__all__ = ["DnnperfBatch", "DnnperfTensors", "prepare_tensors"]

IndexArray = npt.NDArray[np.int64]


class DnnperfBatch(NamedTuple):
    """Some training steps as one graph of separate parts.

    Args:
        node_features: One-hot operator and scaled node values.
        edge_index: Edges as (source, target), counted over the batch.
        graph_ids: Graph of each node, ascending.
        edge_features: Scaled edge values.
        graph_features: Scaled sums over each graph.
        targets: Scaled targets, NaN where there is none.

    Shapes:
        node_features: [N, F]; edge_index: [2, E]; graph_ids: [N]; edge_features: [E, W]; graph_features: [G, S];
        targets: [G, 3].
    """

    node_features: Tensor
    edge_index: Tensor
    graph_ids: Tensor
    edge_features: Tensor
    graph_features: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DnnperfTensors(Dataset[DnnperfBatch]):
    """Scaled samples; indexed by a list of samples it gives their batch.

    Args:
        operators: Operator of all nodes of all samples.
        node_values: Their scaled values.
        edge_index: Edges, counted within their sample.
        edge_values: Their scaled values.
        node_offsets: Where the nodes of each sample begin, and the end.
        edge_offsets: Where its edges begin, and the end.
        graph_features: Scaled sums.
        targets: Scaled targets.
    """

    operators: Tensor
    node_values: Tensor
    edge_index: Tensor
    edge_values: Tensor
    node_offsets: Tensor
    edge_offsets: Tensor
    graph_features: Tensor
    targets: Tensor

    def to(self, device: torch.device | str) -> DnnperfTensors:
        """The same on another device."""
        return DnnperfTensors(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, chosen: IndexArray | list[int]) -> DnnperfBatch:
        index = torch.as_tensor(chosen, dtype=torch.int64, device=self.targets.device)
        graph_ids, nodes, first_node = gather_rows(self.node_offsets, index)
        graph_of_edge, edges, _ = gather_rows(self.edge_offsets, index)
        one_hot = functional.one_hot(self.operators[nodes].long(), len(OPERATORS)).float()
        return DnnperfBatch(
            node_features=torch.cat([one_hot, self.node_values[nodes]], dim=1),
            edge_index=self.edge_index[:, edges].long() + first_node[graph_of_edge],
            graph_ids=graph_ids,
            edge_features=self.edge_values[edges],
            graph_features=self.graph_features[index],
            targets=self.targets[index],
        )

    @property
    def widths(self) -> dict[str, int]:
        """Widths of what a network is given."""
        return {
            "node_features": len(OPERATORS) + self.node_values.shape[1],
            "edge_features": self.edge_values.shape[1],
            "graph_features": self.graph_features.shape[1],
        }


def prepare_tensors(
    samples: TrainingSamples, training: IndexArray, *, scaler: Scaler, hides_costs: bool
) -> tuple[DnnperfTensors, DnnperfScaling]:
    """Scale samples by what their training part tells.

    Args:
        samples: All samples.
        training: Those to learn the scaling from.
        scaler: How columns are scaled.
        hides_costs: Whether sizes of tensors, FLOPs and temporary memory are left out.
    """
    nodes, edges = samples.node_values, samples.edge_values
    if hides_costs:
        nodes = nodes[:, [name not in COST_COLUMNS for name in NODE_COLUMNS]]
        edges = edges[:, [name not in COST_COLUMNS for name in EDGE_COLUMNS]]
    sums = _sum_nodes(samples, nodes)
    scaling = DnnperfScaling.fit(
        nodes=nodes[_rows_of(samples.node_offsets, training)],
        edges=edges[_rows_of(samples.edge_offsets, training)],
        sums=sums[training],
        targets=samples.targets[training],
        scaler=scaler,
    )
    tensors = DnnperfTensors(
        operators=torch.from_numpy(samples.operators),
        node_values=torch.from_numpy(scaling.nodes(nodes)),
        edge_index=torch.from_numpy(samples.edge_index),
        edge_values=torch.from_numpy(scaling.edges(edges)),
        node_offsets=torch.from_numpy(samples.node_offsets),
        edge_offsets=torch.from_numpy(samples.edge_offsets),
        graph_features=torch.from_numpy(scaling.sums(sums)),
        targets=torch.from_numpy(scaling.scale_targets(samples.targets)),
    )
    return tensors, scaling


def _sum_nodes(samples: TrainingSamples, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Logarithms of how often each operator occurs in a graph, and of the sum of each value over its nodes, [S, F]."""
    owner = np.repeat(np.arange(len(samples)), samples.node_counts)
    counts = np.zeros((len(samples), len(OPERATORS)))
    np.add.at(counts, (owner, samples.operators), 1.0)
    sums = np.stack(
        [
            np.bincount(owner, weights=np.expm1(column.astype(np.float64)), minlength=len(samples))
            for column in values.T
        ],
        axis=1,
    )
    result: npt.NDArray[np.float64] = np.log1p(np.concatenate([counts, sums], axis=1))
    return result


def _rows_of(offsets: IndexArray, chosen: IndexArray) -> npt.NDArray[np.bool_]:
    """Mask of the rows of some samples."""
    is_chosen = np.zeros(len(offsets) - 1, dtype=np.bool_)
    is_chosen[chosen] = True
    return np.repeat(is_chosen, np.diff(offsets))
