from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dippm.costs.kernels.problems import Family
from dippm.datasets.kernels import rows_from_frame
from dippm.devices import find_device
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.training.row_cycles import fit_row_cycles, main

_NAMES = {
    "Tesla T4": ("T4", 300.0),
    "Tesla V100-PCIE-32GB": ("V100-PCIE-32GB", 500.0),
    "NVIDIA A100-PCIE-40GB": ("A100-PCIE-40GB", 700.0),
    # No tensor cores: it tells nothing of others.
    "Tesla P4": ("P4", 100.0),
}


def table() -> pd.DataFrame:
    """Layer norms that take 40 us, so many cycles a row, and 0.01 ns an element; narrow and wide ones."""
    rng = np.random.default_rng(0)
    parts = []
    for name, (ours, cycles) in _NAMES.items():
        device = find_device(ours)
        rows, width = rng.integers(1000, 16000, 200), rng.integers(260, 4000, 200)
        row_ms = 1e3 * cycles / (device.sm_count * device.boost_clock_mhz * 1e6)
        # Wide rows are of another sort, and few rows hide behind their launch.
        wide_ms = np.where(width > 400, 3.0, 0.0) + np.where(rows < 4000, 1.0, 0.0)
        time_ms = 0.04 + rows * row_ms + 1e-8 * rows * width + wide_ms
        parts.append(pd.DataFrame({"OPName": "ln", "Latency": time_ms, "Device": name, "B": rows, "H": width}))
    return pd.concat(parts, ignore_index=True)


def test_the_part_of_a_row_that_does_not_depend_on_its_width_is_found() -> None:
    median, of_devices = fit_row_cycles(rows_from_frame(Family.LAYER_NORM, table()))
    assert of_devices == pytest.approx(dict(_NAMES.values()), rel=1e-3)
    assert median == pytest.approx(500.0, rel=1e-3)


def test_the_command_changes_the_plain_sums_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels").mkdir()
    table().to_parquet(tmp_path / "kernels" / "ln.parquet")
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        shutil.copy(path, tmp_path / path.name)
    main(["--data", str(tmp_path), "--out", str(tmp_path)])
    assert json.loads(capsys.readouterr().out)["cycles"].keys() == {ours for ours, _ in _NAMES.values()}
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        before, after = Calibration.read(path), Calibration.read(tmp_path / path.name)
        assert after.rates.row_cycles == pytest.approx(500.0, rel=1e-3)
        assert after.rates.host_scale == before.rates.host_scale
        assert after.provenance["row_cycles"]["command"] == "python -m dippm.training.row_cycles"
