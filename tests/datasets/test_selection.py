"""Which labels make a data set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.selection import LabelSelection, is_disturbed, is_steady, merge_repeats, read_targets
from dippm.errors import UsageError
from dippm.measuring.configuration import Engine
from dippm.measuring.measurement import Measurement, Outcome

_TRAINING = Conditions.parse(mode="training", optimizer="adam")


def test_only_what_was_asked_for_and_ended_well(make_label) -> None:
    wanted = make_label(0)
    labels = [
        wanted,
        make_label(1, outcome=Outcome.OUT_OF_MEMORY),
        make_label(2, conditions=Conditions.parse(precision="amp")),
        make_label(3, conditions=_TRAINING),
        replace(wanted, configuration=replace(wanted.configuration, engine=Engine.ONNXRUNTIME)),
    ]
    assert LabelSelection().choose(iter(labels)) == [wanted]
    # Without an optimizer, that of the labels.
    assert LabelSelection(conditions=Conditions.parse(mode="training")).choose(labels) == [labels[3]]
    sgd = Conditions.parse(mode="training", optimizer="sgd")
    with pytest.raises(UsageError) as caught:
        LabelSelection(conditions=sgd).choose(labels)
    assert caught.value.code == "labels.none"
    assert "A100-SXM4-40GB, training" in str(caught.value)


@pytest.mark.parametrize(
    ("others", "what"),
    [({"device": "H200"}, "device"), ({"source": "somebody"}, "source"), ({"conditions": _TRAINING}, "optimizer")],
)
def test_several_of_a_kind_must_be_told_apart(make_label, others, what) -> None:
    conditions = Conditions.parse(mode="training", optimizer="sgd") if what == "optimizer" else Conditions()
    labels = [make_label(0, conditions=conditions), make_label(1, **others)]
    asked = Conditions.parse(mode="training") if what == "optimizer" else Conditions()
    with pytest.raises(UsageError, match=f"2 {what}s") as caught:
        LabelSelection(conditions=asked).choose(labels)
    assert caught.value.code == "labels.ambiguous"


def test_device_by_its_whole_name_or_a_part(make_label) -> None:
    labels = [make_label(0, device="H100-PCIE-80GB"), make_label(1, device="H100"), make_label(2, device="A100")]
    assert LabelSelection(device="h100").choose(labels) == [labels[1]]
    assert LabelSelection(device="pcie").choose(labels) == [labels[0]]


def test_of_two_measurements_the_mean_is_taken(make_label) -> None:
    first, other = make_label(0, latency_ms=2.0, energy_j=None), make_label(1)
    second = make_label(0, repeat=1, latency_ms=4.0, energy_j=3.0, memory_mb=None)
    merged = merge_repeats([first, other, second])
    assert [label.key for label in merged] == [first.key, other.key]
    found = merged[0].measurement
    assert (found.latency_ms, found.energy_j, found.memory_mb) == (3.0, 3.0, first.measurement.memory_mb)


def test_of_three_measurements_the_middle_one_is_taken(make_label) -> None:
    rows = [make_label(0, repeat=repeat, latency_ms=ms) for repeat, ms in enumerate((2.0, 9.0, 2.5))]
    assert merge_repeats(rows)[0].measurement.latency_ms == 2.5


def test_what_was_not_measured_is_nan(make_label) -> None:
    targets = read_targets([make_label(0), make_label(1, energy_j=None, memory_mb=0.0)])
    np.testing.assert_array_equal(targets, [[1240.0, 7.25, 1.5], [np.nan, 7.25, np.nan]])
    assert read_targets([]).shape == (0, 3)


@pytest.mark.parametrize(
    ("latency_ms", "std_ms", "expected"),
    [(10.0, 0.05, True), (10.0, 0.07, False), (10.0, None, None), (None, 0.1, None)],
)
def test_calls_that_scatter_little_did_not_wait_for_the_host(
    latency_ms: float | None, std_ms: float | None, expected: bool | None
) -> None:
    measurement = Measurement(
        outcome=Outcome.OK, device="H200", measured_at="", latency_ms=latency_ms, latency_std_ms=std_ms
    )
    assert is_steady(measurement) is expected


@pytest.mark.parametrize(("std_ms", "expected"), [(0.01, False), (0.99, False), (1.01, True), (None, False)])
def test_captured_calls_that_scatter_by_more_than_a_tenth_were_disturbed(std_ms: float | None, expected: bool) -> None:
    measurement = Measurement(outcome=Outcome.OK, device="H200", measured_at="", latency_ms=10.0, latency_std_ms=std_ms)
    assert is_disturbed(measurement) is expected
