"""What every command prints when all is well: JSON, columns for a pipe, tables for a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dippm
from dippm import api
from dippm.cli import main

IMAGE_MACS = 16 * 3 * 9 * 32 * 32 + 16 * 10


@pytest.fixture
def net(tmp_path: Path) -> str:
    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, np.ones(shape, np.float32).tobytes(), raw=True)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w"], ["h"], name="/stem/conv/Conv", kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("Relu", ["h"], ["r"], name="/stem/act/Relu"),
            helper.make_node("GlobalAveragePool", ["r"], ["p"], name="/pool/GlobalAveragePool"),
            helper.make_node("Flatten", ["p"], ["f"], name="/Flatten"),
            helper.make_node("Gemm", ["f", "v"], ["y"], name="/head/Gemm"),
        ],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [weight("w", 16, 3, 3, 3), weight("v", 16, 10)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    answer: dict[str, Any] = json.loads(captured.out)
    assert answer["schema"] == 1
    return answer


def run_columns(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert main(list(words)) == 0
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row, strict=True)) for row in rows]


def run_table(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_predict_json_is_the_contract(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "predict", net, "--batch", "8", "--precision", "amp", "--layout", "nhwc")
    assert set(answer) == {"schema", "model", "predictions"}
    assert set(answer["model"]) == {"source", "framework", "nodes", "parameters", "unsupported_ops"}
    assert answer["model"]["parameters"] == 16 * 27 + 160
    (prediction,) = answer["predictions"]
    assert set(prediction) == {
        "device", "mode", "precision", "layout", "runtime", "software", "batch", "inputs", "macs", "latency_ms",
        "energy_j", "memory_mb", "mig", "intervals", "memory_parts_mb", "predictor",
    }  # fmt: skip
    assert set(prediction["predictor"]) == {"name", "version", "labels", "warnings"}
    assert prediction["macs"] == 8 * IMAGE_MACS
    assert prediction["inputs"] == {"image": [8, 3, 32, 32]}
    assert (prediction["precision"], prediction["layout"]) == ("amp", "nhwc")
    assert sum(prediction["memory_parts_mb"].values()) == pytest.approx(prediction["memory_mb"], rel=2e-3)
    for name, (low, high) in prediction["intervals"].items():
        assert low <= prediction[name] <= high


def test_predict_is_the_api(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "predict", net, "--batch", "1,4", "--device", "A100,T4")
    expected = dippm.predict(net, batch=[1, 4], device=["A100", "T4"])
    assert isinstance(expected, list)
    assert answer["predictions"] == [json.loads(json.dumps(each.to_dict())) for each in expected]
    assert [(each["device"], each["batch"]) for each in answer["predictions"]] == [
        ("A100-SXM4-40GB", 1), ("A100-SXM4-40GB", 4), ("Tesla T4", 1), ("Tesla T4", 4),
    ]  # fmt: skip


def test_predict_columns_and_table_show_the_same_figures(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (answer,) = run_json(capsys, "predict", net)["predictions"]
    (row,) = run_columns(capsys, "predict", net)
    assert float(row["latency_ms"]) == answer["latency_ms"]
    assert [float(row["memory_low"]), float(row["memory_high"])] == answer["intervals"]["memory_mb"]
    assert row["mig"] == answer["mig"]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table(capsys, "predict", net)
    assert f"{dippm.predict(net).latency_ms:.3g}" in text  # not of the rounded one: rounding twice may differ
    assert answer["mig"] in text


def test_warnings_of_a_piped_prediction_go_to_stderr(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    warnings = run_json(capsys, "predict", net)["predictions"][0]["predictor"]["warnings"]
    assert warnings, "a model this small is bound by the host: there must be a warning"
    assert main(["predict", net]) == 0
    captured = capsys.readouterr()
    assert all(warning in captured.err for warning in warnings)
    assert warnings[0] not in captured.out


def test_device_file_stands_beside_named_devices(net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(
        'name = "My GPU"\narchitecture = "ada"\ncompute_capability = [8, 9]\nsm_count = 46\nfp32_lanes_per_sm = 128\n'
        "base_clock_mhz = 1920\nboost_clock_mhz = 2475\nmemory_mb = 12282\nbandwidth_gb_s = 504\nl2_mb = 36\n"
        "board_power_w = 200\n[peak_tflops]\nfp32 = 29.1\n"
    )
    alone = run_columns(capsys, "predict", net, "--device-file", str(path))
    assert [row["device"] for row in alone] == ["My GPU"]
    both = run_columns(capsys, "predict", net, "--device-file", str(path), "--device", "L4")
    assert [row["device"] for row in both] == ["My GPU", "L4"]
    assert run_json(capsys, "devices", "--device-file", str(path))["device"]["sm_count"] == 46


def test_predict_by_a_trained_predictor(
    net: str, write_predictor: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_predictor(metrics=("latency_ms", "memory_mb"), spreads={"latency_ms": 0.1}))
    answer = run_json(capsys, "predict", net, "--batch", "1,8", "--predictor", folder)
    expected = dippm.predict(net, batch=[1, 8], predictor=folder)
    assert answer["predictions"] == [json.loads(json.dumps(each.to_dict())) for each in expected]
    assert answer["predictions"][0]["predictor"]["name"] == "pmgns"
    (row,) = run_columns(capsys, "predict", net, "--predictor", folder, "--device", "A100", "-p", "amp")
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
    text = run_table(capsys, "predict", net, "--predictor", folder)
    assert "amp, nhwc, eager" in text
    assert "memory =" not in text
    assert "pmgns 9.8, fitted on: 321 labels" in text


@pytest.mark.parametrize(("policy", "slice_name"), [("safe", "1g.5gb"), ("paper", "1g.5gb")])
def test_mig_policy(policy: str, slice_name: str, net: str, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = run_columns(capsys, "predict", net, "--mig-policy", policy)
    assert row["mig"] == slice_name


def test_inspect_json_adds_up(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "inspect", net, "--batch", "2")
    assert set(answer) == {"schema", "model", "prediction", "phases", "operators", "modules"}
    assert sum(each["macs"] for each in answer["operators"]) == 2 * IMAGE_MACS == answer["prediction"]["macs"]
    total_ms = sum(each["time_ms"] for each in answer["operators"])
    assert total_ms == pytest.approx(answer["prediction"]["latency_ms"], rel=1e-2)
    assert answer["modules"]["operators"] == len(answer["operators"])


def test_inspect_columns_list_every_operator(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_columns(capsys, "inspect", net)
    assert [row["kind"] for row in rows] == ["conv", "relu", "global_pool", "linear"]
    assert rows[0]["output_shape"] == "1x16x32x32"
    assert int(rows[0]["macs"]) + int(rows[-1]["macs"]) == IMAGE_MACS


def test_inspect_lists_the_longest_operators_where_asked(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    every = run_columns(capsys, "inspect", net)
    longest = sorted((float(row["time_ms"]) for row in every), reverse=True)[:2]
    assert len(every) > 2
    assert [float(row["time_ms"]) for row in run_columns(capsys, "inspect", net, "--top", "2")] == longest
    listed = run_json(capsys, "inspect", net, "--top", "2")["operators"]
    assert [operator["time_ms"] for operator in listed] == longest


@pytest.mark.usefixtures("tables")
def test_inspect_tables_keep_to_top_and_depth(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_table(capsys, "inspect", net, "--top", "1", "--depth", "1")
    assert "Operators by time" in text
    assert "Operators by live memory" in text
    assert "stem" in text
    assert text.count("1×16×32×32") + text.count("1×10") + text.count("1×16×1×1") == 2
    assert "Operators by time" not in run_table(capsys, "inspect", net, "--top", "0")
    assert "Modules" not in run_table(capsys, "inspect", net, "--depth", "0")


def test_inspect_writes_the_page(net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["inspect", net, "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(page) in captured.err
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_fits(net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("fits", net, "--device", "1g.5gb@A100", "--batch", "1,1000000")
    small, large = run_json(capsys, *words)["fits"]
    assert (small["fits"], large["fits"]) == ("yes", "no")
    assert small["margin_mb"] == pytest.approx(small["capacity_mb"] - small["needed_mb"][1], abs=0.11)
    assert [row["fits"] for row in run_columns(capsys, *words)] == ["yes", "no"]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "4,864" in run_table(capsys, *words)


def test_max_batch(net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("max-batch", net, "--device", "1g.5gb@A100,A100")
    on_slice, on_card = run_json(capsys, *words)["max_batches"]
    assert 1 <= on_slice["batch"] < on_card["batch"]
    assert on_slice["batch"] <= on_slice["batch_at_most"]
    best = str(on_slice["batch"])
    verdicts = [
        run_json(capsys, "fits", net, "--device", "1g.5gb@A100", "--batch", batch)["fits"][0]["fits"]
        for batch in (best, str(int(best) + 1))
    ]
    assert verdicts[0] == "yes"
    assert verdicts[1] != "yes"
    in_time = run_json(capsys, *words, "--latency-ms", "2")["max_batches"]
    assert in_time[1]["batch"] < on_card["batch"]
    assert in_time[1]["bound_by"] == "latency"
    assert [row["batch"] for row in run_columns(capsys, *words)] == [best, str(on_card["batch"])]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert f"{on_slice['batch']:,}" in run_table(capsys, *words)


def test_devices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    specs = api.list_devices()
    answer = run_json(capsys, "devices")
    assert [each["name"] for each in answer["devices"]] == [spec.name for spec in specs]
    rows = run_columns(capsys, "devices")
    assert [row["name"] for row in rows] == [spec.name for spec in specs]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table(capsys, "devices")
    assert "Tesla T4" in text
    row = next(line.split() for line in text.splitlines() if "A100-SXM4-40GB" in line)
    assert row[-1] == str(len(api.find_device("A100").mig_profiles))


def test_one_device_has_sources_and_slices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dippm.find_device("A100")
    device = run_json(capsys, "devices", "a100")["device"]
    assert device["name"] == spec.name
    assert [each["memory_mb"] for each in device["mig_profiles"]] == [each.memory_mb for each in spec.mig_profiles]
    figures = {row["figure"]: row for row in run_columns(capsys, "devices", "A100")}
    assert figures["bandwidth"]["value"] == "1,555 GB/s"
    assert all(row["source"] for name, row in figures.items() if name != "architecture")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = run_table(capsys, "devices", "A100")
    assert "4,864" in text
    assert "1g.5gb" in text


def test_ops(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.graph import OpKind

    operators = run_json(capsys, "ops")["operators"]
    assert {each["kind"] for each in operators} >= {kind.value for kind in OpKind}
    assert all(each["time"] for each in operators)
    assert "Conv" in next(each["from"] for each in operators if each["kind"] == "(onnx)")
    assert {row["kind"] for row in run_columns(capsys, "ops")} == {each["kind"] for each in operators}
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "conv_transpose" in run_table(capsys, "ops")


def test_evaluate_prints_what_the_report_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dippm.evaluation.kernels import KernelReport, KernelScore

    def score(protocol: str, method: str, error: float) -> KernelScore:
        return KernelScore(
            protocol=protocol, table="linear", device="A100", method=method, mape=error, median_ape=error / 2, rows=969
        )

    scores = (score("split", "dippm", 4.4), score("split", "gbdt", 5.7), score("left out", "dippm", 20.2))
    asked: list[tuple[object, ...]] = []

    def evaluate(protocol: str, *, seed: int, retrain: bool) -> KernelReport:
        asked.append((protocol, seed, retrain))
        return KernelReport(seed=seed, scores=scores, has_left_out=True)

    monkeypatch.setattr("dippm.api.evaluate", evaluate)
    answer = run_json(capsys, "evaluate", "--protocol", "kernels", "--seed", "3", "--retrain")
    assert asked == [("kernels", 3, True)]
    assert [each["mape"] for each in answer["scores"]] == [4.4, 5.7, 20.2]
    assert len(run_columns(capsys, "evaluate")) == 3
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    lines = run_table(capsys, "evaluate").splitlines()
    assert any(line.split() == ["linear", "A100", "969", "4.4", "5.7"] for line in lines)
    assert any(line.split() == ["linear", "A100", "969", "10.1"] for line in lines)


def test_evaluate_knows_its_protocols(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--protocol", "tea-leaves", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "protocol.unknown"
