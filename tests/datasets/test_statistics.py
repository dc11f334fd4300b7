import json
from collections.abc import Callable

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.statistics import Distribution, NoiseFloor, find_noise_floors, summarize
from dippm.datasets.store.label import Label
from dippm.measuring.measurement import Outcome

Maker = Callable[..., Label]


def test_groups_count_rows_models_and_outcomes(make_label: Maker) -> None:
    amp = Conditions.parse(precision="amp")
    labels = [
        make_label(1, batch=1, latency_ms=1.0, graph_hash="a"),
        make_label(1, batch=2, latency_ms=3.0, graph_hash="a", energy_j=None),
        make_label(2, batch=2, outcome=Outcome.OUT_OF_MEMORY, latency_ms=None, message="no room"),
        make_label(3, family="vgg"),
        make_label(1, conditions=amp, graph_hash="a"),
    ]
    statistics = summarize(iter(labels))
    assert (statistics.rows, statistics.models, statistics.graphs) == (5, 3, 1)
    assert statistics.outcomes == {"ok": 4, "out-of-memory": 1}
    assert [(group.precision, group.family) for group in statistics.groups] == [
        ("amp", "resnet"),
        ("fp32", "resnet"),
        ("fp32", "vgg"),
    ]
    group = statistics.groups[1]
    assert (group.device, group.mode, group.rows, group.models) == ("A100-SXM4-40GB", "inference", 3, 2)
    assert group.outcomes == {"ok": 2, "out-of-memory": 1}
    assert group.latency_ms is not None
    assert (group.latency_ms.count, group.latency_ms.smallest, group.latency_ms.median) == (2, 1.0, 2.0)
    assert group.energy_j is not None
    assert group.energy_j.count == 1
    assert json.loads(json.dumps(statistics.to_dict()))["rows"] == 5


def test_quantiles() -> None:
    assert Distribution.of([]) is None
    assert Distribution.of([float(value) for value in range(101)]) == Distribution(
        count=101, smallest=0.0, q05=5.0, q25=25.0, median=50.0, q75=75.0, q95=95.0, largest=100.0
    )


def test_figures_of_rows_that_did_not_end_well_are_left_out(make_label: Maker) -> None:
    statistics = summarize([make_label(1, outcome=Outcome.NOT_FINITE, message="NaN in the output")])
    assert statistics.groups[0].latency_ms is None


def test_failures_are_grouped_whatever_numbers_they_name(make_label: Maker) -> None:
    labels = [
        make_label(1, outcome=Outcome.OUT_OF_MEMORY, message="Tried to allocate 2.50 GiB at 0x7f12"),
        make_label(2, outcome=Outcome.OUT_OF_MEMORY, message="Tried to allocate 16 GiB at 0x8f00"),
        make_label(3, outcome=Outcome.FAILED, message="no such operator"),
        make_label(4),
    ]
    statistics = summarize(labels)
    assert [(group.outcome, group.message, group.rows) for group in statistics.failures] == [
        ("out-of-memory", "Tried to allocate # GiB at #", 2),
        ("failed", "no such operator", 1),
    ]
    assert statistics.failures[0].example == f"dippm-zoo/resnet/{labels[0].recipe.key}"


def test_noise_floor_from_pairs(make_label: Maker) -> None:
    labels = [
        make_label(1, repeat=1, latency_ms=11.0, energy_j=None),  # the second may come first
        make_label(1, latency_ms=9.0, energy_j=2.0),
        make_label(2, latency_ms=10.0, energy_j=1.0, memory_mb=None),
        make_label(2, latency_ms=10.0, energy_j=3.0, memory_mb=None, repeat=1),
        make_label(3),  # measured once
        make_label(4, repeat=1),  # its first measurement failed
        make_label(4, outcome=Outcome.FAILED, latency_ms=None),
        make_label(1, device="H200", latency_ms=5.0, repeat=1),  # another device is another thing
    ]
    expected = (
        NoiseFloor(
            device="A100-SXM4-40GB",
            metric="latency_ms",
            pairs=2,
            mean_difference_percent=pytest.approx(10.0),
            largest_difference_percent=pytest.approx(20.0),
        ),
        NoiseFloor(
            device="A100-SXM4-40GB",
            metric="energy_j",
            pairs=1,
            mean_difference_percent=pytest.approx(100.0),
            largest_difference_percent=pytest.approx(100.0),
        ),
        NoiseFloor(
            device="A100-SXM4-40GB",
            metric="memory_mb",
            pairs=1,
            mean_difference_percent=0.0,
            largest_difference_percent=0.0,
        ),
    )
    assert find_noise_floors(labels) == expected
    assert summarize(labels).noise == expected


def test_no_labels() -> None:
    statistics = summarize([])
    assert (statistics.rows, statistics.groups, statistics.noise) == (0, (), ())
