"""From labels to an artefact that answers as the network that was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import Regime, manifest_path, write_tensors
from dippm.predictors.additive_novelty import Novelty
from dippm.training.additive import train_additive
from dippm.training.additive_ablation import ABLATIONS
from dippm.training.additive_devices import leave_out_device
from dippm.training.additive_fit import AdditiveSettings, FeatureScale, fit_additive
from dippm.training.additive_labels import device_parts, family_folds, random_parts
from dippm.training.additive_novelty import describe_samples
from dippm.training.additive_protocol import predict_families, predict_random
from dippm.training.additive_report import write_report
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples
from dippm.training.additive_tables import join

_DEVICE = "GeForce RTX 3090"
_SETTINGS = AdditiveSettings(members=2, epochs=2, width=8)


@pytest.fixture(name="labels", scope="session")
def _labels(training_labels: tuple[list[Label], Path]) -> list[Label]:
    labels, _ = training_labels
    return [replace(label, measurement=replace(label.measurement, device=_DEVICE)) for label in labels]


@pytest.fixture(name="step_samples", scope="session")
def _step_samples(
    labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory
) -> AdditiveSamples:
    folder = tmp_path_factory.mktemp("additive")
    return build_additive_samples(labels, cache=training_labels[1], folder=folder, parameters_m={})


def test_samples_are_read_back_as_they_were_made(
    labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path: Path
) -> None:
    made, read = (
        build_additive_samples(labels, cache=training_labels[1], folder=tmp_path, parameters_m={}) for _ in range(2)
    )
    assert len(made) == len(labels) == len(read)
    assert (made.arrays.node_features == read.arrays.node_features).all()
    assert made.measured_ms.tolist() == read.measured_ms.tolist()
    assert all(label.graph_hash for label in read.labels)


def test_graphs_of_another_model_are_not_used(
    labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path: Path
) -> None:
    known = {label.recipe.architecture: 25.6 for label in labels}
    samples = build_additive_samples(labels, cache=training_labels[1], folder=tmp_path, parameters_m=known)
    assert not len(samples.usable)


def test_no_graph_at_all_is_an_error(labels: list[Label], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_additive_samples(labels, cache=tmp_path, folder=tmp_path, parameters_m={})
    assert caught.value.code == "samples.empty"


def test_parts_share_no_model(step_samples: AdditiveSamples) -> None:
    parts = random_parts(step_samples, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == step_samples.usable.tolist()
    models = [{step_samples.labels[position].recipe.model_key for position in part} for part in parts]
    assert not models[0] & models[1] | models[0] & models[2] | models[1] & models[2]


def test_every_family_is_left_out_once(step_samples: AdditiveSamples) -> None:
    folds = family_folds(step_samples, folds=2)
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested.tolist()) == step_samples.usable.tolist()
    for training, test in folds:
        families = [{step_samples.labels[position].recipe.family for position in part} for part in (training, test)]
        assert not families[0] & families[1]


def test_more_folds_than_families_are_an_error(step_samples: AdditiveSamples) -> None:
    with pytest.raises(UsageError) as caught:
        family_folds(step_samples, folds=99)
    assert caught.value.code == "split.empty"


def test_columns_without_spread_say_nothing(step_samples: AdditiveSamples) -> None:
    scale = FeatureScale.fit(step_samples, step_samples.usable)
    assert (scale.factor == 0).any()
    strange = np.full((1, len(scale.mean)), 1e6, dtype=np.float32)
    scaled = scale.apply(strange)[0]
    assert not scaled[scale.factor == 0].any()
    assert np.abs(scaled).max() <= 4.0


def test_training_lowers_the_error(step_samples: AdditiveSamples) -> None:
    def error(epochs: int) -> float:
        settings = replace(_SETTINGS, epochs=epochs, members=1, width=16)
        predicted = fit_additive(step_samples, step_samples.usable, settings).predict_ms(
            step_samples, step_samples.usable
        )
        return float(np.abs(np.log(predicted / step_samples.measured_ms[step_samples.usable])).mean())

    assert error(40) < 0.5 * error(1)


def test_the_same_seed_gives_the_same_network(step_samples: AdditiveSamples) -> None:
    chosen = step_samples.usable[:16]
    first, second = (fit_additive(step_samples, chosen, _SETTINGS) for _ in range(2))
    for one, other in zip(first.members, second.members, strict=True):
        for name, values in one.state_dict().items():
            assert torch.equal(values, other.state_dict()[name])
    assert not torch.equal(first.members[0].input.weight, first.members[1].input.weight)


def test_the_artefact_answers_as_the_network_and_its_shares_add_up(
    step_samples: AdditiveSamples, training_labels: tuple[list[Label], Path], tmp_path: Path
) -> None:
    families = predict_families(step_samples, replace(_SETTINGS, members=1), folds=2, folder=tmp_path)
    artefact, tensors = train_additive(step_samples, _SETTINGS, families, data_sha256="0", command="none")
    path = manifest_path(Regime(mode=Mode.TRAINING), tmp_path)
    artefact.write(path)
    write_tensors(path, tensors)
    assert json.loads(path.read_text())["mode"] == "training"
    predictor = AdditivePredictor.load(tmp_path)
    fitted = fit_additive(step_samples, random_parts(step_samples, seed=0)[0], _SETTINGS)
    position = int(step_samples.usable[-1])
    label = step_samples.labels[position]
    cached = GraphCache(training_labels[1]).load(label.recipe.model_key, batch=label.recipe.batch)
    assert cached is not None
    step = make_training_graph(cached.graph, TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.FP32))
    times = predictor.break_down(step, [label.recipe.batch], find_device(_DEVICE), label.configuration.conditions)
    expected = float(fitted.predict_ms(step_samples, np.array([position]))[0])
    assert times.busy_ms.sum() == pytest.approx(expected, rel=1e-3)
    assert times.share_ms.sum() == pytest.approx(times.time_ms[0])
    # The same distance, from the graph and from the arrays of the training.
    descriptors = describe_samples(step_samples, fitted.scale)
    novelty = Novelty.from_tensors(tensors, distances=artefact.distances, half_widths=artefact.half_widths)
    half_width = novelty.half_width(novelty.distance(descriptors[[position]]))
    assert times.half_width == pytest.approx(half_width, rel=1e-2, abs=1e-3)


def test_a_report_has_all_protocols_and_fits_are_read_back(step_samples: AdditiveSamples, tmp_path: Path) -> None:
    settings = replace(_SETTINGS, members=1)
    held = [predict_random(step_samples, replace(settings, seed=seed), folder=tmp_path) for seed in range(2)]
    families = predict_families(step_samples, settings, folds=2, folder=tmp_path)
    again = predict_families(step_samples, settings, folds=2, folder=tmp_path)
    for one, other in zip(families, again, strict=True):
        assert one.test_ms.tolist() == other.test_ms.tolist()
    assert len(list(tmp_path.glob("predictions-*.npz"))) == 4
    devices = [leave_out_device(_two_devices(step_samples), settings, device=_DEVICE, labels=(4,))]
    others = [
        (name, join([predict_random(leave_out(step_samples), settings, folder=tmp_path)]))
        for name, leave_out in ABLATIONS.items()
    ]
    page = write_report(step_samples, held, families, others=others, devices=devices, command="made by")
    tables = [line.count("|") for line in page.splitlines() if line.startswith("|")]
    assert set(tables) == {7, 9, 11}
    for text in (
        "random, seed 1",
        "families left out, fold 1",
        "plain sum of predictor 0, all rows",
        "Twenty worst",
        "made by",
        "without messages between operators",
        f"{_DEVICE}, 4 labels",
    ):
        assert text in page


def test_a_device_left_out_teaches_nothing_and_shares_no_model(step_samples: AdditiveSamples) -> None:
    samples = _two_devices(step_samples)
    training, pool, test = device_parts(samples, device=_DEVICE, seed=0)

    def described(part: npt.NDArray[np.int64]) -> tuple[set[str], set[str]]:
        labels = [samples.labels[position] for position in part.tolist()]
        return {label.measurement.device for label in labels}, {label.graph_hash for label in labels}

    assert described(training)[0] == {"GeForce RTX 4090"}
    assert described(pool)[0] == described(test)[0] == {_DEVICE}
    assert not described(test)[1] & (described(training)[1] | described(pool)[1])


def _two_devices(samples: AdditiveSamples) -> AdditiveSamples:
    """Every other row as if another card had been measured."""
    labels = tuple(
        replace(label, measurement=replace(label.measurement, device=(_DEVICE, "GeForce RTX 4090")[position % 2]))
        for position, label in enumerate(samples.labels)
    )
    return replace(samples, labels=labels)
