"""``dippm devices`` and ``dippm ops``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dippm
from dippm import api


def test_devices(
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    specs = api.list_devices()
    answer = run_json("devices")
    assert [each["name"] for each in answer["devices"]] == [spec.name for spec in specs]
    rows = run_columns("devices")
    assert [row["name"] for row in rows] == [spec.name for spec in specs]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table("devices")
    assert "Tesla T4" in text
    row = next(line.split() for line in text.splitlines() if "A100-SXM4-40GB" in line)
    assert row[-1] == str(len(api.find_device("A100").mig_profiles))


def test_one_device_has_sources_and_slices(
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    spec = dippm.find_device("A100")
    device = run_json("devices", "a100")["device"]
    assert device["name"] == spec.name
    assert [each["memory_mb"] for each in device["mig_profiles"]] == [each.memory_mb for each in spec.mig_profiles]
    figures = {row["figure"]: row for row in run_columns("devices", "A100")}
    assert figures["bandwidth"]["value"] == "1,555 GB/s"
    assert all(row["source"] for name, row in figures.items() if name != "architecture")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table("devices", "A100")
    assert "4,864" in text
    assert "1g.5gb" in text


def test_ops(
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    from dippm.graph import OpKind

    operators = run_json("ops")["operators"]
    assert {each["kind"] for each in operators} >= {kind.value for kind in OpKind}
    assert all(each["time"] for each in operators)
    assert "Conv" in next(each["from"] for each in operators if each["kind"] == "(onnx)")
    assert {row["kind"] for row in run_columns("ops")} == {each["kind"] for each in operators}
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "conv_transpose" in run_table("ops")
