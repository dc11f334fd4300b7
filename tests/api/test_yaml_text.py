"""What is written as YAML is what a YAML reader reads."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dippm.api.yaml_text import to_yaml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["yes", "No", "~", "null", "1", "1.5", "1e3", "0x1f", "2026-01-01", "a: b", "- a", "#", "", " a", "a\n", "a\nb\n",
     "=", "<<", "12:30", "mig-1g.5gb", "a\n\n", "\ta\n", "  a\nb\n", "true", "é", "\u2028", "\x85"],
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3), max_leaves=12
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=4) | st.lists(VALUES, max_size=4))
def test_reading_gives_it_back(value: dict[str, object] | list[object]) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": {"b": [1, {"c": "d", "e": []}]}}, "a:\n  b:\n    - 1\n    - c: d\n      e: []\n"),
        ({"config.yaml": "version: v1\nx: 1\n"}, "config.yaml: |\n  version: v1\n  x: 1\n"),
        ({"nvidia.com/mig-1g.5gb": 1}, "nvidia.com/mig-1g.5gb: 1\n"),
        ({"on": "1"}, '"on": "1"\n'),
        ({}, "{}\n"),
    ],
)
def test_it_looks_like_what_people_write(value: dict[str, object], text: str) -> None:
    assert to_yaml(value) == text
