import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares, cpu_seconds
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.errors import DippmError, UsageError
from dippm.measuring.measurement import SoftwareStack
from dippm.predictors.cpu_calibration import CpuCalibration
from dippm.training import cpu
from dippm.training.cpu import CpuRows, build, fit_memory, fit_shares, log_errors, main, read_rows

RATES = CpuRates(gflops=100.0, bandwidth_gb_s=10.0, dispatch_us=1.0, threads=1)
TRUTH = {family: CpuShares(compute=0.2, stream=1.5, dispatch=20.0) for family in CpuFamily}
TRUTH[CpuFamily.ELEMENTWISE] = CpuShares(compute=0.1, stream=3.0, dispatch=5.0)


@pytest.fixture(name="labelled", scope="module")
def _labelled(labelled_models: tuple[list[Label], Path]) -> tuple[list[Label], Path]:
    """Labels as a machine with known coefficients would give them."""
    labels, folder = labelled_models
    rows = read_rows(labels, folder)
    latency_ms = 1e3 * cpu_seconds(rows.work, RATES, TRUTH).sum(axis=1)
    added_mb = 1.5 * rows.weights_mb + 2.0 * rows.others_mb + 1.0
    measured = []
    for label, latency, added in zip(labels, latency_ms, added_mb, strict=True):
        measurement = replace(
            label.measurement,
            latency_ms=float(latency),
            memory_mb=300.0 + float(added),
            context_mb=300.0,
            software=SoftwareStack(framework="torch 2", threads=1),
        )
        measured.append(replace(label, measurement=measurement))
    return measured, folder


@pytest.fixture(name="rows", scope="module")
def _rows(labelled: tuple[list[Label], Path]) -> CpuRows:
    return read_rows(*labelled)


def test_rows_hold_work_memory_and_figures(rows: CpuRows) -> None:
    count = len(rows.labels)
    assert rows.work.flops.shape == (count, len(CpuFamily))
    assert np.all(rows.weights_mb > 0)
    assert np.all(rows.others_mb > 0)
    np.testing.assert_allclose(rows.added_mb, 1.5 * rows.weights_mb + 2.0 * rows.others_mb + 1.0)
    part = rows.of(rows.labels[3:7])
    assert part.labels == rows.labels[3:7]
    assert np.array_equal(part.work.launches, rows.work.launches[3:7])


def test_the_fit_finds_what_made_the_latencies(rows: CpuRows) -> None:
    shares = fit_shares(rows, RATES)
    assert np.abs(log_errors(rows, RATES, shares)).mean() < 0.03
    # Of a family that no model has nothing is learned: it stays where it started.
    assert shares[CpuFamily.LSTM] == CpuShares(**{name: start for name, (start, _, _) in cpu.BOUNDS.items()})


def test_rows_far_off_hardly_move_the_fit(rows: CpuRows) -> None:
    labels = [
        replace(label, measurement=replace(label.measurement, latency_ms=30 * label.measurement.latency_ms))  # type: ignore[operator]
        if number % 12 == 0
        else label
        for number, label in enumerate(rows.labels)
    ]
    shares = fit_shares(replace(rows, labels=tuple(labels)), RATES)
    assert np.median(np.abs(log_errors(rows, RATES, shares))) < 0.1


def test_the_fit_finds_what_made_the_memory(rows: CpuRows) -> None:
    memory = fit_memory(rows)
    assert memory.activations == pytest.approx(2.0, rel=0.02)
    assert memory.fixed_mb == pytest.approx(1.0, rel=0.02)


def test_an_artefact_from_a_table_of_labels(
    labelled: tuple[list[Label], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels, folder = labelled
    table, out = tmp_path / "labels.parquet", tmp_path / "cpu.json"
    export_parquet(labels, table)
    tries = iter([replace(RATES, gflops=60.0), RATES, replace(RATES, dispatch_us=2.0)] + [RATES] * 17)
    monkeypatch.setattr(cpu, "measure_cpu_rates", lambda: next(tries))
    words = ["--labels", str(table), "--graphs", str(folder), "--out", str(out), "--seed", "3", "--measure-rates"]
    main(words)
    made = CpuCalibration.read(out)
    assert made.rates == RATES
    assert made.latency_spread < 0.1
    assert made.memory.spread < 0.05
    assert made.memory.context_mb == 300
    assert "Processor" in made.labels
    provenance = json.loads(capsys.readouterr().out)["provenance"]
    assert provenance == made.provenance
    assert provenance["command"].endswith(f"--labels {table} --seed 3")
    assert provenance["rows"]["fit"] > provenance["rows"]["test"] > 0
    assert sum(provenance["rows"].values()) == provenance["families_left_out"]["rows"] == len(labels)
    assert set(provenance["family_mape_percent"]) == {"plain", "deep"}
    assert build(table, graphs=folder, rates=RATES, seed=3) == made


def test_rates_of_other_threads_are_refused(labelled: tuple[list[Label], Path], tmp_path: Path) -> None:
    labels, folder = labelled
    export_parquet(labels, tmp_path / "labels.parquet")
    with pytest.raises(UsageError, match="OMP_NUM_THREADS=1") as caught:
        build(tmp_path / "labels.parquet", graphs=folder, rates=replace(RATES, threads=8), seed=0)
    assert caught.value.code == "rates.threads"


def test_a_model_that_cannot_be_read_is_named(labelled: tuple[list[Label], Path], tmp_path: Path) -> None:
    recipe = replace(labelled[0][0].recipe, architecture="timm:no_such_net")
    with pytest.raises(DippmError, match=recipe.model_key) as caught:
        read_rows([replace(labelled[0][0], recipe=recipe)], tmp_path)
    assert caught.value.code == "graphs.unread"
    assert list(GraphCache(tmp_path).keys()) == []
