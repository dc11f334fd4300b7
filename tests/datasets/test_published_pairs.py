"""The table of training steps that others have timed eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dippm.costs.precision import Precision
from dippm.datasets.published_pairs import read_memory_pairs, read_step_pairs
from dippm.errors import UsageError

FOLDER = Path(__file__).parents[2] / "data" / "published"


def test_the_table_is_read_whole() -> None:
    pairs = read_step_pairs(FOLDER)
    assert len(pairs) == 38
    first = pairs[0]
    assert (first.model, first.precision, first.batch, first.sequence) == (
        "timm:convmixer_768_32", Precision.TF32, 32, None,
    )  # fmt: skip
    assert first.gain == pytest.approx(365.0423 / 341.3299)
    assert {pair.sequence for pair in pairs if pair.model.startswith("hf:Albert")} == {512}


def test_every_pair_is_of_plausible_steps() -> None:
    pairs = read_step_pairs(FOLDER)
    assert all(pair.compiled_ms > 0.0 and 0.0 < pair.eager_ms < 10_000.0 and pair.batch > 0 for pair in pairs)
    assert all(0.7 < pair.gain < 2.5 for pair in pairs)
    assert all((pair.sequence is None) == pair.model.startswith("timm:") for pair in pairs)
    named = {(pair.source, pair.model, pair.precision) for pair in pairs}
    assert len(named) == len(pairs)


def test_the_table_of_memory_is_read_whole() -> None:
    pairs = read_memory_pairs(FOLDER)
    assert len(pairs) == len({(pair.model, pair.precision) for pair in pairs}) == 26
    assert (pairs[0].model, pairs[0].batch, pairs[0].sequence, pairs[0].ratio) == (
        "hf:AlbertForQuestionAnswering", 4, 512, 1.2403,
    )  # fmt: skip
    assert {pair.sequence for pair in pairs if not pair.model.startswith("hf:")} == {None}


@pytest.mark.parametrize(
    ("read", "name"), [(read_step_pairs, "compiled_steps"), (read_memory_pairs, "compiled_memory")]
)
def test_a_folder_without_the_table_is_named(tmp_path: Path, read: Callable[[Path], object], name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        read(tmp_path)
    assert caught.value.code == "data.missing"
