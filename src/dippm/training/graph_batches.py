"""Batches of graphs from arrays: no object per graph anywhere in the loop of a training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from dippm.datasets.graph_samples import GraphSamples
from dippm.features.scaling import Scaling

__all__ = ["BatchedSamples", "EpochBatches", "GraphBatch", "GraphTensors", "gather_rows"]

IndexArray = npt.NDArray[np.int64]


class BatchedSamples(Protocol):
    """Scaled samples on a device; indexed by a list of samples they give what a network is called with, and targets."""

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, chosen: IndexArray | list[int]) -> tuple[Tensor, ...]:
        """The arguments of a network in its order, and as the last one the scaled targets, NaN where there is none."""
        ...


class GraphBatch(NamedTuple):
    """Some graphs as one graph of separate parts.

    Args:
        node_features: Scaled node features.
        edge_index: Edges as (source, target), counted over the batch.
        graph_ids: Graph of each node, ascending.
        static_features: Scaled static features.
        targets: Scaled targets, NaN where there is none.

    Shapes:
        node_features: [N, 32]; edge_index: [2, E]; graph_ids: [N]; static_features: [G, 5]; targets: [G, 3].
    """

    node_features: Tensor
    edge_index: Tensor
    graph_ids: Tensor
    static_features: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphTensors(Dataset[GraphBatch]):
    """Scaled samples; indexed by a list of samples it gives their batch.

    Args:
        node_features: Features of all operators of all samples.
        edge_index: Edges, counted within their sample.
        node_offsets: Where the nodes of each sample begin, and the end.
        edge_offsets: Where its edges begin, and the end.
        static_features: Static features.
        targets: Targets.
    """

    node_features: Tensor
    edge_index: Tensor
    node_offsets: Tensor
    edge_offsets: Tensor
    static_features: Tensor
    targets: Tensor

    @classmethod
    def of(cls, samples: GraphSamples, scaling: Scaling) -> GraphTensors:
        """Scale the samples."""
        return cls(
            node_features=torch.from_numpy(scaling.scale_nodes(samples.node_features)),
            edge_index=torch.from_numpy(samples.edge_index.astype(np.int64)),
            node_offsets=torch.from_numpy(samples.node_offsets),
            edge_offsets=torch.from_numpy(samples.edge_offsets),
            static_features=torch.from_numpy(scaling.scale_statics(samples.static_features)),
            targets=torch.from_numpy(scaling.scale_targets(samples.targets)),
        )

    def to(self, device: torch.device | str) -> GraphTensors:
        """The same on another device."""
        return GraphTensors(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, chosen: IndexArray | list[int]) -> GraphBatch:
        index = torch.as_tensor(chosen, dtype=torch.int64, device=self.targets.device)
        graph_ids, nodes, first_node = gather_rows(self.node_offsets, index)
        graph_of_edge, edges, _ = gather_rows(self.edge_offsets, index)
        return GraphBatch(
            node_features=self.node_features[nodes],
            edge_index=self.edge_index[:, edges] + first_node[graph_of_edge],
            graph_ids=graph_ids,
            static_features=self.static_features[index],
            targets=self.targets[index],
        )


class EpochBatches(Sampler[list[int]]):
    """Batches of sample numbers, in an order that the seed and the epoch alone decide.

    So a training that is resumed after some epochs sees what it would have seen without the break.

    Args:
        chosen: Samples to draw.
        batch_size: Samples in a batch; the last one may have fewer.
        seed: Seed of the order; None keeps it as it is given.
        rank: Which of several processes this one is.
        processes: How many share an epoch. All get the same number of batches.
    """

    def __init__(
        self, chosen: IndexArray, *, batch_size: int, seed: int | None, rank: int = 0, processes: int = 1
    ) -> None:
        self._chosen = chosen
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._processes = processes
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return -(-len(self._chosen) // (self._batch_size * self._processes))

    def __iter__(self) -> Iterator[list[int]]:
        order = self._chosen
        if self._seed is not None:
            order = np.random.default_rng((self._seed, self._epoch)).permutation(order)
        starts = range(0, len(order), self._batch_size)
        batches = [order[start : start + self._batch_size].tolist() for start in starts]
        # Every process must take part in every step: the first batches, over again if need be, fill up the last round.
        batches = (batches * self._processes)[: len(self) * self._processes]
        yield from batches[self._rank :: self._processes]


def gather_rows(offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the chosen samples, one sample after the other.

    Args:
        offsets: Where the rows of each sample begin, and the end.
        index: The chosen samples.

    Returns:
        For each row the place of its sample in the batch, and its own place in the arrays; for each sample the place
        of its first row in the batch.
    """
    start = offsets[index]
    count = offsets[index + 1] - start
    first = torch.cumsum(count, 0) - count
    total = int(count.sum())
    owner = torch.repeat_interleave(torch.arange(len(index), device=index.device), count, output_size=total)
    place = torch.arange(total, device=index.device) + (start - first)[owner]
    return owner, place, first
