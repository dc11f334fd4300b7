from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dippm.costs.cpu_time import CpuFamily
from dippm.errors import DippmError
from dippm.predictors.cpu_calibration import CPU_ARTEFACT_PATH, CpuCalibration


def test_the_shipped_one_knows_every_family() -> None:
    calibration = CpuCalibration.read()
    assert calibration.shares.keys() == set(CpuFamily)
    assert 0 < calibration.latency_spread < 2
    assert calibration.longest_ms > 0
    assert calibration.labels
    assert "command" in calibration.provenance


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    calibration = replace(CpuCalibration.read(), version="mine")
    path = tmp_path / "folder" / "cpu.json"
    calibration.write(path)
    assert CpuCalibration.read(path) == calibration


@pytest.mark.parametrize("damage", ["missing", "cut off", "format", "family", "field", "list"])
def test_a_damaged_one_is_an_error(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "cpu.json"
    held = json.loads(CPU_ARTEFACT_PATH.read_text(encoding="utf-8"))
    if damage == "format":
        held["format"] += 1
    elif damage == "family":
        held["shares"].popitem()
    elif damage == "field":
        held["new"] = 1
    text = "[]" if damage == "list" else json.dumps(held)
    if damage != "missing":
        path.write_text(text[: len(text) // 2] if damage == "cut off" else text, encoding="utf-8")
    with pytest.raises(DippmError, match=r"cpu\.json") as caught:
        CpuCalibration.read(path)
    assert caught.value.code == "artefact.unreadable"
