"""Labels of a device beside what the shipped predictor says of them: what an adaptation learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.kernels.model import load_kernel_model
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import load_label_graph
from dippm.datasets.selection import is_disturbed, is_steady
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec
from dippm.errors import DippmError
from dippm.predictors.adapted import calibration_path
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, AdditiveArtefact, manifest_path, read_tensors
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction
from dippm.training.additive_fit import FittedAdditive
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples, graph_that_ran
from dippm.training.additive_shipped import load_fitted
from dippm.training.device_labels import host_ms

__all__ = ["DeviceRows", "ShippedPredictor", "fit_host_ratio"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_LEAST_HOST_ROWS = 5
# The rows that wait for the host and its rate depend on each other; the second pass changes next to nothing.
_PASSES = 2


class ShippedPredictor:
    """What answers before an adaptation, with the graphs of the labels.

    Args:
        device: The device of the labels.
        folder: Folder of the networks.
        cache: Folder of the graph cache.
    """

    def __init__(self, device: DeviceSpec, folder: Path, cache: Path) -> None:
        self.device, self.folder, self.cache = device, folder, GraphCache(cache)
        self.calibrations = {mode: Calibration.read(calibration_path(mode, ARTEFACT_FOLDER)) for mode in Mode}
        self.networks = AdditivePredictor.load(folder)
        self._physics = PhysicsPredictor(
            self.calibrations[Mode.INFERENCE],
            load_kernel_model(),
            training=self.calibrations[Mode.TRAINING],
            additive=self.networks,
        )
        self._answers: dict[str, Prediction | None] = {}

    def answer(self, label: Label) -> Prediction | None:
        """What is said of the label's call; None where there is no answer."""
        if label.key not in self._answers:
            self._answers[label.key] = self._ask(label)
        return self._answers[label.key]

    def _ask(self, label: Label) -> Prediction | None:
        cached = load_label_graph(label, self.cache)
        if cached is None:
            return None
        try:
            (prediction,) = self._physics.predict(
                as_measured(cached.graph, label),
                batches=[label.recipe.batch],
                devices=[self.device],
                conditions=label.configuration.conditions,
                software=software_of(label.measurement.software.framework),
            )
        except DippmError:
            return None
        return prediction

    def busy_ms(self, label: Label) -> float:
        """The time for which the device is busy with the label's call, by the networks that answer for it, ms.

        Raises:
            LookupError: Its graph was never read.
        """
        cached, conditions = load_label_graph(label, self.cache), label.configuration.conditions
        if cached is None:
            raise LookupError(label.recipe.architecture)
        networks = self.networks.on(self.device, conditions, software_of(label.measurement.software.framework))
        breakdown = networks.break_down(
            graph_that_ran(cached.graph, label), [label.recipe.batch], self.device, conditions
        )
        if conditions.runtime is Runtime.CUDA_GRAPH:
            return float(breakdown.latency_ms[0])
        return float(breakdown.busy_ms[0].sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceRows:
    """Samples of one regime.

    Args:
        artefact: What the networks of the regime were trained on.
        tensors: Their weights.
        fitted: The same, to be trained on.
        samples: The samples, with the measured time.
        answers: What the shipped predictor says of each.
        busy_ms: For how long the networks that answer say that the device is busy, waits between kernels included.
        network_ms: What of that the networks learned: that of an architecture's own is the least of captured calls.
        launched_ms: When the host, as fast as is assumed beside such a device, has launched everything.

    Shapes:
        All arrays: [S].
    """

    artefact: AdditiveArtefact
    tensors: Mapping[str, Float32Array]
    fitted: FittedAdditive
    samples: AdditiveSamples
    answers: tuple[Prediction, ...]
    busy_ms: FloatArray
    network_ms: FloatArray
    launched_ms: FloatArray

    @classmethod
    def of(cls, labels: Sequence[Label], artefact: AdditiveArtefact, shipped: ShippedPredictor) -> DeviceRows:
        """Read labels of one regime that have a graph and an answer.

        Raises:
            UsageError: ``samples.empty`` where no operator of theirs has costs.
            UnsupportedError: ``artefact.columns``.
        """
        tensors, cache = read_tensors(manifest_path(artefact.regime, shipped.folder)), shipped.cache
        samples = build_additive_samples(
            labels,
            cache=cache.folder,
            folder=cache.folder / "samples",
            parameters_m={},
            rates=artefact.rates,
            device=shipped.device,
        ).reading(artefact.columns)
        fitted = load_fitted(artefact, tensors)
        network_ms = fitted.predict_ms(samples, np.arange(len(samples)))
        # Networks for all architectures say for how long the device is busy.
        is_whole = not artefact.architectures
        return cls(
            artefact=artefact,
            tensors=tensors,
            fitted=fitted,
            samples=samples,
            answers=tuple(answer for label in samples.labels if (answer := shipped.answer(label)) is not None),
            busy_ms=network_ms if is_whole else np.array([shipped.busy_ms(label) for label in samples.labels]),
            network_ms=network_ms,
            launched_ms=host_ms(
                samples.labels, cache, shipped.calibrations[artefact.mode].rates.host_on(shipped.device)
            ),
        )

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def before_ms(self) -> FloatArray:
        """Time of each by the shipped predictor, [S]."""
        return np.array([answer.latency_ms for answer in self.answers])

    @cached_property
    def is_inside(self) -> BoolArray:
        """Whether the shipped predictor's interval holds each, [S]."""
        ends = np.array([answer.intervals["latency_ms"] for answer in self.answers])
        measured_ms = self.samples.measured_ms
        return np.asarray((ends[:, 0] <= measured_ms) & (measured_ms <= ends[:, 1]))

    @cached_property
    def is_eager(self) -> BoolArray:
        """Whether the host launched each kernel by itself, in a way whose rate is known well enough, [S]."""
        eager = [label.configuration.conditions.runtime is Runtime.EAGER for label in self.samples.labels]
        return np.array(eager, dtype=bool)

    @property
    def learned(self) -> AdditiveSamples:
        """The samples with what the networks learn of them: what is waited for beside it takes as much of the time."""
        return replace(self.samples, measured_ms=self.samples.measured_ms * self.network_ms / self.busy_ms)

    def call_ms(self, networks: FittedAdditive, chosen: IndexArray) -> FloatArray:
        """Time for which the device is busy with chosen calls by other networks, [len(chosen)]."""
        share = self.busy_ms[chosen] / self.network_ms[chosen]
        return networks.predict_ms(self.samples, chosen) * share

    def busy(self, host_ratio: float) -> IndexArray:
        """Rows that do not wait for the host, as their scatter tells, or else the networks' time."""
        return np.flatnonzero(~self._waits(host_ratio, by_scatter=True))

    def waiting(self, host_ratio: float) -> IndexArray:
        """Eager rows of which nothing says that they do not wait for the host."""
        return np.flatnonzero(self._waits(host_ratio, by_scatter=False) & self.is_eager)

    def _waits(self, host_ratio: float, *, by_scatter: bool) -> BoolArray:
        """Which rows wait for the host; of those that scatter it is asked whether that alone tells so."""
        result = self.launched_ms * host_ratio > self.busy_ms
        for place, label in enumerate(self.samples.labels):
            # What a captured graph scatters by, the host did not add.
            if label.configuration.conditions.runtime is Runtime.CUDA_GRAPH:
                result[place] = by_scatter and is_disturbed(label.measurement)
                continue
            steady = is_steady(label.measurement)
            if steady is not None and (steady or by_scatter):
                result[place] = not steady
        return result


def fit_host_ratio(regimes: Sequence[DeviceRows]) -> float:
    """How many times as long the device's own host takes as the one that is assumed: 1 where too few rows wait for it.

    It is one host in all modes.
    """
    ratio = 1.0
    for _ in range(_PASSES):
        ratios = [
            (rows.samples.measured_ms[waits] / rows.launched_ms[waits])
            for rows in regimes
            for waits in [rows.waiting(ratio)]
        ]
        if sum(map(len, ratios)) < _LEAST_HOST_ROWS:
            break
        ratio = float(np.median(np.concatenate(ratios)))
    return ratio
