import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares, cpu_seconds
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.measuring.measurement import SoftwareStack
from dippm.predictors.cpu_calibration import CpuCalibration
from dippm.training import cpu
from dippm.training.cpu import build, fit_memory, fit_shares, log_errors, main
from dippm.training.cpu_tables import RATES_FILE, CpuTable, MeasuredRates, read_rows

RATES = CpuRates(
    gflops=100.0,
    convolution_gflops=150.0,
    bandwidth_gb_s=10.0,
    cache_gb_s=30.0,
    fresh_gb_s=2.0,
    dispatch_us=1.0,
    convolution_us=40.0,
    threads=1,
)
# Another machine, with a slower library for convolutions.
OTHER = replace(RATES, gflops=60.0, convolution_gflops=30.0, bandwidth_gb_s=20.0, cache_gb_s=50.0)
TRUTH = {family: CpuShares(compute=0.2, stream=1.0, dispatch=6.0) for family in CpuFamily}
TRUTH[CpuFamily.ELEMENTWISE] = CpuShares(compute=0.1, stream=0.5, dispatch=5.0)


def label_with(labels: list[Label], folder: Path, rates: CpuRates, *, device: str) -> list[Label]:
    """Labels as a machine with known coefficients would give them."""
    rows = read_rows(labels, folder)
    latency_ms = 1e3 * cpu_seconds(rows.work, rates, TRUTH).sum(axis=1)
    added_mb = 1.5 * rows.weights_mb + 2.0 * rows.others_mb + 1.0
    measured = []
    for label, latency, added in zip(labels, latency_ms, added_mb, strict=True):
        measurement = replace(
            label.measurement,
            device=device,
            latency_ms=float(latency),
            memory_mb=300.0 + float(added),
            context_mb=300.0,
            software=SoftwareStack(framework="torch 2, timm 1", threads=1),
        )
        measured.append(replace(label, measurement=measurement))
    return measured


def as_table(labels: list[Label], folder: Path, measured: MeasuredRates) -> CpuTable:
    return CpuTable(path=Path("labels.parquet"), rows=read_rows(labels, folder), measured=measured)


@pytest.fixture(name="table", scope="module")
def _table(labelled_models: tuple[list[Label], Path]) -> CpuTable:
    labels, folder = labelled_models
    return as_table(label_with(labels, folder, RATES, device="One"), folder, MeasuredRates(rates=RATES))


@pytest.fixture(name="other", scope="module")
def _other(labelled_models: tuple[list[Label], Path]) -> CpuTable:
    labels, folder = labelled_models
    return as_table(label_with(labels, folder, OTHER, device="Other"), folder, MeasuredRates(rates=OTHER))


def test_one_fit_serves_two_machines_and_finds_what_made_the_latencies(table: CpuTable, other: CpuTable) -> None:
    fitted = fit_shares([table, other])
    for each, rates, pace in zip((table, other), fitted.rates, fitted.paces, strict=True):
        assert np.abs(log_errors(each.rows, rates, fitted.shares)).mean() < 0.03
        assert pace == pytest.approx(1.0, rel=0.1)
    # Of a family that no model has nothing is learned: it stays where it started.
    start = CpuShares(**{name: start for name, (start, _, _) in cpu.BOUNDS.items()})
    assert fitted.shares[CpuFamily.LSTM] == start


def test_a_machine_that_gave_less_than_its_rates_has_a_pace(table: CpuTable, other: CpuTable) -> None:
    boasting = {name: 2.0 * value if not name.endswith("_us") else value / 2.0 for name, value in asdict(OTHER).items()}
    rates = CpuRates(**{**boasting, "threads": 1})
    fitted = fit_shares([table, table, replace(other, measured=MeasuredRates(rates=rates))])
    assert fitted.paces[2] / fitted.paces[0] == pytest.approx(0.5, rel=0.2)
    assert fitted.rates[2].gflops / rates.gflops == pytest.approx(fitted.paces[2], rel=1e-3)
    assert rates.dispatch_us / fitted.rates[2].dispatch_us == pytest.approx(fitted.paces[2], rel=1e-3)


def test_a_rate_that_was_never_measured_is_fitted(table: CpuTable, other: CpuTable) -> None:
    guessed = MeasuredRates(rates=replace(OTHER, convolution_gflops=60.0), missing=("convolution_gflops",))
    fitted = fit_shares([table, replace(other, measured=guessed)])
    # It is pulled to what is usual, and some tens of rows do not take it all the way.
    assert fitted.rates[1].convolution_gflops / fitted.rates[1].gflops < 0.9
    known = fit_shares([table, replace(other, measured=MeasuredRates(rates=guessed.rates))])
    assert known.rates[1].convolution_gflops == pytest.approx(known.rates[1].gflops, rel=1e-3)


def test_rows_far_off_hardly_move_the_fit(table: CpuTable) -> None:
    labels = [
        replace(label, measurement=replace(label.measurement, latency_ms=30 * label.measurement.latency_ms))  # type: ignore[operator]
        if number % 12 == 0
        else label
        for number, label in enumerate(table.rows.labels)
    ]
    fitted = fit_shares([replace(table, rows=replace(table.rows, labels=tuple(labels)))])
    assert np.median(np.abs(log_errors(table.rows, fitted.rates[0], fitted.shares))) < 0.1


def test_the_fit_finds_what_made_the_memory(table: CpuTable) -> None:
    memory = fit_memory(table.rows)
    assert memory.activations == pytest.approx(2.0, rel=0.02)
    assert memory.fixed_mb == pytest.approx(1.0, rel=0.02)


def test_an_artefact_from_tables_of_labels(
    table: CpuTable,
    other: CpuTable,
    labelled_models: tuple[list[Label], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = []
    for name, each in (("one", table), ("two", other)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "labels.parquet")
        export_parquet(each.rows.labels, paths[-1])
        each.measured.write(tmp_path / name / RATES_FILE)
    out, graphs = tmp_path / "cpu.json", labelled_models[1]
    main(["--labels", *map(str, paths), "--graphs", str(graphs), "--out", str(out), "--seed", "3"])
    made = CpuCalibration.read(out)
    assert [machine.device for machine in made.machines] == ["One", "Other"]
    assert made.machines[1].rates.gflops == pytest.approx(OTHER.gflops, rel=0.1)
    assert made.latency_spread < 0.3
    assert made.memory.spread < 0.05
    assert made.memory.context_mb == 300
    assert "One, Other" in made.labels
    provenance = json.loads(capsys.readouterr().out)["provenance"]
    assert provenance == made.provenance
    assert provenance["command"].endswith(f"--labels {paths[0]} {paths[1]} --seed 3")
    count = len(table.rows.labels)
    assert sum(provenance["rows"].values()) == provenance["families_left_out"]["rows"] == 2 * count
    assert set(provenance["family_mape_percent"]) == {"plain", "deep"}
    assert {name: part["rows"] for name, part in provenance["machine_left_out"].items()} == {
        "One": count,
        "Other": count,
    }
    assert provenance["tables"][1]["sha256"] == hashlib.sha256(paths[1].read_bytes()).hexdigest()
    # One collection alone tells nothing of others.
    assert provenance["collection_left_out"] == {}
    assert made.doubt_beyond_labels == 0
    assert build(paths, graphs=graphs, seed=3) == made


def test_the_interval_grows_by_what_a_machine_was_off_when_left_out(
    table: CpuTable, other: CpuTable, labelled_models: tuple[list[Label], Path], tmp_path: Path
) -> None:
    # The second machine was three times as slow as its rates say: nobody could have known.
    slow = [
        replace(label, measurement=replace(label.measurement, latency_ms=3 * label.measurement.latency_ms))  # type: ignore[operator]
        for label in other.rows.labels
    ]
    paths = []
    for name, labels, measured in (("one", table.rows.labels, table.measured), ("two", slow, other.measured)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "labels.parquet")
        export_parquet(labels, paths[-1])
        measured.write(tmp_path / name / RATES_FILE)
    made = build(paths, graphs=labelled_models[1], seed=0)
    off = made.latency_spread + made.doubt_per_rate * OTHER.distance_to(RATES)
    assert off == pytest.approx(np.log(3), rel=0.3)


def test_the_command_line_measures_the_rates_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "measure_best_rates", lambda: MeasuredRates(rates=RATES))
    main(["--measure-rates", str(tmp_path / RATES_FILE)])
    assert MeasuredRates.read(tmp_path / RATES_FILE) == MeasuredRates(rates=RATES)
