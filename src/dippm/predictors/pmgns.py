"""Predictions by a trained PMGNS, without PyTorch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.errors import UnsupportedError
from dippm.features.pmgns import PmgnsSample, compute_features_of_batches
from dippm.features.scaling import Scaling
from dippm.graph import Graph
from dippm.predictors.network_artefact import NetworkArtefact, read_weights
from dippm.predictors.pmgns_forward import forward

__all__ = ["NetworkPrediction", "PmgnsPredictor"]

_MODEL = "pmgns"
_METRICS = ("memory_mb", "latency_ms", "energy_j")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPrediction:
    """What the network says of one model at one batch, on the device and under the conditions of its labels.

    Args:
        batch: Samples per call.
        figures: Predicted value of each metric that it was trained on.
        intervals: The [low, high] of each that holds the measured value in 90 % of cases, for models like those of
            the training; missing where there were too few labels to calibrate it.
    """

    batch: int
    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]


class PmgnsPredictor:
    """A trained PMGNS.

    Args:
        artefact: What it is.
        weights: Its weights.

    Raises:
        UnsupportedError: ``artefact.model`` where it is another network.
    """

    def __init__(self, artefact: NetworkArtefact, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        if artefact.model != _MODEL or artefact.scaling is None:
            raise UnsupportedError(
                f"Predictions come from a network '{_MODEL}' alone. Got '{artefact.model}' instead.",
                code="artefact.model",
                cure="The others are there to compare with: train with --model pmgns.",
            )
        self.artefact = artefact
        self._scaling: Scaling = artefact.scaling
        self._weights = weights

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PmgnsPredictor:
        """Read what ``dippm train`` wrote.

        Raises:
            DippmError: ``artefact.unreadable``.
            UnsupportedError: ``artefact.model``.
            MissingExtraError: safetensors is not installed.
        """
        artefact = NetworkArtefact.read(Path(folder))
        return cls(artefact, read_weights(Path(folder)) if artefact.model == _MODEL else {})

    def predict(self, graph: Graph, *, batches: Sequence[int]) -> list[NetworkPrediction]:
        """Predict a graph at every batch.

        Raises:
            UsageError: ``batch.invalid``.
            UnsupportedError: What features cannot be computed of.
        """
        samples = compute_features_of_batches(graph, batches, self.artefact.edges)
        return [self._predict(batch, sample) for batch, sample in zip(batches, samples, strict=True)]

    def _predict(self, batch: int, sample: PmgnsSample) -> NetworkPrediction:
        outputs = forward(
            self._weights,
            self._scaling.scale_nodes(sample.node_features),
            sample.edge_index,
            np.zeros(len(sample.node_features), dtype=np.int64),
            self._scaling.scale_statics(sample.static_features[None]),
        )
        values = dict(zip(_METRICS, self._scaling.unscale_targets(outputs)[0].tolist(), strict=True))
        figures = {metric: values[metric] for metric in self.artefact.metrics}
        factors = {metric: math.exp(spread) for metric, spread in self.artefact.spreads.items()}
        return NetworkPrediction(
            batch=batch,
            figures=figures,
            intervals={
                metric: (figures[metric] / factor, figures[metric] * factor) for metric, factor in factors.items()
            },
        )
