from __future__ import annotations

import numpy as np
import pytest

from dippm.training.additive_protocol import HeldOut
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.additive_tables import HEADER, Rows, breakdown_tables, error_row, join, worst_section

_NONE = np.zeros(0)


def _quarter(distance: np.ndarray) -> np.ndarray:
    return np.full(len(distance), np.log(1.25))


def _held(test: list[int], predicted_ms: list[float]) -> HeldOut:
    return HeldOut(
        validation=_NONE.astype(np.int64),
        validation_ms=_NONE,
        validation_distance=_NONE,
        test=np.array(test, dtype=np.int64),
        test_ms=np.array(predicted_ms),
        test_distance=0.1 * np.array(predicted_ms),
    )


def test_a_sample_tested_several_times_counts_with_its_mean() -> None:
    rows = join([_held([4, 2], [10.0, 1.0]), _held([4, 7], [20.0, 5.0])])
    assert rows.chosen.tolist() == [2, 4, 7]
    assert rows.predicted_ms.tolist() == [1.0, 15.0, 5.0]
    assert rows.distance == pytest.approx([0.1, 1.5, 0.5])
    assert rows.where(np.array([False, True, False])).chosen.tolist() == [4]
    assert len(join([]).chosen) == 0


@pytest.fixture(name="rows")
def _rows(step_samples: AdditiveSamples) -> Rows:
    """Every prediction a fifth too high, the first twice as high."""
    chosen = step_samples.usable
    predicted = 1.2 * step_samples.measured_ms[chosen]
    predicted[0] *= 2 / 1.2
    return Rows(chosen=chosen, predicted_ms=predicted, distance=np.zeros(len(chosen)))


def test_a_row_of_errors_by_hand(step_samples: AdditiveSamples, rows: Rows) -> None:
    found = dict(zip(HEADER, error_row("all", "10", step_samples, rows, None), strict=True))
    count = len(rows.chosen)
    assert (found["protocol"], found["goal %"], found["rows"]) == ("all", "10", str(count))
    assert float(found["mean %"]) == pytest.approx((20 * (count - 1) + 100) / count, abs=0.06)
    assert float(found["median %"]) == pytest.approx(20, abs=0.06)
    assert found["in interval %"] == found["median half-width %"] == "-"
    # Half-widths of 25 % hold all but the first.
    found = dict(zip(HEADER, error_row("all", "", step_samples, rows, _quarter), strict=True))
    assert float(found["in interval %"]) == pytest.approx(100 * (count - 1) / count, abs=0.06)
    assert found["median half-width %"] == "25.0"


def test_the_worst_stand_first(step_samples: AdditiveSamples, rows: Rows) -> None:
    section = worst_section("Worst", step_samples, rows)
    (table,) = section.tables
    errors = [float(line[table.header.index("error %")]) for line in table.rows]
    assert errors[0] == 100.0
    assert len(errors) == min(20, len(rows.chosen))
    first = step_samples.labels[int(rows.chosen[0])]
    assert table.rows[0][table.header.index("batch")] == str(first.recipe.batch)


def test_errors_by_batch_leave_out_what_has_too_few_rows(step_samples: AdditiveSamples, rows: Rows) -> None:
    layout, batch, _ = breakdown_tables(step_samples, rows, _quarter, caption="held out")
    assert layout.caption == "held out"
    assert [line[0] for line in layout.rows] == ["nchw"]
    batches = [step_samples.labels[position].recipe.batch for position in rows.chosen.tolist()]
    assert sum(int(line[HEADER.index("rows")]) for line in batch.rows) <= len(batches)
    assert all(int(line[HEADER.index("rows")]) >= 20 for line in (*layout.rows, *batch.rows))
