"""Names of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.errors import MissingExtraError
from dippm.measuring import device_names


def test_the_name_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2.80GHz\nprocessor\t: 1\nmodel name\t: Other\n")
    monkeypatch.setattr(device_names, "_CPU_INFO", path)
    assert device_names.cpu_name() == "Some CPU @ 2.80GHz"
    monkeypatch.setattr(device_names, "_CPU_INFO", tmp_path / "absent")
    assert device_names.cpu_name()


def test_pytorch_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_names, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        device_names.describe_device("cpu")
    assert caught.value.extra == "measure"
