"""``dippm pack`` and ``dippm predict --format k8s``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

import dippm
from dippm.cli import main


@pytest.fixture(name="net")
def _net(tmp_path: Path) -> str:
    shape = ["batch", 3, 64, 64]
    weight = np.ones((16, 3, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16, 64, 64])],
        [helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight.tobytes(), raw=True)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_json_is_the_api(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", net, "--replicas", f"{net}=8", "--gpus", "2", "--batch", "4", "--json"]) == 0
    captured = capsys.readouterr()
    answer: dict[str, Any] = json.loads(captured.out)
    assert answer == {"schema": 1, "packing": dippm.pack([net], replicas={net: 8}, gpus=2, batch=4).to_dict()}
    assert captured.err == ""
    packing = answer["packing"]
    assert (packing["gpu_count"], packing["gpu_count_at_least"], packing["optimal"]) == (2, 2, True)
    assert (packing["compute_slices"], packing["compute_slices_at_least"]) == (8, 8)
    assert [len(gpu["slices"]) for gpu in packing["gpus"]] == [7, 1]
    assert packing["models"][0]["replicas"] == 8


def test_columns_have_one_row_for_each_slice(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", net, "--replicas", f"{net}=2", "--device", "A30,T4", "--gpus", "1,1"]) == 0
    captured = capsys.readouterr()
    header, *rows = (line.split("\t") for line in captured.out.splitlines())
    assert header[:5] == ["gpu", "device", "profile", "start", "model"]
    assert [row[:5] for row in rows] == [["0", "A30", "1g.6gb", start, net] for start in ("0", "1")]
    found = dict(zip(header, rows[0], strict=True))
    prediction = dippm.predict(net, device="1g.6gb@A30")
    assert float(found["latency_ms"]) == pytest.approx(prediction.latency_ms, rel=1e-3)
    assert float(found["needed_high"]) <= float(found["capacity_mb"])
    assert "1 GPU, 2 compute slices: proved to be the fewest." in captured.err


def test_whole_cards_have_no_slices_to_count(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", net, "--device", "T4"]) == 0
    assert "1 GPU: proved to be the fewest." in capsys.readouterr().err
    assert main(["pack", net, "--device", "A100"]) == 0
    assert "1 GPU, 1 compute slice: proved to be the fewest." in capsys.readouterr().err


def test_the_picture_shows_every_gpu(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TTY_COMPATIBLE", "1"), ("TERM", "dumb"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    assert main(["pack", net, "--replicas", f"{net}=16"]) == 0
    text = capsys.readouterr().out
    assert "GPU 0 to 1, each  A100-SXM4-40GB  7 compute slices in use, 0 to be had" in text
    assert "GPU 2  A100-SXM4-40GB  2 compute slices in use, 5 to be had" in text
    pictures = [line for line in text.splitlines() if line.startswith("│") and "1g.5gb" in line]
    assert [line.count("1g.5gb") for line in pictures] == [7, 2]
    assert all(len(line) <= 80 for line in text.splitlines())
    boxes = [line for line in text.splitlines() if line.startswith(("┌", "└", "│"))]
    assert len({len(line) for line in boxes}) == 1
    assert "3 GPUs, 16 compute slices: proved to be the fewest." in text


def test_replicas_name_their_model_where_there_are_several(
    net: str, run_json: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [each["replicas"] for each in run_json("pack", net, "--replicas", "3")["packing"]["models"]] == [3]
    for replicas in ("3", "=3", f"{net}=1,3"):
        assert main(["pack", net, net, "--replicas", replicas]) == 2
        assert capsys.readouterr().err == (
            f"Error: Replicas must be written as MODEL=N joined by commas, such as {net}=3. Got '{replicas}' instead. "
            f"The models are {net}, {net} #2. [pack.replicas]\n"
        )


def test_a_path_may_hold_what_parts_replicas(net: str, tmp_path: Path, run_json: Callable[..., dict[str, Any]]) -> None:
    path = tmp_path / "a,b=1,c.onnx"
    path.write_bytes(Path(net).read_bytes())
    answer = run_json("pack", str(path), net, "--replicas", f" {path} = 2 , {net}=3")
    assert {each["name"]: each["replicas"] for each in answer["packing"]["models"]} == {str(path): 2, net: 3}


def test_where_boxes_have_no_room_slices_are_listed(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(net).parent)
    for name, value in (("TTY_COMPATIBLE", "1"), ("TERM", "xterm"), ("NO_COLOR", "1"), ("COLUMNS", "64")):
        monkeypatch.setenv(name, value)
    assert main(["pack", "net.onnx", "--replicas", "net.onnx=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["  1g.5gb  net.onnx"] * 2
    assert "│" not in "".join(lines)


def test_a_file_of_models(net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[[model]]\nmodel = "net.onnx"\nname = "many"\nreplicas = 3\nbatch = 16\n', encoding="utf-8")
    assert main(["pack", net, "--models", str(path), "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["packing"]["models"]
    assert [(each["name"], each["replicas"], each["batch"]) for each in models] == [(net, 1, 1), ("many", 3, 16)]


def test_steps_of_training_are_packed_by_what_they_need(net: str, run_json: Callable[..., dict[str, Any]]) -> None:
    words = ["--mode", "training", "--batch", "512", "--accumulation", "4"]
    (packed,) = run_json("pack", net, *words)["packing"]["models"]
    (fit,) = run_json("fits", net, *words)["fits"]
    assert packed["needed_mb"] == {"A100-SXM4-40GB": fit["needed_mb"]}
    assert packed["mode"] == "training"


def test_warnings_are_of_the_cards_in_use_and_of_what_is_shown(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any("Energy" in text for text in dippm.predict(net, device="T4").warnings)
    words = ["pack", net, net, "--device", "A30,T4"]
    assert main(words) == 0
    piped = capsys.readouterr().err
    assert "! " in piped
    for name, value in (("TTY_COMPATIBLE", "1"), ("TERM", "dumb"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)
    assert main(words) == 0
    for text in (piped, capsys.readouterr().out):
        assert "on A30 in fp32" in text
        assert "T4" not in text
        assert "Energy" not in text


def test_manifests(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", net, "--format", "k8s"]) == 0
    config, deployment = yaml.safe_load_all(capsys.readouterr().out)
    assert (config["kind"], deployment["spec"]["replicas"]) == ("ConfigMap", 1)
    assert main(["predict", net, "--format", "k8s"]) == 0
    pod = yaml.safe_load(capsys.readouterr().out)
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/mig-1g.5gb": 1}}
    assert pod["metadata"]["annotations"]["dippm/model"] == net


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (["predict", "NET", "--format", "yaml"], "format.unknown", 2),
        (["predict", "NET", "--format", "k8s", "--json"], "format.twice", 2),
        (["predict", "NET", "--format", "k8s", "--batch", "1,2"], "format.several", 2),
        (["predict", "NET", "--format", "k8s", "--device", "A100,T4"], "format.several", 2),
        (["predict", "NET", "--format", "k8s", "--device", "T4", "--batch", "200000"], "k8s.too_large", 4),
        (["pack"], "pack.models", 2),
        (["pack", "NET", "--gpus", "two"], "pack.gpus", 2),
        (["pack", "NET", "--gpus", "1,1"], "pack.gpus", 2),
        (["pack", "NET", "--replicas", "NET"], "pack.replicas", 2),
        (["pack", "NET", "--replicas", "NET=1,NET=2"], "pack.replicas", 2),
        (["pack", "NET", "--replicas", "other=1"], "pack.replicas", 2),
        (["pack", "NET", "--batch", "1,2"], "batch.invalid", 2),
        (["pack", "NET", "--latency-ms", "0"], "latency.invalid", 2),
        (["pack", "NET", "--mode", "training", "--checkpointing"], "training.no_blocks", 4),
        (["pack", "NET", "--latency-ms", "0.000001"], "pack.too_large", 4),
        (["pack", "NET", "--replicas", "NET=8", "--gpus", "1"], "pack.no_room", 4),
        (["pack", "nowhere.onnx"], "model.missing", 3),
        (["pack", "NET", "--models", "nowhere.toml"], "models_file.unreadable", 2),
    ],
)
def test_what_is_refused(
    words: list[str], code: str, status: int, net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("NET", net) for word in words]) == status
    captured = capsys.readouterr()
    if "--json" in words:
        assert json.loads(captured.out)["error"]["code"] == code
    else:
        assert f"[{code}]" in captured.err


def test_without_a_model_the_file_of_models_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--device", "A30"]) == 2
    assert "Name models, or give a file of them (--models FILE" in capsys.readouterr().err


def test_packing_files_imports_no_framework(net: str) -> None:
    code = f"import sys, dippm.cli; dippm.cli.main(['pack', {net!r}, '--json']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
