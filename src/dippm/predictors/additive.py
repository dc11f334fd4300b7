"""The additive predictor: predictor 0's kernel times, each corrected by what the graph around it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dippm.costs.captured_time import EAGER_WAIT_US, waited_us
from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates, architecture_of
from dippm.costs.software import Software
from dippm.costs.training_step.training_graph import TrainingGraph
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec, is_better, load_catalog
from dippm.errors import UnsupportedError
from dippm.features.physical import PhysicalPlan, PhysicalSamples
from dippm.graph import Graph, OpKind
from dippm.predictors.additive_artefact import (
    ARTEFACT_FOLDER,
    OWN_REGIMES,
    REGIMES,
    AdditiveArtefact,
    Regime,
    manifest_path,
    read_tensors,
)
from dippm.predictors.additive_corrector import CorrectedPlan, CorrectedSample, Corrector
from dippm.predictors.unseen_kernels import is_emulated

__all__ = ["MORE_THAN_LEAST", "AdditivePredictor", "LatencyBreakdown"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

MORE_THAN_LEAST = 1.009
"""By what calls take longer in the mean than the least that was seen of them, which networks of an architecture
learned: the median of 1,049 captured calls on an H100 and an H200, of which eight in ten lie between 1.003 and 1.033.
"""

_KEPT_PLANS = 8
_KEPT_CARDS = 256
# A precision that runs the kernels of another one, at the same rates, on devices that have this unit.
_ALIKE = {Precision.AMP_BF16: (Precision.AMP, "bf16_tensor")}
# Whole models in 16 bits, and the autocast that runs the same kernels; with TF32 allowed for products, what FP32 runs
# but for these: convolutions take it anyway. Strict FP32 runs what FP32 does but for these.
_NEAR = {
    Precision.FP16: Precision.AMP,
    Precision.BF16: Precision.AMP_BF16,
    Precision.TF32: Precision.FP32,
    Precision.FP32_STRICT: Precision.FP32,
}


class AdditivePredictor:
    """Time of a call or of a training step, as a sum over its operators.

    Args:
        artefacts: What the networks of each mode were trained on, with their weights and the scale of their features.
        kernels: Learned kernel times.
        own: Networks of single architectures by compute capability, which answer there where they were trained.

    Raises:
        UnsupportedError: ``artefact.columns`` where they were trained on other features than this version computes.
    """

    def __init__(
        self,
        artefacts: Sequence[tuple[AdditiveArtefact, Mapping[str, Float32Array]]],
        kernels: KernelModel,
        *,
        own: Mapping[str, AdditivePredictor] = MappingProxyType({}),
    ) -> None:
        self._kernels = kernels
        self._correctors = {
            Regime(mode=artefact.mode, runtime=artefact.runtime): Corrector(artefact, tensors)
            for artefact, tensors in artefacts
        }
        self._own = own
        self._better_card = lru_cache(maxsize=_KEPT_CARDS)(self._find_better_card)
        self._recent: list[tuple[Graph | TrainingGraph | PhysicalPlan, Precision, Corrector, CorrectedPlan]] = []

    @staticmethod
    @cache
    def load(folder: Path = ARTEFACT_FOLDER) -> AdditivePredictor:
        """Read the artefacts of a folder, the shipped ones where none is named; once per process.

        Raises:
            DippmError: ``artefact.unreadable``.
            UnsupportedError: ``artefact.columns``.
        """
        return AdditivePredictor.read(folder)

    @staticmethod
    def read(folder: Path) -> AdditivePredictor:
        """Read the artefacts of a folder that may have changed since; raises as :meth:`load`."""
        kernels = load_kernel_model()
        of_architectures: dict[tuple[str, ...], list[tuple[AdditiveArtefact, Mapping[str, Float32Array]]]] = {}
        for artefact, tensors in _read_all(OWN_REGIMES, folder):
            of_architectures.setdefault(artefact.architectures, []).append((artefact, tensors))
        own: dict[str, AdditivePredictor] = {}
        for names, artefacts in of_architectures.items():
            own |= dict.fromkeys(names, AdditivePredictor(artefacts, kernels))
        return AdditivePredictor(_read_all(REGIMES, folder), kernels, own=own)

    def on(self, device: DeviceSpec, conditions: Conditions, kernels: KernelPlan | Software) -> AdditivePredictor:
        """The networks that answer for a device: those of its architecture where they were trained or near, else these.

        Args:
            device: The device.
            conditions: Precision, layout, mode and runtime.
            kernels: The kernels, or the software that has them; networks of an architecture were trained on those of
                cuDNN 9.
        """
        own = self._own.get(architecture_of(device))
        if own is None or not kernels.has_cudnn_9:
            return self
        return own if own.covers(device, conditions) or own.is_near(device, conditions) else self

    def artefact(self, conditions: Conditions) -> AdditiveArtefact:
        """What the networks for these conditions were trained on.

        Raises:
            UnsupportedError: ``additive.regime`` where there are none.
        """
        return self._corrector(conditions).artefact

    def unseen_kinds(self, conditions: Conditions) -> frozenset[OpKind]:
        """Kinds of operators that no model of the training had; they keep the time of the plain sum."""
        return self._corrector(conditions).unseen_kinds

    def covers(self, device: DeviceSpec, conditions: Conditions) -> bool:
        """Whether a network was trained under such conditions, on this device or on another with tensor cores.

        A captured graph runs the kernels of the eager runtime, and the host launches all of them at once.

        The optimizer is not asked for: its update is a small part of a step, bound by what it moves.
        """
        corrector = self._correctors.get(_regime_of(conditions))
        if corrector is None:
            return False
        measured = corrector.artefact.measured
        alike, rate = _ALIKE.get(conditions.precision, (conditions.precision, "fp16_tensor"))
        return (
            rate in device.peak_tflops
            and alike.value in measured["precisions"]
            and conditions.layout.value in measured["layouts"]
        )

    def is_near(self, device: DeviceSpec, conditions: Conditions) -> bool:
        """Whether a network was trained on another precision that runs the kernels of this one, or nearly all."""
        near = _NEAR.get(conditions.precision)
        return near is not None and self.covers(device, replace(conditions, precision=near))

    def knows_captured(self, conditions: Conditions) -> bool:
        """Whether networks answer for such conditions that were trained on captured calls."""
        corrector = self._correctors.get(_regime_of(conditions))
        return corrector is not None and Runtime.CUDA_GRAPH.value in corrector.artefact.measured.get("runtimes", ())

    def is_measured(self, device: DeviceSpec, conditions: Conditions) -> bool:
        """Whether the networks were trained on this device under these conditions."""
        if not self.covers(device, conditions):
            return False
        measured = self.artefact(conditions).measured
        if conditions.runtime is Runtime.CUDA_GRAPH and conditions.runtime.value not in measured.get("runtimes", ()):
            return False
        return device.name in measured["devices"] and conditions.precision.value in measured["precisions"]

    def is_sibling(self, device: DeviceSpec, conditions: Conditions) -> bool:
        """Whether the device is of an architecture of which one card was seen to be predicted by the others.

        That takes networks of several devices: those of a single one were never tried on another.
        """
        several = len(self.artefact(conditions).measured["devices"]) > 1
        return several and self.knows_architecture(device, conditions)

    def knows_architecture(self, device: DeviceSpec, conditions: Conditions) -> bool:
        """Whether the networks were trained on the device, or on a card of its architecture."""
        corrector = self._corrector(conditions)
        is_own = device.name in corrector.artefact.measured["devices"]
        return is_own or device.compute_capability in corrector.known_capabilities

    def of_better_card(
        self, device: DeviceSpec, conditions: Conditions, kernels: KernelPlan
    ) -> tuple[AdditivePredictor, DeviceSpec] | None:
        """A card that is better than a device in every figure, and the networks of its architecture.

        Of several cards the one whose memory is slowest; None where no architecture of such a card has networks that
        were trained under these conditions.

        Args:
            device: The device.
            conditions: Precision, layout, mode and runtime.
            kernels: The kernels, as for :meth:`on`.
        """
        return self._better_card(device, conditions) if kernels.has_cudnn_9 else None

    def _find_better_card(
        self, device: DeviceSpec, conditions: Conditions
    ) -> tuple[AdditivePredictor, DeviceSpec] | None:
        known = [
            (own, card)
            for card in load_catalog()
            for own in [self._own.get(architecture_of(card))]
            if own is not None and own.covers(card, conditions) and is_better(card, device)
        ]
        return min(known, key=lambda each: each[1].bandwidth_gb_s, default=None)

    def predict_ms(
        self,
        graph: Graph | TrainingGraph,
        batches: Sequence[int],
        device: DeviceSpec,
        conditions: Conditions,
    ) -> FloatArray:
        """Time of one call or one training step at each batch, ms, [B]; see :meth:`break_down`."""
        return self.break_down(graph, batches, device, conditions).latency_ms

    def break_down(
        self,
        graph: Graph | TrainingGraph,
        batches: Sequence[int],
        device: DeviceSpec,
        conditions: Conditions,
    ) -> LatencyBreakdown:
        """Time of each operator.

        Args:
            graph: A forward graph for inference, the graph of the whole step for training.
            batches: Batch sizes.
            device: The device.
            conditions: Precision, layout, mode and runtime.

        Raises:
            UnsupportedError: ``additive.regime`` where no network was trained for mode and runtime, ``additive.graph``
                where graph and mode do not go together.
            UsageError: ``batch.invalid``.
        """
        is_step = isinstance(graph, TrainingGraph)
        if is_step != (conditions.mode is Mode.TRAINING):
            raise UnsupportedError(
                "A training step takes the graph of the whole step, inference the forward graph alone.",
                code="additive.graph",
                cure="Make the graph of the step with make_training_graph.",
            )
        plan = self._plan_of(
            graph, conditions, lambda: PhysicalPlan.from_graph(graph, conditions.precision, conditions.runtime)
        )
        at, host = plan.physical.kernels.work.at(list(batches)), self.artefact(conditions).rates
        (breakdown,) = self._time_operators(plan, at, device, conditions, host=host)
        return breakdown

    def read_kernels(
        self,
        physical: PhysicalPlan,
        at: WorkloadAt,
        device: DeviceSpec,
        conditions: Conditions,
        *,
        better: tuple[AdditivePredictor, DeviceSpec] | None = None,
    ) -> list[PhysicalSamples]:
        """What networks read of kernels on a device, and then of a better card and its networks, both at once.

        Args:
            physical: The kernels, merged where they are alike.
            at: Their work at each batch.
            device: The device.
            conditions: Precision, layout, mode and runtime.
            better: What :meth:`of_better_card` gives, networks of the same learned kernel times; None for the device
                alone.

        Returns:
            One for the device, and one for the better card where it is asked for.

        Raises:
            UnsupportedError: ``additive.regime`` where no network was trained for mode and runtime.
        """
        asked = [(self, device)] if better is None else [(self, device), better]
        return physical.features(
            at,
            devices=[card for _, card in asked],
            conditions=conditions,
            rates=[networks.artefact(conditions).rates for networks, _ in asked],
            kernels=self._kernels,
        )

    def break_down_kernels(
        self,
        physical: PhysicalPlan,
        at: WorkloadAt,
        device: DeviceSpec,
        conditions: Conditions,
        *,
        host: Rates,
        read: PhysicalSamples | None = None,
    ) -> list[LatencyBreakdown]:
        """What :meth:`break_down` gives, of each graph, where the kernels and the host are known.

        Args:
            physical: The kernels of forward graphs, or of whole training steps, merged where they are alike.
            at: Their work at each batch.
            device: The device.
            conditions: Precision, layout, mode and runtime.
            host: Where the host's rates come from: the same for all devices that are compared.
            read: What :meth:`read_kernels` gives of the device where that is known.

        Raises:
            UnsupportedError: ``additive.regime`` where no network was trained for mode and runtime.
        """
        plan = self._plan_of(physical, conditions, lambda: physical)
        return self._time_operators(plan, at, device, conditions, host=host, read=read)

    def time_nodes(
        self,
        physical: PhysicalPlan,
        at: WorkloadAt,
        device: DeviceSpec,
        conditions: Conditions,
        *,
        read: PhysicalSamples | None = None,
    ) -> FloatArray:
        """Time for which each node keeps the device busy when it runs once, ms, without host and interval.

        Args:
            physical: As for :meth:`break_down_kernels`, and so is what follows.
            at: Their work at each batch.
            device: The device.
            conditions: Precision, layout, mode and runtime.
            read: As for :meth:`break_down_kernels`.

        Raises:
            UnsupportedError: ``additive.regime`` where no network was trained for mode and runtime.

        Shapes:
            Result: [B, n_nodes].
        """
        plan = self._plan_of(physical, conditions, lambda: physical)
        class_ms, _ = self._time_classes(self._sample(plan, at, device, conditions, read), device, conditions)
        return _of_nodes(physical, class_ms)

    def _time_operators(
        self,
        plan: CorrectedPlan,
        at: WorkloadAt,
        device: DeviceSpec,
        conditions: Conditions,
        *,
        host: Rates,
        read: PhysicalSamples | None = None,
    ) -> list[LatencyBreakdown]:
        sample, physical = self._sample(plan, at, device, conditions, read), plan.physical
        corrector = self._corrector(conditions)
        descriptors = corrector.describe(sample)
        # Networks of an architecture answer on its heirs as on it: the plain sum knows neither better.
        is_known = bool(corrector.artefact.architectures) or self.knows_architecture(device, conditions)
        kept = None if is_known else corrector.kept(descriptors)
        class_ms, paused_ms = self._time_classes(sample, device, conditions, kept=kept)
        return LatencyBreakdown.of_each(
            _of_nodes(physical, class_ms),
            physical.kernels,
            conditions=conditions,
            host=host,
            times=physical.times,
            half_widths=list(corrector.half_widths(descriptors)),
            paused=None if paused_ms is None else _of_nodes(physical, paused_ms),
        )

    def _sample(
        self,
        plan: CorrectedPlan,
        at: WorkloadAt,
        device: DeviceSpec,
        conditions: Conditions,
        read: PhysicalSamples | None,
    ) -> CorrectedSample:
        if read is None:
            (read,) = self.read_kernels(plan.physical, at, device, conditions)
        return self._corrector(conditions).read(plan, read)

    def _time_classes(
        self, sample: CorrectedSample, device: DeviceSpec, conditions: Conditions, *, kept: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray | None]:
        """Time of the nodes of each class, ms, and what of it is waited for in eager calls alone, where that is known.

        Shapes:
            Both: [B, n_classes].
        """
        physical, corrector = sample.plan.physical, self._corrector(conditions)
        class_ms = corrector.time_ms(sample, is_emulated=is_emulated(physical, device), kept=kept)
        if not corrector.artefact.architectures or conditions.mode is not Mode.INFERENCE:
            return class_ms, None
        class_ms = MORE_THAN_LEAST * class_ms
        if conditions.runtime is not Runtime.EAGER:
            return class_ms, None
        captured_us = 1e3 * class_ms / np.maximum(physical.launches, 1.0)
        paused_ms = physical.launches * (EAGER_WAIT_US - waited_us(captured_us)) / 1e3
        return class_ms + paused_ms, paused_ms

    def _corrector(self, conditions: Conditions) -> Corrector:
        regime = _regime_of(conditions)
        if regime not in self._correctors:
            raise UnsupportedError(
                f"No additive network was trained for {regime.mode} in the {regime.runtime} runtime.",
                code="additive.regime",
                cure=f"Train one with: python -m dippm.training.additive --mode {regime.mode}",
            )
        return self._correctors[regime]

    def _plan_of(
        self, asked: Graph | TrainingGraph | PhysicalPlan, conditions: Conditions, lay_out: Callable[[], PhysicalPlan]
    ) -> CorrectedPlan:
        """What does not depend on the batch, kept for what was asked for last."""
        corrector = self._corrector(conditions)
        for held, precision, by, plan in self._recent:
            if held is asked and precision is conditions.precision and by is corrector:
                return plan
        plan = corrector.prepare(lay_out())
        if len(plan.physical.classes_of_graphs) == 1:
            self._recent = [(asked, conditions.precision, corrector, plan), *self._recent[: _KEPT_PLANS - 1]]
        return plan


def _read_all(regimes: Sequence[Regime], folder: Path) -> list[tuple[AdditiveArtefact, Mapping[str, Float32Array]]]:
    paths = [path for regime in regimes if (path := manifest_path(regime, folder)).exists()]
    return [(AdditiveArtefact.read(path), read_tensors(path)) for path in paths]


def _of_nodes(physical: PhysicalPlan, of_classes: FloatArray) -> FloatArray:
    """A figure of each class for each of its nodes; of_classes: [B, n_classes]; result: [B, n_nodes]."""
    # Views are of no class: they find the last place, which takes no time.
    with_views = np.concatenate([of_classes, np.zeros((len(of_classes), 1))], axis=1)
    result: FloatArray = with_views.take(physical.class_of, axis=1, mode="wrap")
    return result


def _regime_of(conditions: Conditions) -> Regime:
    """A captured graph runs the kernels of the eager runtime."""
    return _regime(conditions.mode, is_compiled=conditions.runtime is Runtime.COMPILE)


@cache
def _regime(mode: Mode, *, is_compiled: bool) -> Regime:
    return Regime(mode=mode, runtime=Runtime.COMPILE if is_compiled else Runtime.EAGER)
