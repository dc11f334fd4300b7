"""What spaces leave open."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dippm.api.exploration.choices import count_points, draw, key_of, parse_choices
from dippm.errors import UsageError


def test_all_ways_of_writing_a_choice() -> None:
    choices = parse_choices(
        {
            "steps": range(2, 9, 3),
            "rising": [16, 32, 64],
            "names": ["relu", "gelu"],
            "switch": [False, True],
            "whole": {"from": 1, "to": 3},
            "even": {"from": 2, "to": 7, "step": 2},
            "tenths": {"from": 0.1, "to": 0.4, "step": 0.1},
            "free": {"from": 0.5, "to": 2.0},
            "if_relu": {"of": ["a", "b"], "if": {"names": "relu"}},
        }
    )
    assert [choice.options for choice in choices] == [
        (2, 5, 8), (16, 32, 64), ("relu", "gelu"), (False, True), (1, 2, 3), (2, 4, 6), (0.1, 0.2, 0.3, 0.4), (),
        ("a", "b"),
    ]  # fmt: skip
    assert [choice.is_ordered for choice in choices] == [True, True, False, False, True, True, True, True, False]
    assert (choices[7].low, choices[7].high) == (0.5, 2.0)
    assert choices[8].is_open({"names": "relu"})
    assert not choices[8].is_open({"names": "gelu"})
    assert count_points(choices) == math.inf


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ([], "choices"),
        ({"a b": [1]}, "choices"),
        ({"a": 3}, "choices.a"),
        ({"a": []}, "choices.a"),
        ({"a": [1, None]}, "choices.a[1]"),
        ({"a": [1, 2, 1]}, "choices.a[2]"),
        ({"a": range(3, 3)}, "choices.a"),
        ({"a": {"from": 1}}, "choices.a.to"),
        ({"a": {"from": 3, "to": 1}}, "choices.a.to"),
        ({"a": {"from": 1, "to": 3, "step": 0}}, "choices.a.step"),
        ({"a": {"from": 0.0, "to": 1.0, "step": 1e-9}}, "choices.a"),
        ({"a": {"from": float("nan"), "to": 3}}, "choices.a.from"),
        ({"a": {"of": [1], "to": 3}}, "choices.a.to"),
        ({"a": {"form": 1, "to": 3}}, "choices.a.form"),
        ({"a": {"of": [1], "if": {"b": 1}}}, "choices.a.if"),
        ({"b": [1, 2], "a": {"of": [1], "if": {"b": 3}}}, "choices.a.if.b"),
        ({"b": [False, True], "a": {"of": [1], "if": {"b": 1}}}, "choices.a.if.b"),
    ],
)
def test_a_wrong_choice_is_named_by_its_path(written: object, path: str) -> None:
    with pytest.raises(UsageError, match="The space's") as caught:
        parse_choices(written)
    assert caught.value.code == "space.invalid"
    assert f"The space's {path} must be" in str(caught.value)


def test_drawing_keeps_to_conditions_and_to_what_is_kept() -> None:
    choices = parse_choices(
        {
            "has_gate": [False, True],
            "gate": {"from": 1, "to": 9, "if": {"has_gate": True}},
            "free": {"from": 0.0, "to": 1.5},
        }
    )
    generator = np.random.default_rng(0)
    drawn = [draw(choices, generator) for _ in range(200)]
    assert all(("gate" in point) == point["has_gate"] for point in drawn)
    assert {point["gate"] for point in drawn if "gate" in point} == set(range(1, 10))
    assert all(0 <= float(point["free"]) <= 1.5 for point in drawn)
    assert draw(choices, generator, {"has_gate": False, "gate": 3, "free": 0.25}) == {"has_gate": False, "free": 0.25}
    assert draw(choices, generator, {"has_gate": True, "gate": 3, "free": 0.25})["gate"] == 3


def test_points_are_counted_along_conditions() -> None:
    choices = parse_choices(
        {"kind": ["a", "b", "c"], "only_a": {"from": 1, "to": 5, "if": {"kind": "a"}}, "always": [1, 2]}
    )
    assert count_points(choices) == (5 + 1 + 1) * 2


def test_equal_choices_have_one_key() -> None:
    assert key_of({"a": 1, "b": 0.1}) == key_of({"b": 0.1, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": True})
