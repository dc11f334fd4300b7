import math
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
    ("change", "named"),
    [
        ({"outcome": "splendid"}, "outcome must be one of ok, "),
        ({"engine": "steam"}, "engine must be one of torch, "),
        ({"arguments": "{"}, "arguments must be JSON"),
        ({"arguments": "[1]"}, "describe no model"),
        ({"inputs": "[[1]]"}, "describe no model"),
        ({"batch": None}, "batch must be a whole number of 0 or more"),
        ({"batch": 0}, "batch size must be 1 or more"),
        ({"batch": "8"}, "batch must be a whole number"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"batch": math.nan}, "batch must be a whole number"),
        ({"repeat": True}, "repeat must be a whole number"),
        ({"mode": "dreaming"}, "mode must be one of"),
        ({"mode": 3}, "mode must be a text"),
        ({"latency_ms": -1.0}, "latency_ms must be a finite number of 0 or more, or empty"),
        ({"latency_ms": "fast"}, "latency_ms .*'fast'"),
        ({"latency_std_ms": "0.1"}, "latency_std_ms .*'0.1'"),
        ({"energy_j": -0.1}, "energy_j"),
        ({"energy_j": math.inf}, "energy_j"),
        ({"duration_s": math.nan}, "duration_s"),
        ({"temperature_c": -math.inf}, "temperature_c must be a finite number, or empty"),
        ({"timed_runs": -1}, "timed_runs"),
        ({"device": None}, "device must be a text"),
    ],
)
def test_a_row_that_is_no_label_is_refused(
    change: dict[str, object], named: str, make_label: Callable[..., Label]
) -> None:
    with pytest.raises(UsageError, match=f"^Row 7 is no label: .*{named}") as caught:
        row_to_label({**label_to_row(make_label()), **change}, name="Row 7")
    assert caught.value.code == "label.invalid"


def test_a_row_without_a_column_is_refused(make_label: Callable[..., Label]) -> None:
    row = label_to_row(make_label())
    del row["device"]
    with pytest.raises(UsageError, match="lacks the column device") as caught:
        row_to_label(row)
    assert caught.value.code == "label.invalid"


def test_what_other_programs_make_of_a_row_is_read(make_label: Callable[..., Label]) -> None:
    label = make_label(latency_ms=7.0, energy_j=None)
    row = label_to_row(label)
    assert row_to_label({**row, "latency_ms": 7, "energy_j": math.nan, "context_mb": math.nan, "batch": 8.0}) == label
    assert row_to_label({**row, "temperature_c": -3}).measurement.state.temperature_c == -3.0
