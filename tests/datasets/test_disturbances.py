"""What the state of machine and process added to labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from dippm.datasets.disturbances import even_out_contexts, even_out_pace, take_out_disturbances
from dippm.datasets.selection import merge_repeats
from dippm.datasets.store.label import Label

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_ROWS = 300
_ROW_S = 0.25


def test_contexts_are_evened_out_and_what_the_model_added_stays(make_label) -> None:
    def with_context(label: Label, context_mb: float | None) -> Label:
        return replace(label, measurement=replace(label.measurement, context_mb=context_mb))

    held = [(700.0, 400.0), (900.0, 500.0), (650.0, 600.0), (800.0, None)]
    labels = [with_context(make_label(row, memory_mb=memory), context) for row, (memory, context) in enumerate(held)]
    even = [label.measurement for label in even_out_contexts(labels)]
    assert [measurement.memory_mb for measurement in even] == [800.0, 900.0, 550.0, 800.0]
    assert [measurement.context_mb for measurement in even] == [500.0, 500.0, 500.0, None]
    assert even_out_contexts(labels[3:]) == labels[3:]
    assert even_out_contexts([]) == []


def measure_in_passes(
    make_label: Callable[..., Label], slowness: Callable[[float], float], *, passes: int, noise: float = 0.0
) -> list[Label]:
    """Configurations of 1 to 300 ms, each pass in an order of its own, on a machine that is so slow at a time in s."""
    rng = np.random.default_rng(1)
    labels, seconds = [], 0.0
    for repeat in range(passes):
        rows = list(range(1, _ROWS + 1))
        if repeat:
            rng.shuffle(rows)
        for row in rows:
            label = make_label(
                row, repeat=repeat, latency_ms=row * slowness(seconds) * (1 + float(rng.normal(scale=noise)))
            )
            at = (_BEGIN + timedelta(seconds=int(seconds))).isoformat()
            labels.append(replace(label, measurement=replace(label.measurement, measured_at=at, duration_s=0.0)))
            seconds += _ROW_S
        seconds += 100
    return labels


def times_of(labels: Sequence[Label]) -> list[float]:
    return [label.measurement.latency_ms or 0.0 for label in labels]


def error_of(labels: Sequence[Label]) -> float:
    """Mean error of the merged labels in %, a constant factor taken out."""
    ratio = np.array(times_of(merge_repeats(labels))) / np.arange(1, _ROWS + 1)
    return 100 * float(np.abs(ratio / np.median(ratio) - 1).mean())


def busy(seconds: float) -> float:
    """A neighbour that comes for 20 s of each minute."""
    return 1.1 if seconds % 60 < 20 else 1.0


@pytest.mark.parametrize(("noise", "before", "after"), [(0.0, 2.0, 0.4), (0.02, 2.5, 1.5)])
def test_a_neighbour_that_comes_and_goes_is_taken_out(make_label, noise: float, before: float, after: float) -> None:
    labels = measure_in_passes(make_label, busy, passes=3, noise=noise)
    even = even_out_pace(labels)
    assert [label.key for label in even] == [label.key for label in labels]
    assert error_of(labels) > before
    assert error_of(even) < after


def test_the_order_in_which_labels_are_given_does_not_matter(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)
    by_time = {label.key: label for label in even_out_pace(labels)}
    # Those of the same second keep their order, as they have in a store.
    shuffled = sorted(labels, key=lambda label: label.measurement.measured_at, reverse=True)
    error = [
        abs(by_time[label.key].measurement.latency_ms / label.measurement.latency_ms - 1)  # type: ignore[operator]
        for label in even_out_pace(shuffled)
    ]
    assert np.median(error) < 0.01


def test_a_quiet_machine_is_left_as_it_is(make_label) -> None:
    labels = measure_in_passes(make_label, lambda _: 1.0, passes=3)
    assert times_of(even_out_pace(labels)) == pytest.approx(times_of(labels), rel=1e-9)


def test_few_second_measurements_tell_of_the_noise_alone(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)[: _ROWS + _ROWS // 4]
    assert even_out_pace(labels) == labels
    assert even_out_pace([]) == []


def test_labels_without_a_time_stay(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)
    labels[5] = replace(labels[5], measurement=replace(labels[5].measurement, latency_ms=None))
    assert even_out_pace(labels)[5] == labels[5]


def test_of_a_row_that_does_not_say_when_it_was_measured_nothing_is_known(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)
    for place, said in ((5, ""), (6, "yesterday")):
        labels[place] = replace(labels[place], measurement=replace(labels[place].measurement, measured_at=said))
    even = even_out_pace(labels)
    assert even[5:7] == labels[5:7]
    assert even[7] != labels[7]


def test_a_time_without_a_zone_is_that_of_greenwich(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)
    naive = [
        replace(label, measurement=replace(label.measurement, measured_at=label.measurement.measured_at[:19]))
        if place % 2
        else label
        for place, label in enumerate(labels)
    ]
    assert times_of(even_out_pace(naive)) == times_of(even_out_pace(labels))


def test_machines_that_measured_side_by_side_are_left_alone(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)

    def lasting(seconds: float) -> list[Label]:
        return [replace(label, measurement=replace(label.measurement, duration_s=seconds)) for label in labels]

    assert even_out_pace(lasting(3 * _ROW_S)) == lasting(3 * _ROW_S)
    assert times_of(even_out_pace(lasting(0.9 * _ROW_S))) == times_of(even_out_pace(labels))


def test_noise_alone_is_hardly_made_worse(make_label) -> None:
    labels = measure_in_passes(make_label, lambda _: 1.0, passes=2, noise=0.03)
    assert error_of(even_out_pace(labels)) < 1.12 * error_of(labels)


def test_what_passes_differ_by_afterwards_is_their_noise(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2, noise=0.03)
    first, second = (np.log(each) for each in np.split(np.array(times_of(even_out_pace(labels))), 2))
    rows = [label.recipe.key for label in labels[_ROWS:]]
    place = {label.recipe.key: place for place, label in enumerate(labels[:_ROWS])}
    difference = second - first[[place[row] for row in rows]]
    # Not less than two measurements of 3 % differ by: no row has a part in its own pace.
    assert float(np.std(difference)) > 0.03 * 2**0.5


def test_no_memory_is_no_measurement(make_label) -> None:
    labels = [make_label(0, memory_mb=0.0), make_label(1, memory_mb=900.0)]
    labels = [replace(label, measurement=replace(label.measurement, context_mb=400.0)) for label in labels]
    assert [label.measurement.memory_mb for label in even_out_contexts(labels)] == [0.0, 900.0]


def test_both_are_taken_out_together(make_label) -> None:
    labels = measure_in_passes(make_label, busy, passes=2)
    labels = [
        replace(label, measurement=replace(label.measurement, context_mb=400.0 + place % 3))
        for place, label in enumerate(labels)
    ]
    assert take_out_disturbances(labels) == even_out_pace(even_out_contexts(labels))
    assert {label.measurement.context_mb for label in take_out_disturbances(labels)} == {401.0}
