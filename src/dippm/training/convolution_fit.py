"""Fit the network of convolutions on traced calls and on layers that were measured by themselves."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dippm.features.physical import Ramps
from dippm.features.physical.columns import AT
from dippm.models.convolution import ConvolutionNetwork
from dippm.predictors.convolution_forward import CONVOLUTIONS
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.feature_scale import FeatureScale
from dippm.training.one_cycle import one_cycle
from dippm.training.running_mean import follow
from dippm.training.traced_operators import TracedOperators

__all__ = ["FittedConvolutions", "fit_convolutions"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

_RAMPS = 12
_BATCH_SIZE = 512
_RATE, _DECAY, _RISING_SHARE = 3e-3, 1e-2, 0.2
_AVERAGE = 0.997
_GRADIENT_NORM = 1.0
# Of a traced call a convolution counts by its share of the time, up to this one, and a little more than that; one that
# was measured by itself as one of a call would that has some tens of them.
_LARGEST_SHARE, _LEAST_WEIGHT, _SHARE_ALONE = 0.1, 0.004, 0.02
_TINY_MS = 1e-9
_IS_CONVOLUTION = AT["is_conv"]
_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedConvolutions:
    """A network of convolutions and how it reads them.

    Args:
        network: The network.
        scale: Scale of the features.
        inputs: Which of the scaled features and their ramps it reads: those that vary.
    """

    network: ConvolutionNetwork
    scale: FeatureScale
    inputs: IndexArray

    def tensors(self) -> dict[str, Float32Array]:
        """Weights and scale, by the names of the artefact."""
        scale = self.scale
        tensors = {"scale.mean": scale.mean, "scale.factor": scale.factor, **scale.ramps.tensors()}
        tensors["inputs"] = self.inputs.astype(np.float32)
        tensors |= {name: values.numpy().astype(np.float32) for name, values in self.network.state_dict().items()}
        return {f"{CONVOLUTIONS}{name}": values for name, values in tensors.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Float32Array]) -> FittedConvolutions | None:
        """What :meth:`tensors` gave among those of an artefact, None where there is nothing of it."""
        own = {name.removeprefix(CONVOLUTIONS): v for name, v in tensors.items() if name.startswith(CONVOLUTIONS)}
        if not own:
            return None
        scale = FeatureScale(mean=own.pop("scale.mean"), factor=own.pop("scale.factor"), ramps=Ramps.from_tensors(own))
        inputs = own.pop("inputs").astype(np.int64)
        state = {name: torch.from_numpy(values.copy()) for name, values in own.items() if not name.startswith("ramp.")}
        layers = sum(name.startswith("own.") and name.endswith(".weight") for name in state)
        network = ConvolutionNetwork(inputs=len(inputs), width=len(state["input.bias"]), layers=layers)
        network.load_state_dict(state)
        return cls(network=network.eval(), scale=scale, inputs=inputs)

    def correct(self, samples: AdditiveSamples) -> AdditiveSamples:
        """The samples with the kernel time of each convolution corrected."""
        arrays = samples.arrays
        chosen = np.flatnonzero(arrays.node_features[:, _IS_CONVOLUTION] > 0.0)
        kernel_ms = arrays.kernel_ms.copy()
        with torch.no_grad():
            for first in range(0, len(chosen), _AT_ONCE):
                some = chosen[first : first + _AT_ONCE]
                features = self.scale.inputs(arrays.node_features[some])[:, self.inputs]
                kernel_ms[some] *= np.exp(self.network(torch.from_numpy(features)).numpy())
        return replace(samples, arrays=replace(arrays, kernel_ms=kernel_ms))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Convolutions:
    """Traced convolutions, each by itself.

    Args:
        features: Their features.
        log_factor: Logarithm of what the plain sum's time is to be multiplied by.
        weight: How much each counts.

    Shapes:
        features: [N, F]; log_factor, weight: [N].
    """

    features: Float32Array
    log_factor: FloatArray
    weight: FloatArray

    @classmethod
    def of(cls, samples: AdditiveSamples, traced: TracedOperators, chosen: IndexArray) -> _Convolutions:
        """Those of some samples that the trace tells apart from all others."""
        arrays = samples.arrays
        is_alone = np.isin(chosen, samples.layers)
        nodes, log_ms, weight = [], [], []
        for sample, alone in zip(chosen.tolist(), is_alone.tolist(), strict=True):
            members = slice(*traced.member_offsets[sample : sample + 2].tolist())
            groups = slice(*traced.group_offsets[sample : sample + 2].tolist())
            node, group = arrays.node_offsets[sample] + traced.operator[members], traced.group[members]
            is_single = np.bincount(group)[group] == 1
            is_single &= arrays.node_features[node, _IS_CONVOLUTION] > 0.0
            group = group[is_single]
            nodes.append(node[is_single])
            log_ms.append(traced.log_ms[groups][group])
            share = np.minimum(traced.share[groups][group], _LARGEST_SHARE)
            weight.append((np.full(len(group), _SHARE_ALONE) if alone else share) + _LEAST_WEIGHT)
        node = np.concatenate(nodes)
        return cls(
            features=arrays.node_features[node],
            log_factor=np.concatenate(log_ms) - np.log(np.maximum(arrays.kernel_ms[node], _TINY_MS)),
            weight=np.concatenate(weight),
        )


def fit_convolutions(
    samples: AdditiveSamples,
    traced: TracedOperators,
    chosen: IndexArray,
    *,
    epochs: int,
    passed_over: Sequence[str] = (),
    seed: int = 0,
) -> FittedConvolutions:
    """Train the network.

    Args:
        samples: All samples.
        traced: Times of their operators.
        chosen: Those to train on, calls and layers.
        epochs: Passes over their convolutions.
        passed_over: Columns of the node features that it is not to see.
        seed: Seed of its first weights and of the order.
    """
    known = _Convolutions.of(samples, traced, chosen)
    scale = FeatureScale.of_nodes(known.features, passed_over, ramps=_RAMPS)
    scaled = scale.inputs(known.features)
    inputs = np.flatnonzero(np.ptp(scaled, axis=0) > 0.0)
    features = torch.from_numpy(scaled[:, inputs])
    factors = torch.from_numpy(known.log_factor).float()
    weights = torch.from_numpy(known.weight / known.weight.mean()).float()
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = ConvolutionNetwork(inputs=len(inputs))
    mean = copy.deepcopy(network).eval()
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    schedule = one_cycle(
        optimizer, peak=_RATE, steps=epochs * -(-len(features) // _BATCH_SIZE), rising_share=_RISING_SHARE
    )
    step = 0
    for _ in range(epochs):
        for some in torch.split(torch.from_numpy(random.permutation(len(features))), _BATCH_SIZE):
            error = (network(features[some]) - factors[some]).abs()
            optimizer.zero_grad()
            (error * weights[some]).mean().backward()
            nn.utils.clip_grad_norm_(network.parameters(), _GRADIENT_NORM)
            optimizer.step()
            schedule.step()
            step += 1
            follow(mean, network, memory=_AVERAGE, step=step)
    return FittedConvolutions(network=mean, scale=scale, inputs=inputs)
