"""``dippm predict``: what it prints as JSON, as columns for a pipe and as a table for a terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console, RenderableType

import dippm
from dippm.cli import main, predict
from dippm.cli.predict import make_table
from dippm.costs.conditions import Conditions, LowRankAdapters, Mode
from dippm.predictors.prediction import ModelInfo, NoSlice, Prediction, PredictorInfo


def test_predict_a_step(run_json: Callable[..., dict[str, Any]], trained_net: str) -> None:
    words = ("predict", trained_net, "--mode", "training", "--optimizer", "adamw", "--batch", "128")
    (answer,) = run_json(*words)["predictions"]
    assert (answer["mode"], answer["optimizer"], answer["accumulation"]) == ("training", "adamw", 1)
    assert answer["step_time_ms"] == answer["latency_ms"]
    assert list(answer["memory_parts_mb"]) == [
        "context", "weights", "gradients", "optimizer", "activations", "workspace", "slack",
    ]  # fmt: skip
    assert answer["mig"] == "1g.5gb"
    (many,) = run_json(*words, "--accumulation", "8")["predictions"]
    assert many["macs"] == 8 * answer["macs"]
    assert many["accumulation"] == 8


def test_the_title_says_how_it_is_trained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trained_net: str
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert main(["predict", trained_net, "--mode", "training", "--accumulation", "4"]) == 0
    text = capsys.readouterr().out
    assert "training by momentum, 4 batches a step" in text
    assert "step, ms" in text
    assert main(["inspect", trained_net, "--mode", "training", "--batch", "8"]) == 0
    assert "step = forward" in capsys.readouterr().out


def make_prediction(**changes: object) -> Prediction:
    values: dict[str, object] = {
        "model": ModelInfo(source="net.onnx", framework="onnx", nodes=122, parameters=25_557_032),
        "device": "A100-SXM4-40GB",
        "conditions": Conditions(),
        "batch": 8,
        "inputs": {"input": (8, 3, 224, 224)},
        "macs": 32_716_718_080,
        "latency_ms": 7.94,
        "energy_j": 1.9,
        "memory_mb": 1240.0,
        "memory_parts_mb": {"context": 450.0, "weights": 98.0, "activations": 692.0, "slack": 0.0},
        "mig": "1g.5gb",
        "intervals": {"latency_ms": (7.0, 9.1), "energy_j": (1.4, 2.6), "memory_mb": (1180.0, 1390.0)},
        "predictor": PredictorInfo(name="physics", version="1", labels="kernels", warnings=("Watch out.",)),
    }
    return Prediction(**(values | changes))  # type: ignore[arg-type]


def show(content: RenderableType, *, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, emoji=False, color_system=None).print(content)
    return stream.getvalue()


def test_what_is_trained_and_what_is_quantised_stands_above_the_figures() -> None:
    model = ModelInfo(
        source="net.onnx",
        framework="onnx",
        nodes=122,
        parameters=1_000,
        frozen_parameters=25_557_032,
        quantised_weights={"uint4": 20_000_000},
    )
    conditions = Conditions(mode=Mode.TRAINING, adapters=LowRankAdapters(rank=4))
    shown = show(make_table([make_prediction(model=model, conditions=conditions)]))
    assert "1,000 trained beside 25,557,032 parameters, 20,000,000 in uint4, " in " ".join(shown.split())


def test_one_prediction_shows_figures_intervals_parts_and_warnings() -> None:
    text = show(make_table([make_prediction()]))
    for part in (
        "net.onnx", "122 operators", "25,557,032 parameters", "4.09 GMACs a sample", "input 3×224×224",
        "inference, fp32",
        "A100-SXM4-40GB", "7.94", "[7 – 9.1]", "1.9", "[1.4 – 2.6]", "1,240", "[1,180 – 1,390]", "1g.5gb",
        "memory = context 450 + weights 98 + activations 692\n", "! Watch out.", "fitted on: kernels",
    ):  # fmt: skip
        assert part in text


def test_an_input_that_all_samples_share_is_shown_whole() -> None:
    text = show(make_table([make_prediction(inputs={"image": (8, 3, 32, 32), "places": (1024, 3)})]))
    assert "; image 3×32×32, places 1024×3" in text


def test_energy_that_is_not_known_is_a_dash() -> None:
    known = make_prediction()
    intervals = {name: interval for name, interval in known.intervals.items() if name != "energy_j"}
    unknown = make_prediction(batch=32, energy_j=None, intervals=intervals)
    row = next(line for line in show(make_table([known, unknown])).splitlines() if " 32 " in line)
    assert row.split()[2] == "-"
    assert predict._row(unknown)[5:8] == [None, None, None]


def test_a_figure_has_its_row() -> None:
    rows = show(
        make_table(
            [make_prediction(), make_prediction(batch=32, latency_ms=25.0, mig=None, no_slice=NoSlice.TOO_LARGE)]
        )
    ).splitlines()
    first = next(row for row in rows if "7.94" in row)
    second = next(row for row in rows if " 25 " in row)
    assert first.split() == ["A100-SXM4-40GB", "8", "7.94", "1.9", "1,240", "1g.5gb"]
    assert second.split() == ["32", "25", "1.9", "1,240", "too", "large"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_table_keeps_to_the_terminal(width: int) -> None:
    table = make_table([make_prediction(), make_prediction(device="RTX PRO 6000 Blackwell Max-Q Workstation Edition")])
    assert all(len(line) <= width for line in show(table, width=width).splitlines())


def test_at_80_columns_names_are_whole_and_nothing_is_cut() -> None:
    wide = {"latency_ms": (104_757.0, 178_903.0), "energy_j": (3_051.0, 9_276.0), "memory_mb": (28_752.0, 35_588.0)}
    figures = {"latency_ms": 136_899.0, "energy_j": 5_674.0, "memory_mb": 28_912.0, "intervals": wide}
    table = make_table(
        [
            make_prediction(batch=2048, mig=None, no_slice=NoSlice.TOO_LARGE, **figures),
            make_prediction(batch=2048, device="1g.5gb@A100-SXM4-40GB", mig="3g.40gb", **figures),
        ]
    )
    text = show(table, width=80)
    for whole in (
        "A100-SXM4-40GB ",
        "1g.5gb@A100-SXM4-40GB ",
        "136,899",
        "[104,757 –",
        "178,903]",
        "[28,752 –",
        "35,588]",
        " too large\n",
        " 3g.40gb",
    ):
        assert whole in re.sub(r" +\n", "\n", text), whole


def test_warning_of_one_device_names_it() -> None:
    other = PredictorInfo(name="physics", version="1", labels="kernels", warnings=("Watch out.", "Only here."))
    text = show(make_table([make_prediction(), make_prediction(device="T4", predictor=other)]))
    assert "\n! Watch out." in text
    assert "\n! T4, batch 8: Only here." in text
    assert text.count("Watch out.") == 1


def test_what_does_not_fit_comes_first_whichever_prediction_it_is_of() -> None:
    other = PredictorInfo(name="physics", version="1", labels="kernels", warnings=("It does not fit: a", "Watch out."))
    text = show(make_table([make_prediction(), make_prediction(batch=128, predictor=other)]))
    assert text.index("! A100-SXM4-40GB, batch 128: It does not fit: a") < text.index("! Watch out.")


@pytest.mark.parametrize("no_slice", NoSlice)
def test_why_there_is_no_slice_stands_in_its_place(no_slice: NoSlice) -> None:
    prediction = make_prediction(mig=None, no_slice=no_slice)
    row = next(line for line in show(make_table([prediction]), width=80).splitlines() if "7.94" in line)
    assert row.rstrip().endswith(f" {no_slice}")
    assert predict._row(prediction)[-1] == no_slice


def test_hostile_names_do_not_steer_the_terminal_or_the_markup() -> None:
    model = replace(make_prediction().model, source="[red]\x1b[2Jnet[/red]")
    text = show(make_table([make_prediction(model=model, inputs={"\x1b]0;x\x07": (8, 2)})]))
    assert "\x1b" not in text
    assert "[red]\\x1b[2Jnet[/red]" in text


IMAGE_MACS = 16 * 3 * 9 * 32 * 32 + 16 * 10


def test_predict_json_is_the_contract(net: str, run_json: Callable[..., dict[str, Any]]) -> None:
    answer = run_json("predict", net, "--batch", "8", "--precision", "amp", "--layout", "nhwc")
    assert set(answer) == {"schema", "model", "predictions"}
    assert set(answer["model"]) == {
        "source", "framework", "nodes", "parameters", "frozen_parameters", "quantised_weights", "unsupported_ops",
    }  # fmt: skip
    assert answer["model"]["parameters"] == 16 * 27 + 160
    (prediction,) = answer["predictions"]
    assert set(prediction) == {
        "device", "mode", "precision", "layout", "runtime", "software", "batch", "inputs", "macs", "latency_ms",
        "energy_j", "memory_mb", "needed_mb", "mig", "no_slice", "intervals", "memory_parts_mb", "predictor",
    }  # fmt: skip
    low, high = prediction["needed_mb"]
    assert 0.0 < low < high
    assert set(prediction["predictor"]) == {"name", "version", "labels", "warnings"}
    assert prediction["macs"] == 8 * IMAGE_MACS
    assert prediction["inputs"] == {"image": [8, 3, 32, 32]}
    assert (prediction["precision"], prediction["layout"]) == ("amp", "nhwc")
    assert sum(prediction["memory_parts_mb"].values()) == pytest.approx(prediction["memory_mb"], rel=2e-3)
    for name, (low, high) in prediction["intervals"].items():
        assert low <= prediction[name] <= high


def test_predict_is_the_api(net: str, run_json: Callable[..., dict[str, Any]]) -> None:
    answer = run_json("predict", net, "--batch", "1,4", "--device", "A100,T4")
    expected = dippm.predict(net, batch=[1, 4], device=["A100", "T4"])
    assert isinstance(expected, list)
    assert answer["predictions"] == [json.loads(json.dumps(each.to_dict())) for each in expected]
    assert [(each["device"], each["batch"]) for each in answer["predictions"]] == [
        ("A100-SXM4-40GB", 1), ("A100-SXM4-40GB", 4), ("Tesla T4", 1), ("Tesla T4", 4),
    ]  # fmt: skip


def test_a_device_that_cannot_run_it_leaves_the_others(
    net: str, capsys: pytest.CaptureFixture[str], run_json: Callable[..., dict[str, Any]]
) -> None:
    words = ("predict", net, "--device", "A100,H100", "--device", "T4", "--software", "torch 1.12+cu113")
    answer = run_json(*words)
    assert set(answer) == {"schema", "model", "predictions", "refused"}
    assert [each["device"] for each in answer["predictions"]] == ["A100-SXM4-40GB", "Tesla T4"]
    (refused,) = answer["refused"]
    assert set(refused) == {"device", "code", "message"}
    assert (refused["device"], refused["code"]) == ("H100 80GB HBM3", "software.impossible")
    capsys.readouterr()
    assert main([*words]) == 0
    shown = capsys.readouterr()
    assert [line.split("\t")[0] for line in shown.out.splitlines()[1:]] == ["A100-SXM4-40GB", "Tesla T4"]
    assert shown.err.count("! H100 80GB HBM3 is left out: H100 80GB HBM3 needs CUDA 11.8 or later") == 1
    assert main(["predict", net, "--device", "H100,H200", "--software", "torch 1.12+cu113"]) == 4


def test_a_pod_takes_the_slice_of_the_device_that_is_answered(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", net, "--software", "torch 1.12+cu113", "--format", "k8s", "--device")
    assert main([*words, "A100"]) == 0
    alone = capsys.readouterr().out
    assert main([*words, "H100,A100"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "left out" not in line] == alone.splitlines()


def test_predict_columns_and_table_show_the_same_figures(
    net: str,
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    (answer,) = run_json("predict", net)["predictions"]
    (row,) = run_columns("predict", net)
    assert float(row["latency_ms"]) == answer["latency_ms"]
    assert [float(row["memory_low"]), float(row["memory_high"])] == answer["intervals"]["memory_mb"]
    assert row["mig"] == answer["mig"]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table("predict", net)
    assert f"{dippm.predict(net).latency_ms:.3g}" in text  # not of the rounded one: rounding twice may differ
    assert answer["mig"] in text


def test_warnings_of_a_piped_prediction_go_to_stderr(
    net: str, capsys: pytest.CaptureFixture[str], run_json: Callable[..., dict[str, Any]]
) -> None:
    warnings = run_json("predict", net)["predictions"][0]["predictor"]["warnings"]
    assert warnings, "a model this small is bound by the host: there must be a warning"
    assert main(["predict", net]) == 0
    captured = capsys.readouterr()
    assert all(warning in captured.err for warning in warnings)
    assert warnings[0] not in captured.out


@pytest.mark.parametrize("command", ["predict", "inspect"])
def test_one_operator_is_not_several(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y"))
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "one", [x], [y]), ir_version=8), path)
    assert main([command, str(path)]) == 0
    assert "onnx, 1 operator, 0 parameters, " in capsys.readouterr().err


def test_a_piped_prediction_says_on_stderr_what_it_is_of(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", net, "--batch", "2"]) == 0
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[:3] == [
        net, "onnx, 4 operators, 592 parameters, 443 kMACs a sample", "inference, fp32, nchw, eager; image 3×32×32"
    ]  # fmt: skip
    assert lines[3].startswith("memory = context ")
    assert all(line.startswith("! ") for line in lines[4:])
    assert len(captured.out.splitlines()) == 2
    assert main(["predict", net, "--batch", "1,2"]) == 0
    assert "memory = " not in capsys.readouterr().err


def test_device_file_stands_beside_named_devices(
    net: str, tmp_path: Path, run_json: Callable[..., dict[str, Any]], run_columns: Callable[..., list[dict[str, str]]]
) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(
        'name = "My GPU"\narchitecture = "ada"\ncompute_capability = [8, 9]\nsm_count = 46\nfp32_lanes_per_sm = 128\n'
        "base_clock_mhz = 1920\nboost_clock_mhz = 2475\nmemory_mb = 12282\nbandwidth_gb_s = 504\nl2_mb = 36\n"
        "board_power_w = 200\n[peak_tflops]\nfp32 = 29.1\n"
    )
    alone = run_columns("predict", net, "--device-file", str(path))
    assert [row["device"] for row in alone] == ["My GPU"]
    both = run_columns("predict", net, "--device-file", str(path), "--device", "L4")
    assert [row["device"] for row in both] == ["My GPU", "L4"]
    # Its name may be named as well.
    named = run_columns("predict", net, "--device-file", str(path), "--device", "my gpu,L4")
    assert [row["device"] for row in named] == ["My GPU", "L4"]
    assert run_json("devices", "My GPU", "--device-file", str(path))["device"]["sm_count"] == 46
    assert run_json("devices", "--device-file", str(path))["device"]["sm_count"] == 46


def test_predict_by_a_trained_predictor(
    net: str,
    write_predictor: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    folder = str(write_predictor(metrics=("latency_ms", "memory_mb"), spreads={"latency_ms": 0.1}))
    answer = run_json("predict", net, "--batch", "1,8", "--predictor", folder)
    expected = dippm.predict(net, batch=[1, 8], predictor=folder)
    assert answer["predictions"] == [json.loads(json.dumps(each.to_dict())) for each in expected]
    assert answer["predictions"][0]["predictor"]["name"] == "pmgns"
    (row,) = run_columns("predict", net, "--predictor", folder, "--device", "A100", "-p", "amp")
    assert (row["memory_mb"], row["memory_low"], row["energy_j"], row["energy_high"]) == ("2000.0", "", "", "")
    assert float(row["latency_low"]) < 4 < float(row["latency_high"])
    for words, code in (
        (("--device", "A100,T4"), "predictor.mismatch"),
        (("--precision", "fp32"), "predictor.mismatch"),
        (("--device-file", "gpu.toml"), "device.unused"),
    ):
        assert main(["predict", net, "--predictor", folder, *words, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table("predict", net, "--predictor", folder)
    assert "amp, nhwc, eager" in text
    assert "memory =" not in text
    assert "pmgns 9.8, fitted on: 321 labels" in text


@pytest.mark.parametrize(("policy", "slice_name"), [("safe", "1g.5gb"), ("paper", "1g.5gb")])
def test_mig_policy(policy: str, slice_name: str, net: str, run_columns: Callable[..., list[dict[str, str]]]) -> None:
    (row,) = run_columns("predict", net, "--mig-policy", policy)
    assert row["mig"] == slice_name


def test_lists_that_are_given_twice_are_joined(net: str, run_columns: Callable[..., list[dict[str, str]]]) -> None:
    rows = run_columns("predict", net, "-d", "A100", "-b", "1", "-d", "T4", "--batch", "8")
    assert [(row["device"], row["batch"]) for row in rows] == [
        ("A100-SXM4-40GB", "1"), ("A100-SXM4-40GB", "8"), ("Tesla T4", "1"), ("Tesla T4", "8"),
    ]  # fmt: skip
    rows = run_columns("fits", net, "-d", "A100", "-d", "T4", "--price", "T4=1", "--price", "A100=9")
    assert [row["price_per_hour"] for row in rows] == ["1.0", "9.0"]


def test_of_what_takes_one_value_the_last_counts(net: str, run_json: Callable[..., dict[str, Any]]) -> None:
    (prediction,) = run_json("predict", net, "-p", "amp", "-p", "fp32", "--json")["predictions"]
    assert prediction["precision"] == "fp32"
