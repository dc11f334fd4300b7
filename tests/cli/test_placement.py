"""``fits`` and ``max-batch`` in training, by prices, and under a bound on the step time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dippm.cli import main


@pytest.fixture(name="net")
def _net(tmp_path: Path) -> str:
    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, np.ones(shape, np.float32).tobytes(), raw=True)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w"], ["h"], kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Dropout", ["f"], ["d"]),
            helper.make_node("Gemm", ["d", "v"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [weight("w", 16, 3, 3, 3), weight("v", 16, 10)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def _rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert main(list(words)) == 0
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_predict_a_step(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", net, "--mode", "training", "--optimizer", "adamw", "--batch", "128")
    (answer,) = _json(capsys, *words)["predictions"]
    assert (answer["mode"], answer["optimizer"], answer["accumulation"]) == ("training", "adamw", 1)
    assert answer["step_time_ms"] == answer["latency_ms"]
    assert list(answer["memory_parts_mb"]) == [
        "context", "weights", "gradients", "optimizer", "activations", "workspace", "slack",
    ]  # fmt: skip
    assert answer["mig"] == "1g.5gb"
    (many,) = _json(capsys, *words, "--accumulation", "8")["predictions"]
    assert many["macs"] == 8 * answer["macs"]
    assert many["accumulation"] == 8


def test_the_title_says_how_it_is_trained(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert main(["predict", net, "--mode", "training", "--accumulation", "4"]) == 0
    text = capsys.readouterr().out
    assert "training by momentum, 4 batches a step" in text
    assert "step, ms" in text
    assert main(["inspect", net, "--mode", "training", "--batch", "8"]) == 0
    assert "step = forward" in capsys.readouterr().out


def test_fits_in_training(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fits", net, "--batch", "6000", "--device", "1g.5gb@A100")
    (at_inference,), (in_training,) = (
        _json(capsys, *words, "--mode", mode)["fits"] for mode in ("inference", "training")
    )
    assert at_inference["needed_mb"][0] < in_training["needed_mb"][0]
    assert at_inference["fits"] != "no" == in_training["fits"]
    assert in_training["largest_part"] == "activations"
    assert in_training["memory_parts_mb"]["gradients"] > 0


def test_the_cheapest_comes_first(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("fits", net, "--batch", "64", "--device", "A100,T4", "--price", "A100=100,T4=0.1")
    assert [row["device"] for row in _rows(capsys, *words)] == ["Tesla T4", "A100-SXM4-40GB"]
    first = _json(capsys, *words)["fits"][0]
    assert first["price"]["per_hour"] == 0.1
    assert first["price"]["per_sample"] == pytest.approx(first["price"]["per_call"] / 64, rel=1e-3)
    largest = _rows(capsys, "max-batch", *words[1:2], *words[4:])
    assert [row["device"] for row in largest] == ["Tesla T4", "A100-SXM4-40GB"]
    assert float(largest[0]["price_per_sample"]) < float(largest[1]["price_per_sample"])
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    for command in (words, ("max-batch", net, *words[4:], "--latency-ms", "5")):
        assert main(list(command)) == 0
        text = capsys.readouterr().out
        assert "0.1/h" in text
        assert "/M" in text
        assert "cheapest" in text


def test_a_bound_on_the_step_time(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("max-batch", net, "--mode", "training", "--device", "A100")
    (answer,) = _json(capsys, *words, "--step-time-ms", "10")["max_batches"]
    assert answer["bound_by"] == "step_time"
    assert answer["prediction"]["step_time_ms"] <= 10
    assert answer["batch"] < _json(capsys, *words)["max_batches"][0]["batch"]


def test_warnings_of_the_file_go_to_the_side(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(net)
    for node in model.graph.node:
        if node.op_type == "Dropout":
            node.op_type = "Identity"
    onnx.save(model, net)
    assert main(["fits", net, "--mode", "training"]) == 0
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
def test_wrong_options(net: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str) -> None:
    for command in ("fits", "max-batch"):
        assert main([command, net, *words, "--json"]) in (2, 4)
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code


@pytest.mark.parametrize("command", ["predict", "inspect", "fits", "max-batch"])
def test_every_command_takes_software(net: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (command, net, "--device", "RTX 3090")
    assert main([*words, "--software", "torch 1.12+cu113"]) == 0
    assert "torch 1.12+cu113" in capsys.readouterr().err
    assert main(list(words)) == 0
    assert "torch" not in capsys.readouterr().err
    assert main([*words, "--software", "tensorflow 2.4"]) == 2
    assert "torch 1.12+cu113" in capsys.readouterr().err


def test_software_is_in_the_json(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (net, "--device", "RTX 3090", "--software", "1.12+cu113")
    (answer,) = _json(capsys, "predict", *words)["predictions"]
    assert answer["software"] == "torch 1.12+cu113"
    assert answer["memory_parts_mb"]["context"] == pytest.approx(1708)
    assert _json(capsys, "fits", *words)["fits"][0]["software"] == "torch 1.12+cu113"
    assert _json(capsys, "max-batch", *words)["max_batches"][0]["prediction"]["software"] == "torch 1.12+cu113"
    assert _json(capsys, "predict", net)["predictions"][0]["software"] == "torch 2.13+cu130"
