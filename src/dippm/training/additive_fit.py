"""Fit the additive network: several members, each on the same samples from another start."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dippm.errors import UsageError
from dippm.features.physical import LAUNCH_MS
from dippm.models.additive import AdditiveNetwork, MessageTensors
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.convolution_fit import FittedConvolutions, fit_convolutions
from dippm.training.feature_scale import FeatureScale
from dippm.training.running_mean import follow
from dippm.training.traced_operators import TracedOperators

__all__ = ["AdditiveSettings", "FittedAdditive", "SampleTensors", "TracedBatch", "fit_additive"]

_LOG = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

_GRADIENT_NORM = 1.0
_WARM_UP = 0.2
_PREDICTION_BATCH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class AdditiveSettings:
    """Settings of the training.

    Args:
        members: Networks whose times are averaged.
        epochs: Passes over the samples.
        batch_size: Samples in a step.
        rate: Largest learning rate of the one-cycle schedule.
        decay: Weight decay of AdamW.
        width: Width of the embeddings.
        dropout: Share of values dropped.
        deaf: Share of operators that hear nothing of others in a step, so that what is asked for alone is known too.
        average: Memory of the running mean of the weights, which is what is kept.
        operator_weight: Weight of the errors of traced operators beside that of the whole, where there are traces.
        seed: Seed of the first member.
        passed_over: Columns of the node features that networks are not to see.
        ramps: Ramps that each size is given as besides, see :mod:`dippm.features.physical.ramps`.
        convolution_epochs: Passes over the convolutions of a network of their own, which the others correct; 0 for no
            such network.
    """

    members: int = 2
    epochs: int = 20
    batch_size: int = 8
    rate: float = 3e-3
    decay: float = 1e-2
    width: int = 64
    dropout: float = 0.0
    deaf: float = 0.0
    average: float = 0.995
    operator_weight: float = 3.0
    seed: int = 0
    passed_over: tuple[str, ...] = ()
    ramps: int = 0
    convolution_epochs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TracedBatch:
    """Traced times of some samples.

    Args:
        operator: Class of an operator, counted through the batch, for each member of each group.
        group: The group, likewise.
        log_ms: Logarithm of the measured time of each group.
        share: Share of its sample's time.
    """

    operator: Tensor
    group: Tensor
    log_ms: Tensor
    share: Tensor

    @classmethod
    def of(cls, traced: TracedOperators, chosen: IndexArray, starts: IndexArray) -> TracedBatch:
        """Join the groups of some samples, whose classes begin at ``starts``."""
        members = [slice(int(traced.member_offsets[i]), int(traced.member_offsets[i + 1])) for i in chosen]
        groups = [slice(int(traced.group_offsets[i]), int(traced.group_offsets[i + 1])) for i in chosen]
        first = np.concatenate([[0], np.cumsum([own.stop - own.start for own in groups])[:-1]])
        operator = [traced.operator[own] + start for own, start in zip(members, starts.tolist(), strict=True)]
        group = [traced.group[own] + start for own, start in zip(members, first.tolist(), strict=True)]
        return cls(
            operator=torch.from_numpy(np.concatenate(operator).astype(np.int64)),
            group=torch.from_numpy(np.concatenate(group).astype(np.int64)),
            log_ms=torch.from_numpy(np.concatenate([traced.log_ms[own] for own in groups])),
            share=torch.from_numpy(np.concatenate([traced.share[own] for own in groups])),
        )

    def error(self, operator_ms: Tensor) -> Tensor:
        """Sum of the absolute logarithmic errors by share, given the time of one operator of each class."""
        summed = torch.zeros(len(self.log_ms)).index_add(0, self.group, operator_ms[self.operator])
        return ((torch.log(summed) - self.log_ms).abs() * self.share).sum()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Batch:
    """Samples joined into one graph.

    ``is_seen`` is 1 for operators of a kind that the training had, and 0 for others: a correction of these would be one
    of nothing, and the predictor has none for them either.
    """

    features: Tensor
    is_seen: Tensor
    kernel_ms: Tensor
    launch_ms: Tensor
    graph: Tensor
    graphs: int
    producers: MessageTensors
    consumers: MessageTensors
    count: Tensor
    traced: TracedBatch | None

    def class_ms(self, network: nn.Module, *, deaf: float = 0.0) -> Tensor:
        """Time of all operators of each class, [C], where a share of them hears nothing of others."""
        producers, consumers = self.producers, self.consumers
        if deaf > 0.0:
            hears = (torch.rand(len(self.features)) >= deaf).float()
            producers, consumers = (
                (source, target, weight * hears[target]) for source, target, weight in (producers, consumers)
            )
        factors = torch.exp(network(self.features, producers, consumers) * self.is_seen[:, None])
        result: Tensor = self.kernel_ms * factors[:, 0] + self.launch_ms * factors[:, 1]
        return result

    def log_ms(self, class_ms: Tensor) -> Tensor:
        """Logarithm of the time of each graph, [G]."""
        return torch.log(torch.zeros(self.graphs).index_add(0, self.graph, class_ms))

    def operator_error(self, class_ms: Tensor) -> Tensor:
        """Mean over the graphs of the absolute logarithmic error of traced operators, by their share of the time."""
        if self.traced is None:
            return torch.zeros(())
        return self.traced.error(class_ms / self.count) / self.graphs


class SampleTensors:
    """Samples as tensors, scaled.

    Args:
        samples: The samples.
        scale: Scale of their features.
    """

    def __init__(self, samples: AdditiveSamples, scale: FeatureScale) -> None:
        arrays = samples.arrays
        self._features = torch.from_numpy(scale.inputs(arrays.node_features))
        self._is_seen = torch.from_numpy(~scale.is_unseen(arrays.node_features)).float()
        self._kernel_ms = torch.from_numpy(arrays.kernel_ms * arrays.count)
        self._launch_ms = torch.from_numpy(arrays.launches * arrays.count * np.float32(LAUNCH_MS))
        self._count = torch.from_numpy(arrays.count)
        self._traced = samples.traced
        self._nodes = arrays.node_offsets
        self._producers = _Flat.of(
            arrays.producer_source, arrays.producer_target, arrays.producer_weight, arrays.producer_offsets
        )
        self._consumers = _Flat.of(
            arrays.consumer_source, arrays.consumer_target, arrays.consumer_weight, arrays.consumer_offsets
        )

    @property
    def inputs(self) -> int:
        """Inputs of a network."""
        return self._features.shape[1]

    def batch(self, chosen: IndexArray) -> _Batch:
        """Some samples, joined into one graph without edges between them."""
        spans = [slice(int(self._nodes[i]), int(self._nodes[i + 1])) for i in chosen]
        counts = np.array([span.stop - span.start for span in spans], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        return _Batch(
            features=torch.cat([self._features[span] for span in spans]),
            is_seen=torch.cat([self._is_seen[span] for span in spans]),
            kernel_ms=torch.cat([self._kernel_ms[span] for span in spans]),
            launch_ms=torch.cat([self._launch_ms[span] for span in spans]),
            graph=torch.from_numpy(np.repeat(np.arange(len(chosen)), counts)),
            graphs=len(chosen),
            producers=self._producers.join(chosen, starts),
            consumers=self._consumers.join(chosen, starts),
            count=torch.cat([self._count[span] for span in spans]),
            traced=None if self._traced is None else TracedBatch.of(self._traced, chosen, starts),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Flat:
    """Messages of all samples."""

    source: Tensor
    target: Tensor
    weight: Tensor
    offsets: IndexArray

    @classmethod
    def of(cls, source: IndexArray, target: IndexArray, weight: Float32Array, offsets: IndexArray) -> _Flat:
        tensors = (torch.from_numpy(array) for array in (source, target, weight))
        return cls(**dict(zip(("source", "target", "weight"), tensors, strict=True)), offsets=offsets)

    def join(self, chosen: IndexArray, starts: IndexArray) -> MessageTensors:
        """Messages of some samples, counted from where the nodes of each start."""
        spans = [slice(int(self.offsets[i]), int(self.offsets[i + 1])) for i in chosen]
        shifts = starts.tolist()
        return (
            torch.cat([self.source[span] + shift for span, shift in zip(spans, shifts, strict=True)]),
            torch.cat([self.target[span] + shift for span, shift in zip(spans, shifts, strict=True)]),
            torch.cat([self.weight[span] for span in spans]),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedAdditive:
    """What a training ends with.

    Args:
        members: The networks.
        scale: Scale of the features.
        convolutions: The network of convolutions whose times the others correct, None for none.
    """

    members: tuple[AdditiveNetwork, ...]
    scale: FeatureScale
    convolutions: FittedConvolutions | None = None

    def read(self, samples: AdditiveSamples) -> SampleTensors:
        """The samples as the networks read them, the times of convolutions corrected."""
        return SampleTensors(samples if self.convolutions is None else self.convolutions.correct(samples), self.scale)

    def predict_ms(self, samples: AdditiveSamples, chosen: IndexArray) -> FloatArray:
        """Predicted time of samples, the mean over the members, [len(chosen)]."""
        tensors = self.read(samples)
        total = np.zeros(len(chosen))
        with torch.no_grad():
            for first in range(0, len(chosen), _PREDICTION_BATCH):
                part = slice(first, first + _PREDICTION_BATCH)
                batch = tensors.batch(chosen[part])
                for network in self.members:
                    total[part] += np.exp(batch.log_ms(batch.class_ms(network)).numpy())
        return total / len(self.members)


def fit_additive(samples: AdditiveSamples, chosen: IndexArray, settings: AdditiveSettings) -> FittedAdditive:
    """Train all members, and before them the network of convolutions.

    Args:
        samples: All samples.
        chosen: Those to train on; of the layers among them the network of convolutions alone learns.
        settings: Settings.

    Raises:
        UsageError: ``train.too_few`` where there is not one step to take.
    """
    calls = chosen[~np.isin(chosen, samples.layers)]
    if len(calls) == 0 or settings.epochs < 1:
        raise UsageError(
            f"{len(calls)} samples in {settings.epochs} epochs leave the additive network nothing to learn from.",
            code="train.too_few",
            cure="Give at least one sample and one epoch.",
        )
    convolutions = None
    if settings.convolution_epochs > 0 and samples.traced is not None:
        convolutions = fit_convolutions(
            samples,
            samples.traced,
            chosen,
            epochs=settings.convolution_epochs,
            passed_over=settings.passed_over,
            seed=settings.seed,
        )
    scale = FeatureScale.fit(samples, calls, settings.passed_over, ramps=settings.ramps)
    tensors = SampleTensors(samples if convolutions is None else convolutions.correct(samples), scale)
    learned_ms = samples.measured_ms if samples.learned_ms is None else samples.learned_ms
    learned = torch.from_numpy(np.log(learned_ms)).float()
    members = tuple(
        _fit_member(tensors, calls, learned, settings, seed=settings.seed + member)
        for member in range(settings.members)
    )
    return FittedAdditive(members=members, scale=scale, convolutions=convolutions)


def _fit_member(
    tensors: SampleTensors, chosen: IndexArray, learned: Tensor, settings: AdditiveSettings, *, seed: int
) -> AdditiveNetwork:
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = AdditiveNetwork(inputs=tensors.inputs, width=settings.width, dropout=settings.dropout)
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.decay)
    steps = settings.epochs * -(-len(chosen) // settings.batch_size)
    schedule = _schedule(optimizer, rate=settings.rate, steps=steps)
    mean = copy.deepcopy(network).eval()
    step = 0
    for epoch in range(settings.epochs):
        total = 0.0
        order = random.permutation(chosen)
        for first in range(0, len(order), settings.batch_size):
            part = order[first : first + settings.batch_size]
            batch = tensors.batch(part)
            class_ms = batch.class_ms(network, deaf=settings.deaf)
            loss = (batch.log_ms(class_ms) - learned[part]).abs().mean()
            if batch.traced is not None:
                loss = loss + settings.operator_weight * batch.operator_error(class_ms)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), _GRADIENT_NORM)
            optimizer.step()
            schedule.step()
            step += 1
            follow(mean, network, memory=settings.average, step=step)
            total += float(loss.detach()) * len(part)
        if epoch % 5 == 4 or epoch == settings.epochs - 1:
            _LOG.info("seed %d, epoch %d: loss %.4f", seed, epoch + 1, total / len(order))
    return mean


def _schedule(optimizer: torch.optim.Optimizer, *, rate: float, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """One cycle; in a training too short to warm up in, whose cycle would have no beginning, the rate stays."""
    if steps * _WARM_UP <= 1.0:
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps, pct_start=_WARM_UP)
