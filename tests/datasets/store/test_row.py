from collections.abc import Callable

import pytest

from dippm.datasets.store.label import Label
from dippm.datasets.store.row import COLUMNS, SCHEMA_VERSION, label_to_row, row_to_label
from dippm.errors import UsageError

# What schema 1 is. Stored files have these columns: another set is another schema.
SCHEMA_1 = (
    "key source repeat model_key graph_hash collection family architecture arguments inputs batch engine precision "
    "mode layout runtime optimizer outcome message device measured_at duration_s build_s warmup_runs timed_runs "
    "latency_ms latency_std_ms latency_median_ms latency_min_ms latency_max_ms device_time_ms energy_j "
    "energy_source energy_window_s idle_power_w memory_mb memory_source context_mb allocated_peak_mb "
    "reserved_peak_mb sm_clock_mhz memory_clock_mhz temperature_c power_limit_w throttle_reasons driver cuda cudnn "
    "framework python platform host_cpu threads"
)


def test_the_columns_are_those_of_the_schema_version() -> None:
    assert SCHEMA_VERSION == 1
    assert " ".join(column.name for column in COLUMNS) == SCHEMA_1


def test_kinds_follow_the_fields() -> None:
    by_name = {column.name: (column.kind, column.is_optional) for column in COLUMNS}
    assert by_name["latency_ms"] == (float, True)
    assert by_name["threads"] == (int, False)
    assert by_name["outcome"] == (str, False)
    assert by_name["optimizer"] == (str, True)


def test_there_and_back(rich_label: Label, make_label: Callable[..., Label]) -> None:
    for label in (rich_label, make_label(), make_label(latency_ms=None)):
        row = label_to_row(label)
        assert " ".join(row) == SCHEMA_1
        back = row_to_label(row)
        assert back == label
        assert back.key == label.key == row["key"]


def test_named_inputs_keep_their_order(rich_label: Label) -> None:
    named = row_to_label(label_to_row(rich_label)).recipe.inputs.named
    assert named is not None
    assert list(named) == ["z_last", "a_first"]


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_refused(figure: float, make_label: Callable[..., Label]) -> None:
    with pytest.raises(UsageError, match="latency_ms") as caught:
        label_to_row(make_label(latency_ms=figure))
    assert caught.value.code == "label.not_finite"


def test_texts_that_no_database_holds_are_cleaned(make_label: Callable[..., Label]) -> None:
    assert label_to_row(make_label(message="a\0b\udc80c"))["message"] == "a\ufffdb?c"


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "splendid"},
        {"arguments": "{"},
        {"inputs": "[[1]]"},
        {"batch": None},
        {"mode": "dreaming"},
        {"latency_ms": -1.0},
        {"energy_j": -0.1},
        {"timed_runs": -1},
    ],
)
def test_a_row_that_is_no_label_is_refused(change: dict[str, object], make_label: Callable[..., Label]) -> None:
    row = label_to_row(make_label())
    with pytest.raises(UsageError):
        row_to_label({**row, **change})
    del row["device"]
    with pytest.raises(UsageError) as caught:
        row_to_label(row)
    assert caught.value.code == "label.invalid"
