"""How fast hosts of an architecture's cards launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Mode
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.errors import UsageError
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.training import architecture_host
from dippm.training.architecture_host import find_factor, main, waiting_rows


@pytest.mark.parametrize("true", [0.3, 0.8, 1.0, 2.5])
def test_the_factor_is_where_nothing_is_off(true: float) -> None:
    assert find_factor(lambda factor: np.log(factor / true)) == pytest.approx(true, rel=0.01)


def test_only_calls_that_wait_for_their_host_tell(
    card_labels: list[Label], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture_host, "choose_labels", list)
    monkeypatch.setattr(architecture_host, "load_label_graph", lambda label, cache: SimpleNamespace(graph=label))
    scattered = replace(card_labels[0].measurement, latency_ms=1.0, latency_std_ms=0.5)

    def of(**conditions: Any) -> Label:
        configuration = replace(card_labels[0].configuration, conditions=Conditions.parse(**conditions))
        return replace(card_labels[0], configuration=configuration, measurement=scattered)

    rows = [of(), of(runtime="cuda-graph"), of(mode="training", optimizer="sgd")]
    steady = replace(rows[0], measurement=replace(scattered, latency_std_ms=1e-4))
    assert [label for label, _ in waiting_rows([*rows, steady], GraphCache(tmp_path))] == [rows[0]]


@dataclass
class Row:
    """A row of an H200."""

    measurement: Any


def test_half_of_what_one_machine_says_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(Row(SimpleNamespace(device="H200")), None)] * 20
    monkeypatch.setattr(architecture_host, "read_parquet", lambda path: [])
    monkeypatch.setattr(architecture_host, "waiting_rows", lambda labels, cache: rows)

    def score(predictor: Any, graph: Any, label: Any) -> Any:
        hosts = predictor._calibrations[Mode.INFERENCE].rates.hosts
        return SimpleNamespace(latency=SimpleNamespace(predicted=hosts["9.0"], measured=0.64))

    monkeypatch.setattr(architecture_host, "score_label", score)
    labels = tmp_path / "labels.parquet"
    labels.write_bytes(b"")
    main(["--labels", str(labels), "--cache", str(tmp_path), "--out", str(tmp_path)])
    written, shipped = Calibration.read(tmp_path / ARTEFACT_PATH.name), Calibration.read()
    assert written.rates.hosts["9.0"] == pytest.approx(0.8, rel=0.01)
    assert written.rates.hosts["10.0"] == written.rates.hosts["9.0"]
    assert written.provenance["hosts"]["rows"] == 20  # type: ignore[index]
    assert written.provenance["hosts"]["factor of this machine"] == pytest.approx(0.64, rel=0.02)  # type: ignore[index]
    assert replace(written, rates=shipped.rates, provenance=shipped.provenance) == shipped
    rows.clear()
    with pytest.raises(UsageError, match="20"):
        main(["--labels", "labels.parquet", "--cache", str(tmp_path), "--out", str(tmp_path)])
