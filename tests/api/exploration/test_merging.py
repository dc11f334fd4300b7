"""Warnings of many models, told once."""

from __future__ import annotations

import pytest

from dippm.api.exploration.merging import merge_texts


def test_the_figures_of_all_become_a_range() -> None:
    texts = [f"{share} % of 1,200 MiB are guessed." for share in ("12", "9.5", "100")]
    texts.insert(1, "No.")
    assert merge_texts(texts) == [("9.5 to 100 % of 1,200 MiB are guessed.", 3), ("No.", 1)]
    assert merge_texts([]) == []


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["Conv2d is new.", "Conv3d is new."], "Conv2d is new."),
        (["layer1.conv is new.", "layer2.conv is new."], "layer1.conv is new."),
        (["torch 2.1.0 is new.", "torch 2.2.1 is new."], "torch 2.1.0 to 2.2.1 is new."),
        (["It takes 9.", "It takes 11."], "It takes 9 to 11."),
    ],
)
def test_numbers_in_names_are_no_figures(texts: list[str], merged: str) -> None:
    assert merge_texts(texts) == [(merged, 2)]
