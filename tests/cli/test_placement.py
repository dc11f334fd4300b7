"""``fits`` and ``max-batch``: verdicts and batches, in training, by prices, and under a bound on the step time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import dippm
from dippm.cli import main


def test_fits_in_training(run_json: Callable[..., dict[str, Any]], trained_net: str) -> None:
    words = ("fits", trained_net, "--batch", "6000", "--device", "1g.5gb@A100")
    (at_inference,), (in_training,) = (run_json(*words, "--mode", mode)["fits"] for mode in ("inference", "training"))
    assert at_inference["needed_mb"][0] < in_training["needed_mb"][0]
    assert at_inference["fits"] != "no" == in_training["fits"]
    assert in_training["largest_part"] == "activations"
    assert in_training["memory_parts_mb"]["gradients"] > 0


def test_the_cheapest_comes_first(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    trained_net: str,
) -> None:
    words = ("fits", trained_net, "--batch", "64", "--device", "A100,T4", "--price", "A100=100,T4=0.1")
    assert [row["device"] for row in run_columns(*words)] == ["Tesla T4", "A100-SXM4-40GB"]
    first = run_json(*words)["fits"][0]
    assert first["price"]["per_hour"] == 0.1
    assert first["price"]["per_sample"] == pytest.approx(first["price"]["per_call"] / 64, rel=1e-3)
    largest = run_columns("max-batch", *words[1:2], *words[4:])
    assert [row["device"] for row in largest] == ["Tesla T4", "A100-SXM4-40GB"]
    assert float(largest[0]["price_per_sample"]) < float(largest[1]["price_per_sample"])
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    for command in (words, ("max-batch", trained_net, *words[4:], "--latency-ms", "5")):
        assert main(list(command)) == 0
        text = capsys.readouterr().out
        assert "0.1/h" in text
        assert "/M" in text
        assert "cheapest" in text


def test_a_bound_on_the_step_time(run_json: Callable[..., dict[str, Any]], trained_net: str) -> None:
    words = ("max-batch", trained_net, "--mode", "training", "--device", "A100")
    (answer,) = run_json(*words, "--step-time-ms", "10")["max_batches"]
    assert answer["bound_by"] == "step_time"
    assert answer["prediction"]["step_time_ms"] <= 10
    assert answer["batch"] < run_json(*words)["max_batches"][0]["batch"]


def test_warnings_of_the_file_go_to_the_side(capsys: pytest.CaptureFixture[str], trained_net: str) -> None:
    model = onnx.load(trained_net)
    for node in model.graph.node:
        if node.op_type == "Dropout":
            node.op_type = "Identity"
    onnx.save(model, trained_net)
    assert main(["fits", trained_net, "--mode", "training"]) == 0
    captured = capsys.readouterr()
    assert "exported for inference" in captured.err
    assert "exported" not in captured.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--price", "A100"), "price.invalid"),
        (("--price", "A100=cheap"), "price.invalid"),
        (("--price", "A100=-1"), "price.invalid"),
        (("--price", "T4=1"), "price.unused"),
        (("--price", "A100=1,A100=2"), "price.repeated"),
        (("--mode", "training", "--runtime", "cuda-graph"), "runtime.unsupported"),
    ],
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str, trained_net: str) -> None:
    for command in ("fits", "max-batch"):
        assert main([command, trained_net, *words, "--json"]) in (2, 4)
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code


@pytest.mark.parametrize("command", ["predict", "inspect", "fits", "max-batch"])
def test_every_command_takes_software(command: str, capsys: pytest.CaptureFixture[str], trained_net: str) -> None:
    words = (command, trained_net, "--device", "RTX 3090")
    assert main([*words, "--software", "torch 1.12+cu113"]) == 0
    assert "torch 1.12+cu113" in capsys.readouterr().err
    assert main(list(words)) == 0
    assert "torch" not in capsys.readouterr().err
    assert main([*words, "--software", "tensorflow 2.4"]) == 2
    assert "torch 1.12+cu113" in capsys.readouterr().err


def test_software_is_in_the_json(run_json: Callable[..., dict[str, Any]], trained_net: str) -> None:
    words = (trained_net, "--device", "RTX 3090", "--software", "1.12+cu113")
    (answer,) = run_json("predict", *words)["predictions"]
    assert answer["software"] == "torch 1.12+cu113"
    assert answer["memory_parts_mb"]["context"] == pytest.approx(1708)
    assert run_json("fits", *words)["fits"][0]["software"] == "torch 1.12+cu113"
    assert run_json("max-batch", *words)["max_batches"][0]["prediction"]["software"] == "torch 1.12+cu113"
    assert run_json("predict", trained_net)["predictions"][0]["software"] == "torch 2.13+cu130"


def test_fits(
    net: str,
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    words = ("fits", net, "--device", "1g.5gb@A100", "--batch", "1,1000000")
    small, large = run_json(*words)["fits"]
    assert (small["fits"], large["fits"]) == ("yes", "no")
    assert small["margin_mb"] == pytest.approx(small["capacity_mb"] - small["needed_mb"][1], abs=0.11)
    assert [row["fits"] for row in run_columns(*words)] == ["yes", "no"]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "4,864" in run_table(*words)


def test_max_batch(
    net: str,
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    words = ("max-batch", net, "--device", "1g.5gb@A100,A100")
    on_slice, on_card = run_json(*words)["max_batches"]
    assert 1 <= on_slice["batch"] < on_card["batch"]
    assert on_slice["batch"] <= on_slice["batch_at_most"]
    best = str(on_slice["batch"])
    verdicts = [
        run_json("fits", net, "--device", "1g.5gb@A100", "--batch", batch)["fits"][0]["fits"]
        for batch in (best, str(int(best) + 1))
    ]
    assert verdicts[0] == "yes"
    assert verdicts[1] != "yes"
    in_time = run_json(*words, "--latency-ms", "2")["max_batches"]
    assert in_time[1]["batch"] < on_card["batch"]
    assert in_time[1]["bound_by"] == "latency"
    assert [row["batch"] for row in run_columns(*words)] == [best, str(on_card["batch"])]
    # Of a batch of none there are no figures.
    none_in_time = run_columns(*words, "--latency-ms", "0.001")
    assert [(row["batch"], row["latency_ms"], row["memory_mb"]) for row in none_in_time] == [("0", "", "")] * 2
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert f"{on_slice['batch']:,}" in run_table(*words)


def test_why_not_even_a_batch_of_one(net: str, tables: None, run_table: Callable[..., str]) -> None:
    words = ("max-batch", net, "--device", "A100", "--latency-ms", "0.001")
    shown = run_table(*words)
    row = next(line for line in shown.splitlines() if line.startswith(" A100-SXM4-40GB"))
    assert row.split() == ["A100-SXM4-40GB", "0", "0", "latency", "-", "-"]
    assert "! A100-SXM4-40GB: even batch 1 is too slow: it takes 0." in shown
    assert "memory = " not in shown


def test_why_not_even_a_batch_of_one_in_a_pipe(
    net: str, run_noted_columns: Callable[..., tuple[list[dict[str, str]], str]]
) -> None:
    rows, notes = run_noted_columns("max-batch", net, "--device", "A100", "--latency-ms", "0.001")
    assert rows[0]["largest_part"] == ""
    assert "! A100-SXM4-40GB: even batch 1 is too slow: it takes 0." in notes
    assert "memory = " not in notes


@pytest.mark.parametrize("command", ["fits", "max-batch"])
def test_what_holds_for_one_of_several_devices_is_told_and_nothing_of_energy(
    command: str, trained_net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, trained_net, "--device", "A100,T4", "--precision", "bf16"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("! ")]
    assert len([note for note in notes if note.startswith("! Tesla T4, batch ") and "no unit for bf16" in note]) == 1
    assert not [note for note in notes if "Energy" in note or "fit: " in note]


@pytest.mark.parametrize("words", [("fits", "--batch", "2,4"), ("max-batch", "--device", "A100,T4")])
def test_piped_rows_have_their_heading_on_stderr(
    words: tuple[str, ...], trained_net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = words
    assert main([command, trained_net, *rest, "-p", "amp"]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert main(["predict", trained_net, "--batch", "2,4", "-p", "amp"]) == 0
    assert notes[:3] == capsys.readouterr().err.splitlines()[:3]
    assert notes[0] == trained_net
    assert notes[2].startswith("inference, amp, nchw, eager; image 3")
    assert notes[3].startswith("! ")
    assert main([command, trained_net]) == 0
    assert capsys.readouterr().err.splitlines()[3].startswith("memory = context ")


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("command", ["fits", "max-batch"])
def test_a_table_says_what_it_is_about_as_predict_does(
    command: str, trained_net: str, run_table: Callable[..., str]
) -> None:
    words = (trained_net, "-p", "amp", "-m", "training")
    title = run_table("predict", *words).splitlines()[:3]
    assert title[2] == "training by momentum, amp, nchw, eager; image 3×64×64"
    one, several = (run_table(command, *words, "--device", device) for device in ("A100", "A100,T4"))
    assert one.splitlines()[:3] == several.splitlines()[:3] == title
    assert (one.count("\nmemory = context "), several.count("memory = ")) == (1, 0)


@pytest.mark.parametrize("command", ["fits", "max-batch"])
def test_json_names_the_model_the_conditions_and_the_predictor(
    command: str, trained_net: str, run_json: Callable[..., dict[str, Any]]
) -> None:
    words = (trained_net, "--device", "T4", "-p", "amp")
    answer = run_json(command, *words)
    (entry,) = answer["fits" if command == "fits" else "max_batches"]
    told = run_json("predict", *words, "--batch", str(entry["batch"]))
    assert answer["model"] == told["model"]
    assert entry["prediction"] == told["predictions"][0]
    assert entry["prediction"]["predictor"]["warnings"]


@pytest.mark.usefixtures("tables")
def test_an_adapted_predictor(
    trained_net: str,
    adapted_folder: Path,
    run_json: Callable[..., dict[str, Any]],
    run_table: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (trained_net, "--predictor", str(adapted_folder))
    (answer,) = run_json("fits", *words, "--batch", "8")["fits"]
    assert answer == json.loads(json.dumps(dippm.fits(trained_net, batch=8, predictor=adapted_folder).to_dict()))
    (largest,) = run_json("max-batch", *words)["max_batches"]
    assert (largest["device"], largest["prediction"]["mode"]) == ("Small card", "training")
    assert run_json("max-batch", *words, "--device", "small card", "-m", "training")["max_batches"] == [largest]
    assert run_json("max-batch", *words, "-m", "inference")["max_batches"][0]["batch"] > largest["batch"]
    for command in ("fits", "max-batch"):
        text = " ".join(run_table(command, *words).split())
        assert "training by momentum, amp, nchw, eager; image 3×64×64" in text
        assert text.count("training by momentum") == 1
        assert "fitted on:" in text
        for wrong, code in (("--device", "predictor.mismatch"), ("--device-file", "device.unused")):
            assert main([command, *words, wrong, "T4", "--json"]) == 2
            assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_a_network(
    trained_net: str,
    write_predictor: Callable[..., Path],
    run_json: Callable[..., dict[str, Any]],
    run_table: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (trained_net, "--predictor", str(write_predictor()))
    (answer,) = run_json("fits", *words)["fits"]
    assert (answer["fits"], answer["needed_mb"], answer["largest_part"]) == ("yes", [800.0, 5000.0], "unknown")
    for command, batch, code in (
        ("fits", ("--batch", "9"), "prediction.no_interval"),
        ("max-batch", (), "predictor.unsuited"),
    ):
        assert main([command, *words, *batch, "--json"]) == 4
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "parts unknown" in run_table("fits", *words)
