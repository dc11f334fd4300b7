"""Adapt the additive networks to a device from some tens of measurements of it.

The networks are trained on from where they are, a little: what a device does differently shows in few measurements,
what it shares with others does not have to be learned again. Weights are drawn back to where they were.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dippm.models.additive import AdditiveNetwork
from dippm.training.additive_fit import FittedAdditive, SampleTensors
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["AdaptationSettings", "adapt_additive", "choose_diverse"]

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptationSettings:
    """Settings.

    Args:
        steps: Steps of the optimizer; the weights of the second half are averaged.
        batch_size: Samples in a step.
        rate: Largest learning rate of the one-cycle schedule.
        pull: Strength with which weights are drawn back to where they were.
        seed: Seed of the order.
    """

    steps: int = 150
    batch_size: int = 10
    rate: float = 1e-3
    pull: float = 1e-2
    seed: int = 0


def adapt_additive(
    fitted: FittedAdditive, samples: AdditiveSamples, chosen: IndexArray, settings: AdaptationSettings
) -> FittedAdditive:
    """Networks that have seen a few samples of another device.

    Args:
        fitted: Networks trained without it.
        samples: All samples.
        chosen: The samples of the device to learn from.
        settings: Settings.
    """
    tensors = fitted.read(samples)
    measured = torch.from_numpy(np.log(samples.measured_ms)).float()
    members = tuple(
        _adapt_member(network, tensors, chosen, measured, settings, seed=settings.seed + member)
        for member, network in enumerate(fitted.members)
    )
    return replace(fitted, members=members)


def choose_diverse(descriptors: Float32Array, pool: IndexArray, *, count: int, seed: int = 0) -> IndexArray:
    """Samples that stand for all others: the ones nearest to the middles of as many clusters.

    Args:
        descriptors: Descriptors of all samples, see :func:`dippm.training.additive_novelty.describe_samples`.
        pool: Samples to choose from.
        count: How many at most.
        seed: Seed of the clusters.

    Shapes:
        descriptors: [S, F]; result: at most [min(count, len(pool))].
    """
    from sklearn.cluster import KMeans

    points = descriptors[pool].astype(np.float64)
    middles = KMeans(min(count, len(pool)), n_init=2, random_state=seed).fit(points).cluster_centers_
    nearest = [int(np.square(points - middle).sum(axis=1).argmin()) for middle in middles]
    return pool[np.unique(nearest)]


def _adapt_member(
    network: AdditiveNetwork,
    tensors: SampleTensors,
    chosen: IndexArray,
    measured: Tensor,
    settings: AdaptationSettings,
    *,
    seed: int,
) -> AdditiveNetwork:
    random = np.random.default_rng(seed)
    network = copy.deepcopy(network)
    start = [values.detach().clone() for values in network.parameters()]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=settings.rate, total_steps=settings.steps)
    mean = copy.deepcopy(network).eval()
    averaged = 0
    for step in range(settings.steps):
        part = random.choice(chosen, size=min(settings.batch_size, len(chosen)), replace=False)
        batch = tensors.batch(part)
        loss = (batch.log_ms(batch.class_ms(network)) - measured[part]).abs().mean()
        for values, before in zip(network.parameters(), start, strict=True):
            loss = loss + settings.pull * (values - before).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step >= settings.steps // 2:
            averaged += 1
            with torch.no_grad():
                for kept, current in zip(mean.parameters(), network.parameters(), strict=True):
                    kept.lerp_(current, 1.0 / averaged)
    return mean
