"""The networks of an artefact as they were when their training ended, to train them on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from dippm.errors import UnsupportedError
from dippm.features.physical import COLUMNS, Ramps
from dippm.models.additive import AdditiveNetwork
from dippm.predictors.additive_artefact import AdditiveArtefact
from dippm.training.additive_fit import FittedAdditive
from dippm.training.convolution_fit import FittedConvolutions
from dippm.training.feature_scale import FeatureScale

__all__ = ["load_fitted"]


def load_fitted(artefact: AdditiveArtefact, tensors: Mapping[str, npt.NDArray[np.float32]]) -> FittedAdditive:
    """What :func:`dippm.training.additive.additive_tensors` was given; it reads the columns of the artefact alone.

    Args:
        artefact: The manifest.
        tensors: The weights beside it.

    Raises:
        UnsupportedError: ``artefact.columns`` where the networks read other features than this version computes.
    """
    if not set(artefact.columns) <= set(COLUMNS):
        raise UnsupportedError(
            "The networks were trained on other features than this version computes.",
            code="artefact.columns",
            cure="Rebuild them with: python -m dippm.training.additive",
        )
    members = []
    for member in range(artefact.members):
        own = f"member{member}."
        state = {
            name.removeprefix(own): torch.from_numpy(values.copy())
            for name, values in tensors.items()
            if name.startswith(own)
        }
        rounds = sum(name.startswith("own.") and name.endswith(".weight") for name in state)
        width, inputs = state["input.weight"].shape
        network = AdditiveNetwork(inputs=inputs, width=width, rounds=rounds)
        network.load_state_dict(state)
        members.append(network.eval())
    scale = FeatureScale(mean=tensors["scale.mean"], factor=tensors["scale.factor"], ramps=Ramps.from_tensors(tensors))
    return FittedAdditive(members=tuple(members), scale=scale, convolutions=FittedConvolutions.from_tensors(tensors))
