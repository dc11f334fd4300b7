"""``dippm inspect``: operators, modules, tables and the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.cli import main

IMAGE_MACS = 16 * 3 * 9 * 32 * 32 + 16 * 10


def test_inspect_json_adds_up(net: str, run_json: Callable[..., dict[str, Any]]) -> None:
    answer = run_json("inspect", net, "--batch", "2")
    assert set(answer) == {"schema", "model", "prediction", "phases", "operators", "modules"}
    assert sum(each["macs"] for each in answer["operators"]) == 2 * IMAGE_MACS == answer["prediction"]["macs"]
    total_ms = sum(each["time_ms"] for each in answer["operators"])
    assert total_ms == pytest.approx(answer["prediction"]["latency_ms"], rel=1e-2)
    assert answer["modules"]["operators"] == len(answer["operators"])


def test_inspect_columns_list_every_operator(net: str, run_columns: Callable[..., list[dict[str, str]]]) -> None:
    rows = run_columns("inspect", net)
    assert [row["kind"] for row in rows] == ["conv", "relu", "global_pool", "linear"]
    assert rows[0]["output_shape"] == "1x16x32x32"
    assert int(rows[0]["macs"]) + int(rows[-1]["macs"]) == IMAGE_MACS


def test_inspect_lists_the_longest_operators_where_asked(
    net: str, run_json: Callable[..., dict[str, Any]], run_columns: Callable[..., list[dict[str, str]]]
) -> None:
    every = run_columns("inspect", net)
    longest = sorted((float(row["time_ms"]) for row in every), reverse=True)[:2]
    assert len(every) > 2
    assert [float(row["time_ms"]) for row in run_columns("inspect", net, "--top", "2")] == longest
    listed = run_json("inspect", net, "--top", "2")["operators"]
    assert [operator["time_ms"] for operator in listed] == longest


def test_piped_operators_have_their_totals_on_stderr(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", net]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("position\t")
    assert "nchw, eager; image 3×32×32\nmemory = context " in captured.err
    assert f"A100-SXM4-40GB, batch 1: latency {dippm.predict(net).latency_ms:.3g} ms [" in captured.err
    assert "], MIG 1g.5gb\n! " in captured.err


def test_piped_operators_of_a_step_have_its_phases_on_stderr(
    trained_net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", trained_net, "--mode", "training"]) == 0
    said = capsys.readouterr().err
    assert "batch 1: step " in said
    assert "\nstep = forward " in said


@pytest.mark.usefixtures("tables")
def test_inspect_tables_keep_to_top_and_depth(net: str, run_table: Callable[..., str]) -> None:
    text = run_table("inspect", net, "--top", "1", "--depth", "1")
    assert "Operators by time" in text
    assert "Operators by live memory" in text
    assert "stem" in text
    assert text.count("1×16×32×32") + text.count("1×10") + text.count("1×16×1×1") == 2
    assert "Operators by time" not in run_table("inspect", net, "--top", "0")
    assert "Modules" not in run_table("inspect", net, "--depth", "0")


def test_inspect_writes_the_page(net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["inspect", net, "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(page) in captured.err
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_an_adapted_predictor(
    net: str,
    adapted_folder: Path,
    write_predictor: Callable[..., Path],
    run_json: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("inspect", net, "--predictor", str(adapted_folder))
    answer = run_json(*words, "--batch", "4")
    assert answer["prediction"] == run_json("predict", *words[1:], "--batch", "4")["predictions"][0]
    assert set(answer["phases"]) == {"forward", "backward", "optimizer"}
    assert run_json(*words, "--device", "Small card", "--batch", "4") == answer
    for wrong in (("--device", "T4"), ("--device-file", "gpu.toml")):
        assert main([*words, *wrong]) == 2
    assert main(["inspect", net, "--predictor", str(write_predictor())]) == 4
    assert "[predictor.unsuited]" in capsys.readouterr().err
