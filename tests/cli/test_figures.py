"""Figures as words: counts, intervals and shapes."""

from __future__ import annotations

import pytest

from dippm.cli.figures import format_count, format_interval, format_number_of, format_shape


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 "), (999, "999 "), (1_500, "1.5 k"), (4.09e9, "4.09 G"), (2.5e13, "25 T")]
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


def test_one_thing_is_not_several() -> None:
    assert [format_number_of("operator", count) for count in (0, 1, 1204)] == [
        "0 operators", "1 operator", "1,204 operators"]  # fmt: skip


def test_intervals_and_shapes() -> None:
    assert format_interval((1.25, 12345.0)) == "1.25 – 12,345"
    assert format_shape((8, 64, 56, 56)) == "8×64×56×56"
    assert format_shape(()) == "scalar"
