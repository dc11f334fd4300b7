"""Which labels a device is adapted by, and what they say of its host."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.measuring.measurement import Outcome, SoftwareStack
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import REGIMES
from dippm.training.device_labels import choose_device, choose_labels


def test_labels_that_teach_nothing_are_counted(
    card_labels: list[Label], card: DeviceSpec, labelled_models: tuple[list[Label], Path], tmp_path: Path
) -> None:
    refused = replace(card_labels[0], measurement=replace(card_labels[0].measurement, outcome=Outcome.OUT_OF_MEMORY))
    fp32 = replace(card_labels[1], configuration=replace(card_labels[1].configuration, conditions=Conditions()))
    chosen = choose_labels([*card_labels, refused, fp32], card, AdditivePredictor.load())
    assert chosen.left_out == {"did not end well": 1, "no network for inference, fp32, nchw, eager": 1}
    assert {str(regime): len(rows) for regime, rows in chosen.by_regime.items()} == {"inference": len(card_labels)}
    repeated = replace(card_labels[0], repeat=1)
    assert len(choose_labels([*card_labels, repeated], card, AdditivePredictor.load()).by_regime[REGIMES[0]]) == len(
        card_labels
    )


def test_the_device_is_that_of_the_labels(card_labels: list[Label], card: DeviceSpec) -> None:
    assert choose_device(card_labels, card) == (card_labels, card)
    with pytest.raises(UnsupportedError) as unknown:
        choose_device(card_labels, None)
    assert unknown.value.code == "device.unknown"
    assert "no GPU that the catalogue knows" in str(unknown.value)
    assert "--device-file" in str(unknown.value)
    known = [
        replace(label, measurement=replace(label.measurement, device="GeForce RTX 4090")) for label in card_labels[:3]
    ]
    assert choose_device([*card_labels, *known], "4090") == (known, find_device("RTX 4090"))
    for wanted, code in (
        (None, "labels.ambiguous"),
        ("T4", "labels.none"),
        (find_device("T4"), "labels.none"),
    ):
        with pytest.raises(UsageError) as caught:
            choose_device([*card_labels, *known], wanted)
        assert caught.value.code == code


def test_a_file_without_a_row_is_said(card: DeviceSpec) -> None:
    for wanted in (None, "T4", card):
        with pytest.raises(UsageError, match=r"^There are no labels: .*dippm dataset measure") as caught:
            choose_device([], wanted)
        assert caught.value.code == "labels.none"


def test_networks_of_the_architecture_learn_from_labels_of_their_software(
    card_labels: list[Label], card: DeviceSpec
) -> None:
    hopper, shipped = find_device("H200"), AdditivePredictor.load()
    chosen = choose_labels(card_labels, hopper, shipped)
    assert {str(regime) for regime in chosen.by_regime} == {"inference-9.0"}
    old = [
        replace(label, measurement=replace(label.measurement, software=SoftwareStack(framework="torch 2.1")))
        for label in card_labels
    ]
    assert {str(regime) for regime in choose_labels(old, hopper, shipped).by_regime} == {"inference"}
    captured = [
        replace(label, configuration=replace(label.configuration, conditions=Conditions.parse(runtime="cuda-graph")))
        for label in card_labels
    ]
    assert {str(regime) for regime in choose_labels(captured, hopper, shipped).by_regime} == {"inference-9.0"}
    assert choose_labels(captured, card, shipped).left_out == {
        "no network for inference, fp32, nchw, cuda-graph": len(captured)
    }


@pytest.mark.parametrize("context_mb", [math.nan, 1e7, -1.0])
def test_a_context_that_cannot_be_is_no_label(card_labels: list[Label], card: DeviceSpec, context_mb: float) -> None:
    wrong = replace(card_labels[0], measurement=replace(card_labels[0].measurement, context_mb=context_mb))
    (reason,) = choose_labels([wrong, *card_labels[1:]], card, AdditivePredictor.load()).left_out
    assert "context" in reason
