"""The learning-rate finder: one sweep from a tiny rate to a huge one."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dippm.errors import DippmError
from dippm.training.graph_batches import BatchedSamples, EpochBatches
from dippm.training.graph_network import masked_huber_loss

__all__ = ["choose_rate", "find_learning_rate"]

_RATES = np.geomspace(1e-6, 0.1, 100)
# Weight of what came before in the running mean of the loss: single batches differ more than neighbouring rates do.
_MEMORY = 0.9
# Beyond so many times the least loss the sweep has diverged.
_BLOWN_UP = 4.0
# The step whose running mean stands for the loss at the start.
_FIRST = 10
# A loss that falls by less than this does not fall.
_FALL = 0.99
_SAFETY = 0.1


def find_learning_rate(
    network: nn.Module, samples: BatchedSamples, chosen: npt.NDArray[np.int64], *, batch_size: int, seed: int
) -> float:
    """Find a rate for Adam: let it grow from step to step, and see where the loss is least.

    After Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3. The network itself is left
    as it is: a copy is trained.

    Args:
        network: The network, on the device of the samples.
        samples: All samples.
        chosen: Samples to train on.
        batch_size: Graphs in a step.
        seed: Seed of the order of the samples.

    Raises:
        DippmError: ``train.no_rate`` where the loss falls at no rate.
    """
    network = copy.deepcopy(network).train()
    optimizer = torch.optim.Adam(network.parameters())
    order = EpochBatches(chosen, batch_size=batch_size, seed=seed)
    losses: list[float] = []
    epoch = 0
    while len(losses) < len(_RATES):
        order.set_epoch(epoch)
        epoch += 1
        for batch_of in order:
            if len(losses) == len(_RATES):
                break
            batch = samples[batch_of]
            optimizer.param_groups[0]["lr"] = float(_RATES[len(losses)])
            loss = masked_huber_loss(network(*batch[:-1]), batch[-1])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]) or losses[-1] > _BLOWN_UP * max(min(losses), losses[0]):
                return choose_rate(losses)
    return choose_rate(losses)


def choose_rate(losses: Sequence[float]) -> float:
    """A tenth of the rate at which the running mean of the losses of a sweep is least.

    There the loss still falls, with room to the rate at which it rises. The slope itself is no guide: with a few
    batches it follows which graphs fell in which.

    Args:
        losses: Loss at each rate, from the least rate on; may end early, where it blew up.

    Raises:
        DippmError: ``train.no_rate`` where the loss is nowhere below what it was at first.
    """
    mean = 0.0
    smooth = []
    for step, loss in enumerate(losses, start=1):
        mean = _MEMORY * mean + (1.0 - _MEMORY) * loss
        smooth.append(mean / (1.0 - _MEMORY**step))
    known = np.array(smooth)[np.isfinite(smooth)][_FIRST:]
    if not known.size or not known.min() < _FALL * known[0]:
        raise DippmError(
            "No learning rate can be found on these data: the loss falls at none.",
            code="train.no_rate",
            cure="Name one, such as 0.0003.",
        )
    return float(f"{_SAFETY * _RATES[_FIRST + int(known.argmin())]:.3g}")
