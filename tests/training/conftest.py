"""Samples to train on: made-up labels of small networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.energy import KernelWork, PowerModel
from dippm.datasets.graph_samples import GraphSamples, assign_parts, build_samples
from dippm.datasets.store.label import Label
from dippm.datasets.training_samples import TrainingSamples, build_training_samples
from dippm.devices import DeviceSpec, find_device
from dippm.predictors.board_load import BoardLoad
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples
from dippm.training.power_fit import PowerPoint
from dippm.training.settings import TrainingSettings


@pytest.fixture(scope="session")
def samples(labelled_models: tuple[list[Label], Path]) -> GraphSamples:
    labels, cache = labelled_models
    return build_samples(labels, cache)


@pytest.fixture(scope="session")
def parts(samples: GraphSamples):
    return assign_parts(samples)


@pytest.fixture(scope="session")
def settings() -> TrainingSettings:
    return TrainingSettings(hidden=8, epochs=4, batch_size=8, learning_rate=0.01, dropout=0.2, accelerator="cpu")


@pytest.fixture(scope="session")
def step_labels(training_labels: tuple[list[Label], Path]) -> list[Label]:
    """Labels of training steps on a card that the catalogue knows."""
    labels, _ = training_labels
    return [replace(label, measurement=replace(label.measurement, device="GeForce RTX 3090")) for label in labels]


@pytest.fixture(scope="session")
def step_samples(
    step_labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory
) -> AdditiveSamples:
    folder = tmp_path_factory.mktemp("additive")
    return build_additive_samples(step_labels, cache=training_labels[1], folder=folder, parameters_m={})


@pytest.fixture(scope="session")
def two_devices(step_samples: AdditiveSamples) -> AdditiveSamples:
    """Every other row as if another card had been measured."""
    names = ("GeForce RTX 3090", "GeForce RTX 4090")
    labels = tuple(
        replace(label, measurement=replace(label.measurement, device=names[position % 2]))
        for position, label in enumerate(step_samples.labels)
    )
    return replace(step_samples, labels=labels)


@pytest.fixture(scope="session")
def additive_settings() -> AdditiveSettings:
    return AdditiveSettings(members=2, epochs=2, width=8)


@pytest.fixture(scope="session")
def steps(training_labels: tuple[list[Label], Path]) -> TrainingSamples:
    labels, folder = training_labels
    return build_training_samples(labels, folder)


@pytest.fixture(scope="session")
def step_parts(steps: TrainingSamples):
    return assign_parts(steps)


@pytest.fixture(scope="session")
def card_labels(own_device: tuple[list[Label], DeviceSpec]) -> list[Label]:
    """Labels of a card that the catalogue does not know, see ``own_device``."""
    return own_device[0]


@pytest.fixture(scope="session")
def card(own_device: tuple[list[Label], DeviceSpec]) -> DeviceSpec:
    """That card."""
    return own_device[1]


@dataclass(frozen=True, kw_only=True)
class PowerPoints:
    """Calls whose power a known model gives."""

    model: PowerModel = field(
        default_factory=lambda: PowerModel(idle=0.2, running_pj=12.0, flop_pj=3.0, tensor_pj=1.5, byte_pj=20.0)
    )
    epoch_share: float = 0.93
    boards: tuple[str, ...] = ("A100-SXM4-40GB", "P100-PCIE-16GB", "V100-SXM2-32GB", "H100 SXM")
    # Two forms of the one chip that has tensor cores, and one chip without.
    siblings: tuple[str, ...] = ("A100-SXM4-40GB", "A100-PCIE-40GB", "P100-PCIE-16GB")

    def make(self, boards: Sequence[str] | None = None, *, scale: float = 1.0) -> list[PowerPoint]:
        """Calls that draw what ``model`` says, times a factor; some of them means over an epoch."""
        points = []
        for board in boards or self.boards:
            device = find_device(board)
            for busy, plain, tensor, moved, of_epoch in (
                (1.0, 0.0, 0.0, 0.1, False),
                (1.0, 0.4, 0.0, 0.2, True),
                (1.0, 0.1, 0.3, 0.5, False),
                (0.5, 0.3, 0.0, 0.9, False),
                (0.9, 0.0, 0.2, 0.1, True),
            ):
                busy_s = busy * 0.01
                load = BoardLoad(
                    kernel_share=np.array([[busy]]),
                    work=KernelWork(
                        runs=np.ones(1),
                        plain_flops=np.array([[plain * busy_s * device.peak_tflops["fp32"] * 1e12]]),
                        tensor_flops=np.array([[tensor * busy_s * device.peak_tflops.get("fp16_tensor", 0.0) * 1e12]]),
                        traffic_bytes=np.array([[moved * busy_s * device.bandwidth_gb_s * 1e9]]),
                        # Blocks on three of four multiprocessors, which count where the rates are lower.
                        results=np.full((1, 1), 0.75 * 8192 * device.sm_count),
                    ),
                )
                power = float(load.power_w(self.model, device, np.array([10.0]))[0])
                power *= self.epoch_share if of_epoch else 1.0
                share = scale * power / device.board_power_w
                points.append(
                    PowerPoint(device=device, load=load, latency_ms=10.0, power_share=share, is_of_epoch=of_epoch)
                )
        return points


@pytest.fixture
def power_points() -> PowerPoints:
    return PowerPoints()
