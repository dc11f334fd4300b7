"""Batches of graphs from arrays: no object per graph anywhere in the loop of a training.

A row of a batch is a class of operators that the networks cannot tell apart, see
:mod:`dippm.training.alike_operators`: a third to a seventh of the operators that its graphs have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from dippm.datasets.graph_samples import GraphSamples
from dippm.features.scaling import Scaling
from dippm.models.message_rounds import ROUNDS, Members, MessageRound
from dippm.training.alike_operators import find_alike

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

    def __getitem__(self, chosen: IndexArray | list[int]) -> tuple[Any, ...]:
        """The arguments of a network in its order, and as the last one the scaled targets, NaN where there is none."""
        ...


class GraphBatch(NamedTuple):
    """Some graphs, their alike operators in one row.

    Args:
        node_features: Scaled node features of the rows before any message.
        rounds: Rows after each round of messages.
        members: Rows after the last one that make up each graph.
        static_features: Scaled static features.
        targets: Scaled targets, NaN where there is none.

    Shapes:
        node_features: [N, 32]; static_features: [G, 5]; targets: [G, 3].
    """

    node_features: Tensor
    rounds: tuple[MessageRound, ...]
    members: Members
    static_features: Tensor
    targets: Tensor


class _Classes(NamedTuple):
    """:class:`dippm.training.alike_operators.ClassRound` as tensors."""

    own: Tensor
    producer_offsets: Tensor
    producers: Tensor
    degrees: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphTensors(Dataset[GraphBatch]):
    """Scaled samples; indexed by a list of samples it gives their batch.

    Args:
        node_features: Features of each class of operators before any message.
        rounds: Classes after each round.
        members: The last classes of all samples, each once in a sample.
        counts: How many operators of the sample are in the class, float32.
        member_offsets: Where the members of each sample begin, and the end.
        static_features: Static features.
        targets: Targets.
    """

    node_features: Tensor
    rounds: tuple[_Classes, ...]
    members: Tensor
    counts: Tensor
    member_offsets: Tensor
    static_features: Tensor
    targets: Tensor

    @classmethod
    def of(cls, samples: GraphSamples, scaling: Scaling) -> GraphTensors:
        """Scale the samples, and find the operators that are alike."""
        first_nodes = np.repeat(samples.node_offsets[:-1], np.diff(samples.edge_offsets))
        alike = find_alike(samples.node_features, samples.edge_index.astype(np.int64) + first_nodes, rounds=ROUNDS)
        owner = np.repeat(np.arange(len(samples)), samples.node_counts)
        last = int(alike.classes.max(initial=0)) + 1
        members, counts = np.unique(owner * last + alike.classes, return_counts=True)
        ends = np.searchsorted(members, last * np.arange(len(samples) + 1))
        return cls(
            node_features=torch.from_numpy(scaling.scale_nodes(samples.node_features[alike.first])),
            rounds=tuple(
                _Classes(*(torch.from_numpy(getattr(found, name)) for name in _Classes._fields))
                for found in alike.rounds
            ),
            members=torch.from_numpy(members % last),
            counts=torch.from_numpy(counts.astype(np.float32)),
            member_offsets=torch.from_numpy(ends),
            static_features=torch.from_numpy(scaling.scale_statics(samples.static_features)),
            targets=torch.from_numpy(scaling.scale_targets(samples.targets)),
        )

    def to(self, device: torch.device | str) -> GraphTensors:
        """The same on another device."""
        moved: dict[str, Any] = {
            field.name: getattr(self, field.name).to(device) for field in fields(self) if field.name != "rounds"
        }
        rounds = tuple(_Classes(*(part.to(device) for part in classes)) for classes in self.rounds)
        return GraphTensors(rounds=rounds, **moved)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, chosen: IndexArray | list[int]) -> GraphBatch:
        index = torch.as_tensor(chosen, dtype=torch.int64, device=self.targets.device)
        graph_ids, places, _ = gather_rows(self.member_offsets, index)
        kept, (rows,) = _keep([self.members[places]], count=len(self.rounds[-1].own))
        rounds = []
        for classes in reversed(self.rounds):
            listeners, heard, _ = gather_rows(classes.producer_offsets, kept)
            kept, (own, producers) = _keep([classes.own[kept], classes.producers[heard]], count=len(classes.degrees))
            rounds.append(MessageRound(own, torch.stack([producers, listeners]), classes.degrees[kept]))
        return GraphBatch(
            node_features=self.node_features[kept],
            rounds=tuple(reversed(rounds)),
            members=Members(graph_ids, rows, self.counts[places]),
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


def _keep(used: Sequence[Tensor], *, count: int) -> tuple[Tensor, list[Tensor]]:
    """Which of ``count`` classes are used, ascending, and the uses by their place among those."""
    device = used[0].device
    is_used = torch.zeros(count, dtype=torch.bool, device=device)
    for classes in used:
        is_used[classes] = True
    kept = is_used.nonzero()[:, 0]
    place = torch.empty(count, dtype=torch.int64, device=device)
    place[kept] = torch.arange(len(kept), device=device)
    return kept, [place[classes] for classes in used]
