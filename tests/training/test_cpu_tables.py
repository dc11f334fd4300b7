import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.cpu_time import CpuFamily, CpuRates
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.errors import DippmError, UsageError
from dippm.training import cpu_tables
from dippm.training.cpu_tables import RATES, RATES_FILE, MeasuredRates, measure_best_rates, read_rows, read_table

MACHINE = CpuRates(**dict.fromkeys(RATES, 8.0), threads=1)


def test_rows_hold_work_memory_and_figures(labelled_models: tuple[list[Label], Path]) -> None:
    labels, folder = labelled_models
    rows = read_rows(labels, folder)
    assert rows.work.flops.shape == rows.work.fresh_bytes.shape == (len(labels), len(CpuFamily))
    assert np.all(rows.weights_mb > 0)
    assert np.all(rows.others_mb > 0)
    part = rows.of(rows.labels[3:7])
    assert part.labels == rows.labels[3:7]
    assert np.array_equal(part.work.launches, rows.work.launches[3:7])
    assert np.array_equal(part.weights_mb, rows.weights_mb[3:7])


def test_a_model_that_cannot_be_read_is_named(labelled_models: tuple[list[Label], Path], tmp_path: Path) -> None:
    label = labelled_models[0][0]
    recipe = replace(label.recipe, architecture="timm:no_such_net")
    with pytest.raises(DippmError, match=recipe.model_key) as caught:
        read_rows([replace(label, recipe=recipe)], tmp_path)
    assert caught.value.code == "graphs.unread"
    assert list(GraphCache(tmp_path).keys()) == []


def test_a_rate_that_was_never_measured_is_what_is_usual(tmp_path: Path) -> None:
    path = tmp_path / RATES_FILE
    path.write_text(json.dumps({**asdict(MACHINE), "convolution_us": None, "cache_gb_s": None}))
    measured = MeasuredRates.read(path)
    assert measured.missing == ("cache_gb_s", "convolution_us")
    assert measured.rates == replace(MACHINE, cache_gb_s=20.0, convolution_us=360.0)
    measured.write(path)
    assert MeasuredRates.read(path) == measured
    assert json.loads(path.read_text())["cache_gb_s"] is None


@pytest.mark.parametrize("damage", ["missing", "cut off", "lacks one", "nothing stands for it", "impossible"])
def test_rates_that_cannot_be_read_are_named(tmp_path: Path, damage: str) -> None:
    path, held = tmp_path / RATES_FILE, dict(asdict(MACHINE))
    if damage == "lacks one":
        del held["fresh_gb_s"]
    elif damage == "nothing stands for it":
        held["gflops"] = None
    elif damage == "impossible":
        held["gflops"] = "fast"
    if damage != "missing":
        text = json.dumps(held)
        path.write_text(text[:20] if damage == "cut off" else text)
    with pytest.raises(UsageError, match=RATES_FILE) as caught:
        MeasuredRates.read(path)
    assert caught.value.code == "rates.unreadable"


def test_labels_and_rates_of_different_threads_are_refused(
    labelled_models: tuple[list[Label], Path], tmp_path: Path
) -> None:
    labels, folder = labelled_models
    own = [
        replace(
            label,
            measurement=replace(label.measurement, software=replace(label.measurement.software, threads=1)),
        )
        for label in labels
    ]
    export_parquet(own, tmp_path / "labels.parquet")
    MeasuredRates(rates=MACHINE).write(tmp_path / RATES_FILE)
    assert len(read_table(tmp_path / "labels.parquet", folder).rows.labels) == len(labels)
    MeasuredRates(rates=replace(MACHINE, threads=8)).write(tmp_path / RATES_FILE)
    with pytest.raises(UsageError, match="OMP_NUM_THREADS") as caught:
        read_table(tmp_path / "labels.parquet", folder)
    assert caught.value.code == "rates.threads"


def test_the_best_of_many_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([replace(MACHINE, gflops=6.0, dispatch_us=9.0), MACHINE, *[replace(MACHINE, convolution_us=11.0)] * 8])
    monkeypatch.setattr(cpu_tables, "measure_cpu_rates", lambda: next(tries))
    assert measure_best_rates() == MeasuredRates(rates=MACHINE)
