"""Bad input ends with one clear message and the right status, never with a traceback, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dippm.cli import main


def make_proto(nodes: list[onnx.NodeProto] | None = None, *, batch: object = "batch") -> onnx.ModelProto:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], np.ones(108, np.float32).tobytes(), raw=True)
    if nodes is None:
        nodes = [
            helper.make_node("Conv", ["image", "w"], ["h"], kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node("Relu", ["h"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.timeout(20)
def test_operators_that_do_not_fit_together_are_told_at_once(
    batch: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error once came from itself, and who followed where it came from never arrived."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "bad",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [5, 3], [0.0] * 15)],
    )
    path = tmp_path / "bad.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    for command in ("predict", "inspect", "fits"):
        assert main([command, str(path)]) == 3
        assert "The MatMul node that makes 'y' cannot run" in capsys.readouterr().err


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(make_proto(), path)
    return path


class Outcome:
    """Exit status and error object of one call; checks what holds for every failure."""

    def __init__(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        self.status = main(words)
        people = capsys.readouterr()
        assert people.out == ""
        assert people.err.startswith("Error: "), people.err
        assert people.err.count("\n") <= 6
        assert "Traceback" not in people.err
        assert main([*words, "--json"]) == self.status
        programs = capsys.readouterr()
        self.error = json.loads(programs.out)["error"]
        assert self.error["exit_status"] == self.status
        assert self.error["code"] in people.err
        assert "Traceback" not in programs.err

    @property
    def code(self) -> str:
        return str(self.error["code"])

    @property
    def message(self) -> str:
        return str(self.error["message"])


Fail = Callable[..., Outcome]


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Fail:
    def run(*words: object, command: str = "predict") -> Outcome:
        before = sorted(tmp_path.rglob("*"))
        outcome = Outcome([command, *map(str, words)], capsys)
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
        return outcome

    return run


def test_the_good_file_is_good(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(net), "--input", "3,32,32", "--json"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["predictions"]
    assert prediction["macs"] == 4 * 3 * 9 * 32 * 32
    assert prediction["inputs"] == {"image": [1, 3, 32, 32]}


@pytest.mark.parametrize("command", ["predict", "inspect", "fits", "max-batch"])
def test_missing_file(command: str, fail: Fail, tmp_path: Path) -> None:
    outcome = fail(tmp_path / "none.onnx", command=command)
    assert (outcome.status, outcome.code) == (3, "model.missing")
    assert "none.onnx" in outcome.message


def test_empty_file(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    outcome = fail(tmp_path / "empty.onnx")
    assert (outcome.status, outcome.code) == (3, "model.empty")


def test_folder(fail: Fail, tmp_path: Path) -> None:
    assert fail(tmp_path).status == 3


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.97])
def test_truncated_onnx(kept: float, net: Path, fail: Fail, tmp_path: Path) -> None:
    data = net.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[: int(kept * len(data))])
    outcome = fail(tmp_path / "cut.onnx", "--input", "3,32,32")
    assert outcome.status == 3
    assert outcome.code == "onnx.truncated"


@pytest.mark.parametrize("name", ["text.onnx", "text.pt", "text.pt2", "text.bin", "text"])
def test_not_a_model(name: str, fail: Fail, tmp_path: Path) -> None:
    (tmp_path / name).write_text("This is no model at all.\n" * 20)
    assert fail(tmp_path / name).status == 3


def test_wrong_extension_is_read_by_content(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = net.rename(tmp_path / "net.pt")
    assert main(["predict", str(renamed), "--input", "3,32,32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["framework"] == "onnx"


def test_wrong_framework(net: Path, fail: Fail) -> None:
    outcome = fail(net, "--framework", "pytorch")
    assert (outcome.status, outcome.code) == (2, "framework.mismatch")
    outcome = fail(net, "--framework", "mxnet")
    assert (outcome.status, outcome.code) == (2, "framework.unknown")
    assert "onnx" in outcome.message


def test_size_that_the_file_leaves_open_is_named(net: Path, fail: Fail) -> None:
    outcome = fail(net)
    assert outcome.status == 2
    assert "height" in outcome.message


@pytest.mark.parametrize(
    "given",
    [["7,32,32"], ["3,32"], ["picture=3,32,32"], ["3,32,32", "3,32,32"], ["3,32,0"], ["3,a,32"], ["3,32,32:complex7"]],
)
def test_wrong_input(given: list[str], net: Path, fail: Fail) -> None:
    words = [word for entry in given for word in ("--input", entry)]
    outcome = fail(net, *words)
    assert outcome.status == 2
    assert outcome.code.startswith("input.")


@pytest.mark.parametrize("batch", ["0", "-1", "8,0", "1.5", "many", "99999999999"])
def test_wrong_batch(batch: str, net: Path, fail: Fail) -> None:
    outcome = fail(net, "--input", "3,32,32", f"--batch={batch}")
    assert (outcome.status, outcome.code) == (2, "batch.invalid")


@pytest.mark.parametrize(
    ("option", "value", "status", "code"),
    [
        ("--device", "A1000000", 4, "device.unknown"),
        ("--device", "9g.5gb@A100", 4, "device.mig_profile"),
        ("--device", ",", 2, "device.invalid"),
        ("--precision", "fp99", 2, "precision.unknown"),
        ("--mode", "dreaming", 2, "mode.unknown"),
        ("--layout", "nwhc", 2, "layout.unknown"),
        ("--runtime", "tvm", 2, "runtime.unknown"),
        ("--accumulation", "4", 2, "training.unused"),
        ("--optimizer", "adam", 2, "optimizer.unused"),
        ("--device-file", "none.toml", 2, "device_file.unreadable"),
    ],
)
def test_wrong_option(option: str, value: str, status: int, code: str, net: Path, fail: Fail) -> None:
    outcome = fail(net, "--input", "3,32,32", option, value)
    assert (outcome.status, outcome.code) == (status, code)


def test_unknown_device_lists_the_nearest(net: Path, fail: Fail) -> None:
    assert "A100" in fail(net, "--input", "3,32,32", "--device", "A1O0").message


def test_wrong_mig_policy(net: Path, fail: Fail) -> None:
    assert fail(net, "--input", "3,32,32", "--mig-policy", "hope").status == 2


@pytest.mark.parametrize("name", ["timm:no_such_model", "hf:no_such_arch", "torchvision:none"])
def test_unknown_zoo_model(name: str, fail: Fail) -> None:
    outcome = fail(name)
    assert (outcome.status, outcome.code) == (4, "zoo.unknown")


def test_missing_extra(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom dippm.cli import main\n"
        "raise SystemExit(main(['predict', 'timm:resnet34', '--json']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 5
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "extra.missing"
    assert 'pip install "dippm[' in error["message"]
    assert "Traceback" not in result.stderr


def test_state_dict_is_not_a_model(fail: Fail, tmp_path: Path) -> None:
    import torch

    torch.save({"weight": torch.zeros(4, 4)}, tmp_path / "weights.pt")
    outcome = fail(tmp_path / "weights.pt", "--input", "4")
    assert outcome.status == 3
    trusted = fail(tmp_path / "weights.pt", "--input", "4", "--trust-pickle")
    assert trusted.status == 3
    assert "state_dict" in trusted.message


def test_pickle_runs_nothing_without_trust(fail: Fail, tmp_path: Path) -> None:
    import torch

    marker = tmp_path / "ran"
    torch.save(Bomb(str(marker)), tmp_path / "bomb.pt")
    outcome = fail(tmp_path / "bomb.pt", "--input", "4")
    assert outcome.status == 3
    assert "--trust-pickle" in outcome.message or "trust" in outcome.message
    assert not marker.exists()


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.marker,)


def test_cyclic_graph(fail: Fail, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["image", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    (tmp_path / "cycle.onnx").write_bytes(make_proto(nodes).SerializeToString())
    outcome = fail(tmp_path / "cycle.onnx", "--input", "3,32,32")
    assert outcome.status == 3
    assert "cycle" in outcome.message


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
def test_external_data_outside_the_folder(location: str, fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(432))
    folder = tmp_path / "model"
    folder.mkdir()
    proto = make_proto()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (folder / "net.onnx").write_bytes(proto.SerializeToString())
    outcome = fail(folder / "net.onnx", "--input", "3,32,32")
    assert outcome.status == 3
    assert location in outcome.message


@pytest.mark.parametrize("name", ["bomb.pt2", "bomb.pt", "bomb.zip"])
def test_archive_that_unpacks_to_far_more_than_it_weighs(name: str, fail: Fail, tmp_path: Path) -> None:
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for member in ("archive_format", "models/model.json", "serialized_exported_program.json", "data.pkl"):
            with archive.open(f"bomb/{member}", "w", force_zip64=True) as stream:
                for _ in range(64):
                    stream.write(bytes(1 << 20))
    start = time.monotonic()
    outcome = fail(path, "--input", "3,32,32")
    assert outcome.status == 3
    assert time.monotonic() - start < 30


def test_tensor_that_claims_more_than_the_file_holds(fail: Fail, tmp_path: Path) -> None:
    proto = make_proto()
    proto.graph.initializer[0].dims[:] = [2**40, 2**20, 3, 3]
    (tmp_path / "huge.onnx").write_bytes(proto.SerializeToString())
    assert fail(tmp_path / "huge.onnx", "--input", "3,32,32").status in {2, 3, 4}


@pytest.mark.slow
def test_hundred_thousand_nodes_are_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = 100_000
    nodes = [helper.make_node("Relu", ["image" if n == 0 else f"t{n}"], [f"t{n + 1}"]) for n in range(count - 1)]
    nodes.append(helper.make_node("Relu", [f"t{count - 1}"], ["y"]))
    (tmp_path / "long.onnx").write_bytes(make_proto(nodes).SerializeToString())
    start = time.monotonic()
    assert main(["predict", str(tmp_path / "long.onnx"), "--input", "3,8,8", "--json"]) == 0
    assert time.monotonic() - start < 120
    assert json.loads(capsys.readouterr().out)["model"]["nodes"] == count


def test_page_never_overwrites_the_model(net: Path, fail: Fail) -> None:
    data = net.read_bytes()
    outcome = fail(net, "--input", "3,32,32", "--html", net, command="inspect")
    assert (outcome.status, outcome.code) == (2, "output.is_model")
    assert net.read_bytes() == data
    outcome = fail(net, "--input", "3,32,32", "--html", net.parent / "none" / "page.html", command="inspect")
    assert (outcome.status, outcome.code) == (2, "output.unwritable")


def test_names_in_a_model_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["h"], name="\x1b[2Jnode"),
        helper.make_node("\x1b[31mNoSuchOp", ["h"], ["y"], name="\x1b]0;title\x07", domain="custom"),
    ]
    (tmp_path / "net.onnx").write_bytes(make_proto(nodes).SerializeToString())
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    status = main(["inspect", str(tmp_path / "net.onnx"), "--input", "3,32,32"])
    captured = capsys.readouterr()
    assert status in {0, 3, 4}
    assert "\x1b" not in captured.out + captured.err
    assert "\x07" not in captured.out + captured.err


def test_modules_nested_without_end_are_still_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "/".join(f"m{level}" for level in range(3000))
    nodes = [helper.make_node("Relu", ["image"], ["y"], name=f"/{name}/Relu")]
    (tmp_path / "deep.onnx").write_bytes(make_proto(nodes).SerializeToString())
    assert main(["inspect", str(tmp_path / "deep.onnx"), "--input", "3,8,8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"][0]["kind"] == "relu"
