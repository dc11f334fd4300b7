"""Predictions by a trained PMGNS, without PyTorch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions
from dippm.devices import DeviceSpec, find_device
from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.features.pmgns import OPERATOR_CLASSES, STATIC_COLUMNS, PmgnsSample, compute_features_of_batches
from dippm.features.scaling import Scaling
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy, choose_mig
from dippm.predictors.answerable import check_answerable, name_unsupported, warn_of_batch
from dippm.predictors.network_artefact import NetworkArtefact, read_weights
from dippm.predictors.pmgns_forward import forward
from dippm.predictors.prediction import ModelInfo, NoSlice, Prediction, PredictorInfo, format_figure

__all__ = ["PmgnsPredictor"]

_MODEL = "pmgns"
_RANGE = "trained_range"
_METRICS = ("memory_mb", "latency_ms", "energy_j")
# Software that decides how fast a model runs; the rest stands in the artefact.
_NAMED_SOFTWARE = {"framework": "", "cuda": "CUDA ", "cudnn": "cuDNN ", "driver": "driver "}
# No call takes so many ms, J or MiB: far from what it was trained on, a network says anything.
_LARGEST_FIGURE = 1e18


class PmgnsPredictor:
    """A trained PMGNS, which answers for the device and the conditions of its labels alone.

    Args:
        artefact: What it is.
        weights: Its weights.

    Attributes:
        artefact: What it is.
        device: Device of the labels: its name in the catalogue, or as it names itself where the catalogue lacks it.
        spec: Its figures, or None where the catalogue lacks it.
        conditions: Conditions of the labels.

    Raises:
        UnsupportedError: ``artefact.model`` where it is another network, ``artefact.metrics`` where its labels had no
            latency.
        DippmError: ``artefact.unreadable`` where it does not say what its labels are.
    """

    def __init__(self, artefact: NetworkArtefact, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        if artefact.model != _MODEL or artefact.scaling is None:
            raise UnsupportedError(
                f"Predictions come from a network '{_MODEL}' alone. Got '{artefact.model}' instead.",
                code="artefact.model",
                cure="The others are there to compare with: train with --model pmgns.",
            )
        if "latency_ms" not in artefact.metrics:
            raise UnsupportedError(
                f"A prediction has a latency, and the labels had none. Got {', '.join(artefact.metrics)}.",
                code="artefact.metrics",
                cure="Train on labels with a latency.",
            )
        self.artefact = artefact
        self._scaling: Scaling = artefact.scaling
        self._weights = weights
        try:
            self._labelled = str(artefact.labels["device"])
            self.conditions = Conditions.parse(**artefact.labels["conditions"])
            self._info = PredictorInfo(
                name=_MODEL, version=str(artefact.provenance["versions"]["dippm"]), labels=_describe_labels(artefact)
            )
        except (KeyError, TypeError, AttributeError, UsageError) as exc:
            raise DippmError(
                f"The predictor does not say what its labels are: {exc}.",
                code="artefact.unreadable",
                cure="Name a folder that `dippm train` wrote.",
            ) from exc
        self.spec = _find_known(self._labelled)
        self.device = self._labelled if self.spec is None else self.spec.name

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PmgnsPredictor:
        """Read what ``dippm train`` wrote.

        Raises:
            DippmError: ``artefact.unreadable``.
            UnsupportedError: ``artefact.model`` or ``artefact.metrics``.
            MissingExtraError: safetensors is not installed.
        """
        artefact = NetworkArtefact.read(Path(folder))
        return cls(artefact, read_weights(Path(folder)) if artefact.model == _MODEL else {})

    def is_for(self, device: str) -> bool:
        """Whether this is a name of the device of the labels."""
        if device.strip().casefold() in (self._labelled.casefold(), self.device.casefold()):
            return True
        spec = _find_known(device)
        return spec is not None and spec.name == self.device

    def predict(
        self, graph: Graph, *, batches: Sequence[int], mig_policy: MigPolicy = MigPolicy.SAFE
    ) -> list[Prediction]:
        """Predict a graph at every batch.

        Args:
            graph: The model.
            batches: Samples per call.
            mig_policy: How a MIG slice is chosen.

        Returns:
            A prediction per batch. Memory and energy are None where the labels had none. Intervals are missing where
            there were too few labels to calibrate them, and where the model lies outside what the training saw.

        Raises:
            UsageError: ``batch.invalid``.
            UnsupportedError: ``graph.fixed_batch`` where the graph holds for another batch only; ``graph.empty`` where
                no operator runs; ``prediction.no_figure`` where the network gives no figure that a machine could have.
        """
        check_answerable(graph, batches)
        samples = compute_features_of_batches(graph, batches, self.artefact.edges)
        model = ModelInfo.of(graph)
        inputs = [graph.tensors[index] for index in graph.inputs]
        warnings = (*graph.warnings, *_warn_of_operators(graph), *self._warn_of_artefact())
        predictions = []
        for batch, sample in zip(batches, samples, strict=True):
            figures = self._figures(sample, f"'{graph.source}' at batch {batch}")
            outside = self._find_outside(sample)
            # Errors on models like those of the training say nothing of others.
            spreads = {} if outside else self.artefact.spreads
            intervals = {
                metric: (figures[metric] / math.exp(spread), figures[metric] * math.exp(spread))
                for metric, spread in spreads.items()
            }
            has_memory = "memory_mb" in figures
            is_known = has_memory and (mig_policy is MigPolicy.PAPER or "memory_mb" in intervals)
            no_slice = NoSlice.UNKNOWN if self.spec is None else NoSlice.why(self.spec, is_known=is_known)
            notes = [*warn_of_batch(graph, batch)]
            if outside:
                notes.append(f"Outside what the training saw, and so without intervals: {'; '.join(outside)}.")
            if has_memory and self.spec is not None and no_slice is NoSlice.UNKNOWN:
                notes.append("No MIG slice is named, since a safe one takes an interval of the memory.")
            predictions.append(
                Prediction(
                    model=model,
                    device=self.device,
                    conditions=self.conditions,
                    batch=batch,
                    inputs={tensor.name: tuple(dim.at(batch) for dim in tensor.shape) for tensor in inputs},
                    macs=round(sample.static_features[STATIC_COLUMNS.index("macs")]),
                    latency_ms=figures["latency_ms"],
                    energy_j=figures.get("energy_j"),
                    memory_mb=figures.get("memory_mb"),
                    memory_parts_mb={},
                    mig=self._choose_mig(figures.get("memory_mb"), intervals.get("memory_mb"), mig_policy),
                    no_slice=no_slice,
                    intervals=intervals,
                    predictor=replace(self._info, warnings=(*warnings, *notes)),
                )
            )
        return predictions

    def _figures(self, sample: PmgnsSample, what: str) -> dict[str, float]:
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = forward(
                self._weights,
                self._scaling.scale_nodes(sample.node_features),
                sample.edge_index,
                np.zeros(len(sample.node_features), dtype=np.int64),
                self._scaling.scale_statics(sample.static_features[None]),
            )
            values = dict(zip(_METRICS, self._scaling.unscale_targets(outputs)[0].tolist(), strict=True))
        figures = {metric: values[metric] for metric in self.artefact.metrics}
        if not all(0.0 < value < _LARGEST_FIGURE for value in figures.values()):
            raise UnsupportedError(
                f"{what} is too unlike the models of the labels: the network says {figures}.",
                code="prediction.no_figure",
                cure="Predict without --predictor, or train on models like it.",
            )
        return figures

    def _choose_mig(
        self, memory_mb: float | None, interval: tuple[float, float] | None, policy: MigPolicy
    ) -> str | None:
        if self.spec is None or memory_mb is None:
            return None
        if policy is MigPolicy.SAFE and interval is None:
            return None
        return choose_mig(memory_mb, self.spec, interval_high_mb=interval and interval[1], policy=policy)

    def _warn_of_artefact(self) -> list[str]:
        warnings = []
        bare = [metric.partition("_")[0] for metric in self.artefact.metrics if metric not in self.artefact.spreads]
        if bare:
            warnings.append(f"There were too few labels to calibrate an interval of: {', '.join(bare)}.")
        if _RANGE not in self.artefact.labels:
            warnings.append("The predictor does not say which sizes of models it was trained on.")
        return warnings

    def _find_outside(self, sample: PmgnsSample) -> list[str]:
        """What of this sample lies outside the training split, in words."""
        outside = []
        seen: Mapping[str, Sequence[float]] = self.artefact.labels.get(_RANGE, {})
        statics = dict(zip(STATIC_COLUMNS, sample.static_features.tolist(), strict=True))
        for name, value, words, unit in (
            ("batch", statics["batch"], "batch", 1.0),
            ("macs", statics["macs"], "GMACs", 1e9),
            ("operators", float(len(sample.node_features)), "operators", 1.0),
        ):
            low, high = seen.get(name, (0.0, math.inf))
            if not low <= value <= high:
                given, least, most = (format_figure(each / unit) for each in (value, low, high))
                outside.append(f"{words} {given} (there {least} to {most})")
        # The mean of a column of zeros and ones is 0 where there is no one.
        count = len(OPERATOR_CLASSES)
        is_new = (self._scaling.node_mean[:count] == 0.0) & sample.node_features[:, :count].any(axis=0)
        classes = [name.replace("_", " ") for name, new in zip(OPERATOR_CLASSES, is_new, strict=True) if new]
        if classes:
            outside.append(f"operators of class {', '.join(classes)} (there none)")
        return outside


def _find_known(name: str) -> DeviceSpec | None:
    try:
        return find_device(name)
    except UnsupportedError:
        return None


def _describe_labels(artefact: NetworkArtefact) -> str:
    labels, provenance = artefact.labels, artefact.provenance
    conditions: Mapping[str, Any] = labels["conditions"]
    software = [
        f"{prefix}{' or '.join(versions)}"
        for name, prefix in _NAMED_SOFTWARE.items()
        if (versions := [version for version in labels["software"][name] if version])
    ]
    run_as = [str(value) for value in conditions.values() if value is not None]
    return (
        f"{labels['samples']} labels of {', '.join(labels['collections'])} on {labels['device']}, measured by "
        f"{labels['source']}: {', '.join((*run_as, *software))}; data {provenance['data_hash']}, seed "
        f"{provenance['seed']}"
    )


def _warn_of_operators(graph: Graph) -> list[str]:
    names = name_unsupported(graph)
    return [f"Operators without a class of their own, seen by their shapes alone: {names}."] if names else []
