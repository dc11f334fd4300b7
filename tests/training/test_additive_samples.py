from __future__ import annotations

from pathlib import Path

import pytest

from dippm.datasets.store.label import Label
from dippm.errors import UsageError
from dippm.features.physical import COLUMNS
from dippm.training import additive_samples
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples


def test_samples_are_read_back_as_they_were_made(
    step_labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path: Path
) -> None:
    made, read = (
        build_additive_samples(step_labels, cache=training_labels[1], folder=tmp_path, parameters_m={})
        for _ in range(2)
    )
    assert len(made) == len(step_labels) == len(read)
    assert (made.arrays.node_features == read.arrays.node_features).all()
    assert made.measured_ms.tolist() == read.measured_ms.tolist()
    assert all(label.graph_hash for label in read.labels)


def test_samples_made_by_other_rules_are_made_again(
    step_labels: list[Label],
    training_labels: tuple[list[Label], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build() -> AdditiveSamples:
        return build_additive_samples(step_labels, cache=training_labels[1], folder=tmp_path, parameters_m={})

    before = build()
    monkeypatch.setattr(additive_samples, "_digest_of_rules", lambda: "other rules")
    after = build()
    assert after.key != before.key
    assert len(list(tmp_path.glob("additive-*.npz"))) == 2


def test_graphs_of_another_model_are_not_used(
    step_labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path: Path
) -> None:
    known = {label.recipe.architecture: 25.6 for label in step_labels}
    samples = build_additive_samples(step_labels, cache=training_labels[1], folder=tmp_path, parameters_m=known)
    assert not len(samples.usable)


def test_no_graph_at_all_is_an_error(step_labels: list[Label], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_additive_samples(step_labels, cache=tmp_path, folder=tmp_path, parameters_m={})
    assert caught.value.code == "samples.empty"


def test_samples_for_networks_that_read_fewer_columns(step_samples: AdditiveSamples) -> None:
    assert step_samples.reading(COLUMNS) is step_samples
    columns = (COLUMNS[5], COLUMNS[2])
    fewer = step_samples.reading(columns)
    assert fewer.arrays.node_features.tolist() == step_samples.arrays.node_features[:, [5, 2]].tolist()
    # What is kept of other columns is not taken for theirs.
    assert fewer.key != step_samples.key
    assert fewer.key != step_samples.reading(columns[::-1]).key
