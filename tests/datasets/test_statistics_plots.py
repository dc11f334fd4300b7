import random
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets import statistics_plots
from dippm.datasets.statistics_plots import plot_distributions
from dippm.datasets.store.label import Label
from dippm.errors import MissingExtraError, UsageError
from dippm.measuring.measurement import Outcome

pytest.importorskip("matplotlib")
Maker = Callable[..., Label]


@pytest.fixture
def labels(make_label: Maker) -> list[Label]:
    draw = random.Random(1)  # noqa: S311
    labels = [
        make_label(
            number,
            family=f"family {number % 3}",
            latency_ms=10 ** draw.uniform(-1, 3),
            energy_j=None if number % 5 else draw.uniform(0.0, 9.0),
        )
        for number in range(60)
    ]
    training = Conditions.parse(mode="training", precision="amp-bf16", optimizer="sgd")
    return [*labels, make_label(1, conditions=training, energy_j=0.0), make_label(2, outcome=Outcome.FAILED)]


def test_one_file_for_each_device_mode_and_precision(labels: list[Label], tmp_path: Path) -> None:
    files = plot_distributions(iter(labels), tmp_path / "plots")
    assert [file.name for file in files] == [
        "a100-sxm4-40gb-inference-fp32.svg",
        "a100-sxm4-40gb-training-amp-bf16.svg",
    ]
    for file in files:
        assert ET.parse(file).getroot().tag.endswith("svg")  # noqa: S314


def test_the_same_labels_make_the_same_file(labels: list[Label], tmp_path: Path) -> None:
    import matplotlib as mpl

    (first, _) = plot_distributions(labels, tmp_path / "first")
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black"}):
        (second, _) = plot_distributions(labels, tmp_path / "second")
        assert mpl.rcParams["font.size"] == 20
    assert first.read_bytes() == second.read_bytes()
    assert b"date" not in first.read_bytes()
    (other, _) = plot_distributions([*labels[1:]], tmp_path / "other")
    assert other.read_bytes() != first.read_bytes()


def test_what_cannot_be_drawn(
    labels: list[Label], make_label: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code_of(labels: list[Label], folder: Path) -> str:
        with pytest.raises(UsageError) as caught:
            plot_distributions(labels, folder)
        return caught.value.code

    assert code_of([make_label(outcome=Outcome.FAILED)], tmp_path) == "plot.empty"
    (tmp_path / "file").write_text("")
    assert code_of(labels, tmp_path / "file") == "plot.unwritable"
    monkeypatch.setattr(statistics_plots, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        plot_distributions(labels, tmp_path)
