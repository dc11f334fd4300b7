"""The additive predictor: predictor 0's kernel times, each corrected by what the graph around it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import share_of_latency
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingGraph
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.features.physical import COLUMNS, LAUNCH_MS, PhysicalPlan, PhysicalSamples
from dippm.graph import Graph, OpKind
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, AdditiveArtefact, manifest_path, read_tensors
from dippm.predictors.additive_forward import corrections

__all__ = ["AdditivePredictor", "AdditiveTimes"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

_KEPT_PLANS = 8
_CLIP = np.float32(4.0)
_US_PER_MS = 1e3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AdditiveTimes:
    """A prediction with what each operator adds to it.

    Args:
        share_ms: Part of the time of each node, the wait for the host included.
        busy_ms: Time for which each node keeps the device busy.

    Shapes:
        Both [B, n_nodes]; for a training step the nodes are those of the whole step.
    """

    share_ms: FloatArray
    busy_ms: FloatArray

    @property
    def time_ms(self) -> FloatArray:
        """Time of one call at each batch, [B]: the sum of the shares."""
        result: FloatArray = self.share_ms.sum(axis=1)
        return result


class _Corrector:
    """The networks of one mode."""

    def __init__(self, artefact: AdditiveArtefact, tensors: Mapping[str, Float32Array]) -> None:
        unknown = set(artefact.columns) - set(COLUMNS)
        if unknown:
            raise UnsupportedError(
                f"The additive predictor reads features that this version does not compute: {sorted(unknown)}.",
                code="artefact.columns",
                cure="Rebuild it with: python -m dippm.training.additive",
            )
        self.artefact = artefact
        self._columns = np.array([COLUMNS.index(name) for name in artefact.columns], dtype=np.int64)
        self._mean, self._factor = tensors["scale.mean"], tensors["scale.factor"]
        # A column that never varied in training has no scale.
        self.unseen_kinds = frozenset(
            kind
            for kind in OpKind
            if (name := f"is_{kind.value}") in artefact.columns and self._factor[artefact.columns.index(name)] == 0.0
        )
        self._unseen = np.array([COLUMNS.index(f"is_{kind.value}") for kind in self.unseen_kinds], dtype=np.int64)
        self._members = [
            {name.partition(".")[2]: values for name, values in tensors.items() if name.startswith(f"member{member}.")}
            for member in range(artefact.members)
        ]

    def time_ms(self, plan: PhysicalPlan, sample: PhysicalSamples) -> FloatArray:
        """Time of one operator of each class at each batch, the mean over the members, [B, C]."""
        features = (sample.node_features[:, :, self._columns] - self._mean) * self._factor
        np.clip(features, -_CLIP, _CLIP, out=features)
        # What was never trained on keeps its time.
        is_unseen = (sample.node_features[:, :, self._unseen] > 0).any(axis=2)
        total = np.zeros_like(sample.kernel_ms)
        for weights in self._members:
            factors = np.exp(corrections(weights, features, plan.producers, plan.consumers).astype(np.float64))
            factors[is_unseen] = 1.0
            total += sample.kernel_ms * factors[:, :, 0] + plan.launches * LAUNCH_MS * factors[:, :, 1]
        result: FloatArray = total / len(self._members)
        return result


class AdditivePredictor:
    """Time of a call or of a training step, as a sum over its operators.

    Args:
        artefacts: What the networks of each mode were trained on, with their weights and the scale of their features.
        kernels: Learned kernel times.

    Raises:
        UnsupportedError: ``artefact.columns`` where they were trained on other features than this version computes.
    """

    def __init__(
        self, artefacts: Sequence[tuple[AdditiveArtefact, Mapping[str, Float32Array]]], kernels: KernelModel
    ) -> None:
        self._kernels = kernels
        self._correctors = {artefact.mode: _Corrector(artefact, tensors) for artefact, tensors in artefacts}
        self._recent: list[tuple[Graph | TrainingGraph, Precision, PhysicalPlan]] = []

    @staticmethod
    @cache
    def load(folder: Path = ARTEFACT_FOLDER) -> AdditivePredictor:
        """Read the artefacts of a folder, the shipped ones where none is named; once per process.

        Raises:
            DippmError: ``artefact.unreadable``.
            UnsupportedError: ``artefact.columns``.
        """
        paths = [path for mode in Mode if (path := manifest_path(mode, folder)).exists()]
        return AdditivePredictor(
            [(AdditiveArtefact.read(path), read_tensors(path)) for path in paths], load_kernel_model()
        )

    def artefact(self, mode: Mode) -> AdditiveArtefact:
        """What the networks of a mode were trained on.

        Raises:
            UnsupportedError: ``additive.mode`` where there are none.
        """
        if mode not in self._correctors:
            raise UnsupportedError(
                f"No additive network was trained for {mode}.",
                code="additive.mode",
                cure=f"Train one with: python -m dippm.training.additive --mode {mode}",
            )
        return self._correctors[mode].artefact

    def unseen_kinds(self, mode: Mode) -> frozenset[OpKind]:
        """Kinds of operators that no model of the training had; they keep the time of the plain sum."""
        return self._correctors[mode].unseen_kinds

    def covers(self, device: DeviceSpec, conditions: Conditions) -> bool:
        """Whether a network was trained on steps of this device under these conditions.

        The optimizer is not asked for: its update is a small part of a step, bound by what it moves.
        """
        corrector = self._correctors.get(conditions.mode)
        if corrector is None or conditions.runtime is not Runtime.EAGER:
            return False
        measured = corrector.artefact.measured
        return (
            device.name in measured["devices"]
            and conditions.precision.value in measured["precisions"]
            and conditions.layout.value in measured["layouts"]
        )

    def predict_ms(
        self,
        graph: Graph | TrainingGraph,
        batches: Sequence[int],
        device: DeviceSpec,
        conditions: Conditions,
    ) -> FloatArray:
        """Time of one call or one training step at each batch, ms, [B]; see :meth:`break_down`."""
        return self.break_down(graph, batches, device, conditions).time_ms

    def break_down(
        self,
        graph: Graph | TrainingGraph,
        batches: Sequence[int],
        device: DeviceSpec,
        conditions: Conditions,
    ) -> AdditiveTimes:
        """Time of each operator.

        Args:
            graph: A forward graph for inference, the graph of the whole step for training.
            batches: Batch sizes.
            device: The device.
            conditions: Precision, layout, mode and runtime.

        Raises:
            UnsupportedError: ``additive.mode`` where no network was trained for the mode, ``additive.graph`` where
                graph and mode do not go together, ``additive.runtime`` for a compiled model.
            UsageError: ``batch.invalid``.
        """
        is_step = isinstance(graph, TrainingGraph)
        if is_step != (conditions.mode is Mode.TRAINING):
            raise UnsupportedError(
                "A training step takes the graph of the whole step, inference the forward graph alone.",
                code="additive.graph",
                cure="Make the graph of the step with make_training_graph.",
            )
        if conditions.runtime is Runtime.COMPILE:
            raise UnsupportedError(
                "The additive network was not trained on compiled models.",
                code="additive.runtime",
                cure="Predict the eager runtime.",
            )
        rates = self.artefact(conditions.mode).rates
        plan = self._plan(graph, conditions.precision)
        sample = plan.at(batches, device=device, conditions=conditions, rates=rates, kernels=self._kernels)
        own_ms = self._correctors[conditions.mode].time_ms(plan, sample)
        runs = plan.class_of >= 0
        busy_ms = np.zeros((len(batches), len(plan.class_of)))
        busy_ms[:, runs] = own_ms[:, plan.class_of[runs]]
        # A captured graph is launched as a whole.
        host = 0.0 if conditions.runtime is Runtime.CUDA_GRAPH else rates.host_scale
        kernels = plan.kernels
        dispatch_us = np.where(kernels.is_backward, rates.backward_host, 1.0) * kernels.dispatch_us
        share_ms = share_of_latency(busy_ms, np.cumsum(dispatch_us) * (host / _US_PER_MS))
        return AdditiveTimes(share_ms=share_ms * plan.times, busy_ms=busy_ms * plan.times)

    def interval_factor(self, mode: Mode) -> float:
        """What the time is multiplied with and divided by for the 90 % interval on models like those of the labels.

        Raises:
            UnsupportedError: ``additive.mode`` where no network was trained for the mode.
        """
        return math.exp(self.artefact(mode).spread)

    def _plan(self, graph: Graph | TrainingGraph, precision: Precision) -> PhysicalPlan:
        """What does not depend on the batch, kept for the graphs seen last."""
        for held, of, plan in self._recent:
            if held is graph and of is precision:
                return plan
        plan = PhysicalPlan.from_graph(graph, precision)
        self._recent = [(graph, precision, plan), *self._recent[: _KEPT_PLANS - 1]]
        return plan
