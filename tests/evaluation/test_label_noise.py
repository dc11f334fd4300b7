"""The labels' own noise, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.graph_samples import GraphSamples
from dippm.datasets.store.label import Label
from dippm.evaluation.label_noise import find_noise, summarize_dataset


def test_a_constant_factor_is_taken_out(make_label: Callable[..., Label]) -> None:
    first = [make_label(number, latency_ms=10.0) for number in range(3)]
    # 20 % faster throughout, and one of them 10 % off beside it.
    other = [make_label(n, latency_ms=v, source="release 2") for n, v in enumerate((8.0, 8.0, 8.8))]
    (noise,) = find_noise(first, [*first, *other])
    assert (noise.other, noise.metric, noise.pairs) == ("release 2", "latency_ms", 3)
    assert noise.shift_percent == pytest.approx(-20.0)
    assert noise.difference_percent == pytest.approx(10.0 / 3)


def test_second_measurements_are_pairs_too(make_label: Callable[..., Label]) -> None:
    labels = [
        make_label(0, memory_mb=100.0, latency_ms=1.0),
        make_label(0, memory_mb=110.0, latency_ms=1.0, repeat=1),
        make_label(1, memory_mb=100.0, latency_ms=1.0),
    ]
    memory, latency = find_noise(labels, labels)
    assert (memory.other, memory.metric, memory.pairs) == ("second measurement", "memory_mb", 1)
    assert memory.shift_percent == pytest.approx(10.0)
    assert latency.difference_percent == pytest.approx(0.0)


def test_second_measurements_are_compared_with_and_without_what_their_process_held(
    make_label: Callable[..., Label],
) -> None:
    labels = [
        replace(label, measurement=replace(label.measurement, context_mb=400.0 + 100 * label.repeat))
        for repeat in range(2)
        for label in [make_label(row, repeat=repeat, memory_mb=500.0 + 100 * repeat) for row in range(3)]
    ]
    memory = [noise for noise in find_noise(labels, labels) if noise.metric == "memory_mb"]
    assert [noise.other for noise in memory] == [
        "second measurement",
        "second measurement, the machine's state taken out",
    ]
    assert [noise.shift_percent for noise in memory] == pytest.approx([20.0, 0.0])


def test_other_devices_and_conditions_are_no_noise(make_label: Callable[..., Label]) -> None:
    first = [make_label(0)]
    others = [
        make_label(0, source="b", device="H200"),
        make_label(0, source="b", conditions=Conditions.parse(precision="amp")),
        make_label(5, source="b"),
    ]
    assert find_noise(first, [*first, *others]) == ()


def test_a_data_set_is_summarised(make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]) -> None:
    labels = [make_label(0, batch=1), make_label(0, batch=2), make_label(1, family="bert", memory_mb=5.0)]
    samples = replace(make_samples(labels, operators=[3, 3, 9]), unread={"x": "no"})
    summary = summarize_dataset(samples, ())
    assert (summary.rows, summary.models, summary.families, summary.unread) == (3, 2, 2, 1)
    assert summary.operators == (3, 3, 9)
    assert summary.metrics == ("memory_mb", "latency_ms")
    assert summary.conditions == "inference, fp32, nchw, eager"
