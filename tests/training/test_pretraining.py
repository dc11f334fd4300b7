"""Labels that a network learns from first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.datasets.graph_samples import GraphSamples, Part, assign_parts, build_samples
from dippm.errors import UsageError
from dippm.training.fit_network import EpochReport, fit_network
from dippm.training.pretraining import Pretraining
from dippm.training.train_model import load_pretraining, predict_with, train_model


@pytest.fixture(name="others", scope="module")
def _others(labelled_models) -> GraphSamples:
    """The same models on a device that is three times as slow."""
    labels, cache = labelled_models
    slower = [
        replace(
            label,
            measurement=replace(
                label.measurement, device="Slow processor", latency_ms=3.0 * (label.measurement.latency_ms or 0.0)
            ),
        )
        for label in labels
    ]
    return build_samples(slower, cache)


def test_what_the_training_is_tested_on_is_not_learned_first(samples, others) -> None:
    parts = assign_parts(samples)
    first = Pretraining(samples=others, epochs=1).parts(samples, parts, seed=0)
    is_held = (parts == Part.VALIDATION) | (parts == Part.TEST)
    # The samples are of the same labels, in the same order.
    assert (first[is_held] == Part.NONE).all()
    assert set(first[~is_held].tolist()) == {Part.TRAINING, Part.VALIDATION}
    assert (first == Part.TRAINING).sum() > 4 * (first == Part.VALIDATION).sum()


def test_nor_are_families_that_it_leaves_out(samples, others) -> None:
    parts = np.full(len(samples), Part.TRAINING, dtype=np.int8)
    last = samples.families == samples.families[-1]
    # One model of a family is tested on, and none is trained on.
    parts[last] = Part.NONE
    parts[-1] = Part.TEST
    first = Pretraining(samples=others, epochs=1).parts(samples, parts, seed=0)
    assert (first[last] == Part.NONE).all()
    assert (first[~last] != Part.NONE).all()


def test_a_network_goes_on_from_what_it_learned_first(samples, parts, settings, others, tmp_path) -> None:
    pretraining = Pretraining(samples=others, epochs=3)
    seen: list[EpochReport] = []
    # A training that changes next to nothing.
    still = replace(settings, epochs=1, learning_rate=1e-9, dropout=0.0)
    fitted = fit_network(samples, parts, still, tmp_path / "still", pretraining=pretraining, on_epoch=seen.append)
    assert [(report.epoch, report.epochs) for report in seen] == [(1, 3), (2, 3), (3, 3), (1, 1)]
    alone = fit_network(
        others,
        pretraining.parts(samples, parts, seed=still.seed),
        replace(still, epochs=3, patience=3),
        tmp_path / "alone",
    )
    assert np.array_equal(fitted.scaling.target_mean, alone.scaling.target_mean)
    assert (alone.learning_rate, fitted.learning_rate) == (1e-9, pytest.approx(1e-10))
    for name, values in alone.weights.items():
        assert fitted.weights[name] == pytest.approx(values, abs=1e-6)


def test_resume_is_a_run_without_a_break(samples, parts, settings, others, tmp_path) -> None:
    pretraining = Pretraining(samples=others, epochs=2)
    whole = fit_network(samples, parts, settings, tmp_path / "whole", pretraining=pretraining)

    def cut_after(count: int):
        reports: list[EpochReport] = []

        def on_epoch(report: EpochReport) -> None:
            reports.append(report)
            if len(reports) == count:
                raise KeyboardInterrupt

        return on_epoch

    for epochs in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            fit_network(
                samples,
                parts,
                settings,
                tmp_path / "cut",
                pretraining=pretraining,
                resume=(tmp_path / "cut").is_dir(),
                on_epoch=cut_after(epochs),
            )
    again = fit_network(samples, parts, settings, tmp_path / "cut", pretraining=pretraining, resume=True)
    assert again.epochs == whole.epochs
    for name, values in whole.weights.items():
        assert np.array_equal(again.weights[name], values)


def test_a_folder_holds_one_training(samples, parts, settings, others, tmp_path) -> None:
    brief = replace(settings, epochs=1)
    fit_network(samples, parts, brief, tmp_path, pretraining=Pretraining(samples=others, epochs=1))
    for other in (None, Pretraining(samples=others, epochs=2)):
        with pytest.raises(UsageError) as caught:
            fit_network(samples, parts, brief, tmp_path, pretraining=other, resume=True)
        assert caught.value.code == "train.other_run"


def test_the_predictor_says_what_it_learned_first(samples, settings, others, tmp_path) -> None:
    from dippm.predictors.network_artefact import NetworkArtefact

    train_model(samples, replace(settings, epochs=1), tmp_path, pretraining=Pretraining(samples=others, epochs=1))
    first = NetworkArtefact.read(tmp_path).provenance["pretraining"]
    assert first["samples"] == len(others)
    assert first["devices"] == ["Slow processor"]
    assert first["epochs"] == 1


def test_trees_learn_nothing_first(samples, parts, settings, others, tmp_path) -> None:
    trees, first = replace(settings, model="gbdt"), Pretraining(samples=others, epochs=1)
    with pytest.raises(UsageError) as caught:
        train_model(samples, trees, tmp_path / "refused", pretraining=first)
    assert caught.value.code == "train.no_pretraining"
    # In a comparison they stand beside networks that do.
    compared = predict_with(samples, parts, trees, tmp_path / "compared", pretraining=first)
    assert np.array_equal(compared, predict_with(samples, parts, trees, tmp_path / "alone"))


def test_labels_to_learn_first_are_of_the_same_conditions(labelled_models, samples) -> None:
    from dippm.costs.conditions import Conditions

    labels, cache = labelled_models
    conditions = labels[0].configuration.conditions
    found = load_pretraining(labels, conditions, cache, epochs=2)
    assert found.samples.key == samples.key
    assert found.key == f"{samples.key}-2"
    with pytest.raises(UsageError) as caught:
        load_pretraining(labels, Conditions.parse(precision="amp"), cache, epochs=2)
    assert caught.value.code == "labels.none"
    with pytest.raises(UsageError) as caught:
        load_pretraining(labels, conditions, cache, epochs=0)
    assert caught.value.code == "train.settings"
