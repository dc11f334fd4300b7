"""Models saved by Paddle, through its converter, in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import dippm
from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.paddle import convert
from dippm.frontends.paddle.convert import convert_paddle

# Paddle's own code warns as it saves.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("warm_conversions")]

PARAMETERS = 3 * 8 * 9 + 8 + 2 * 8 + 8 * 4 * 4 * 10 + 10
KINDS = ["conv", "batch_norm", "hard_swish", "max_pool", "view", "linear"]
NO_INPUT = InputShapes()


def kinds(graph: dippm.Graph) -> list[str]:
    return [node.kind.value for node in graph.nodes]


@pytest.mark.parametrize("named", ["", "net.json", "net.pdiparams"])
def test_a_saved_model(saved: Path, named: str) -> None:
    graph = dippm.load(saved / named)
    assert kinds(graph) == KINDS
    assert graph.parameter_count == PARAMETERS
    assert (graph.framework, graph.source) == ("paddle", str(saved / named))
    assert [graph.tensors[index].name for index in graph.inputs] == ["image"]
    assert not graph.warnings


@pytest.mark.parametrize("named", ["", "net.pdmodel"])
def test_a_model_saved_by_paddle_2(saved_old: Path, named: str) -> None:
    graph = dippm.load(saved_old / named)
    assert kinds(graph) == KINDS
    assert graph.parameter_count == PARAMETERS


@pytest.mark.parametrize("weights", [None, b"", b"not what Paddle writes"])
def test_weights_are_not_needed(saved: Path, tmp_path: Path, weights: bytes | None) -> None:
    shutil.copy(saved / "net.json", tmp_path)
    if weights is not None:
        (tmp_path / "net.pdiparams").write_bytes(weights)
    assert dippm.load(tmp_path / "net.json").parameter_count == PARAMETERS


@pytest.mark.usefixtures("fresh_cache")
def test_the_result_holds_no_weights_and_is_kept(saved: Path, tmp_path: Path) -> None:
    first = convert_paddle(saved / "net.json", input=NO_INPUT)
    model = onnx.load_from_string(first.model)
    assert not any(item.raw_data or item.float_data for item in model.graph.initializer)
    assert {tuple(item.dims) for item in model.graph.initializer} == {(8, 3, 3, 3), (8,), (128, 10), (10,)}
    assert not first.was_cached
    assert first.converter_s > 0
    again = convert_paddle(Path(shutil.copy(saved / "net.json", tmp_path)), input=NO_INPUT)
    assert again.was_cached
    assert again.converter_s == first.converter_s


def test_shapes_given_by_the_caller(paddle: Any, tmp_path: Path) -> None:
    layer = paddle.nn.Sequential(paddle.nn.Embedding(10, 4), paddle.nn.Linear(4, 2))
    spec = paddle.static.InputSpec([None, None], "int64", "ids")
    paddle.jit.save(layer, str(tmp_path / "m"), input_spec=[spec])
    with pytest.raises(dippm.UsageError, match="'ids'") as caught:
        dippm.load(tmp_path)
    assert caught.value.code == "input.shape_needed"
    graph = dippm.load(tmp_path, input={"ids": (7,)})
    assert str(graph.tensors[graph.outputs[0]].shape) == str(
        (dippm.graph.Dim(1, 0), *map(dippm.graph.Dim, (0, 0), (7, 2)))
    )


@pytest.mark.parametrize(("form", "cut"), [("json", 0.5), ("pdmodel", 0.5), ("pdmodel", 0.99)])
def test_a_file_that_is_cut_short(saved: Path, saved_old: Path, tmp_path: Path, form: str, cut: float) -> None:
    whole = ((saved if form == "json" else saved_old) / f"net.{form}").read_bytes()
    path = tmp_path / f"m.{form}"
    path.write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(ModelReadError):
        dippm.load(path)


def test_an_empty_file(paddle: Any, tmp_path: Path) -> None:
    (tmp_path / "m.json").touch()
    with pytest.raises(ModelReadError) as caught:
        dippm.load(tmp_path / "m.json")
    assert caught.value.code == "model.empty"


def test_an_operator_that_paddle_does_not_have(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text((saved / "net.json").read_text().replace('"1.conv2d"', '"1.conv9d"'))
    with pytest.raises(ModelReadError) as caught:
        dippm.load(path)
    assert caught.value.code == "paddle.invalid"


def test_an_operator_without_an_onnx_form_is_named(paddle: Any, save: Callable[..., Path]) -> None:
    class Special(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.head = paddle.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return paddle.lgamma(self.head(x))

    with pytest.raises(UnsupportedError, match=r"1 of the operators of '.*': pd_op\.lgamma\.") as caught:
        dippm.load(save(Special(), 4))
    assert caught.value.code == "paddle.operator_unsupported"


@pytest.fixture
def save(paddle: Any, tmp_path: Path) -> Callable[..., Path]:
    """Saves a layer that takes one input."""

    def run(layer: Any, *shape: int) -> Path:
        spec = paddle.static.InputSpec([None, *shape], "float32", "x")
        paddle.jit.save(layer, str(tmp_path / "m"), input_spec=[spec])
        return tmp_path / "m.json"

    return run


def test_channels_last_is_refused_with_the_way_round(paddle: Any, save: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedError, match="--layout nhwc") as caught:
        dippm.load(save(paddle.nn.Conv2D(3, 8, 3, data_format="NHWC"), 8, 8, 3))
    assert caught.value.code == "paddle.channels_last"


def test_what_the_converter_leaves_out_is_told(paddle: Any, save: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedError, match=r"pd_op\.rnn of mode RNN_TANH.* in part only") as caught:
        dippm.load(save(paddle.nn.SimpleRNN(4, 8), 5, 4))
    assert caught.value.code == "paddle.operator_unsupported"


def test_the_loop_of_a_cell_is_refused_with_the_layer_to_use(paddle: Any, save: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedError, match=r"paddle\.nn\.LSTM") as caught:
        dippm.load(save(paddle.nn.RNN(paddle.nn.LSTMCell(4, 8)), 5, 4))
    assert caught.value.code == "paddle.operator_unsupported"


def test_the_converter_s_own_words_are_told_where_it_ends_its_process(paddle: Any, save: Callable[..., Path]) -> None:
    layer = paddle.nn.Conv2D(3, 4, 3, padding="SAME", dilation=2)
    with pytest.raises(ModelReadError, match="While dilations != 1") as caught:
        dippm.load(save(layer, 3, 8, 8))
    assert caught.value.code == "conversion.crashed"


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_a_softplus(paddle: Any, save: Callable[..., Path], beta: float) -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Softplus(beta=beta))
    assert kinds(dippm.load(save(layer, 4))) == ["linear", "softplus"]


@pytest.mark.parametrize("reduce", ["mean", "max", "sum", "std"])
def test_a_reduction_of_a_whole_tensor(paddle: Any, save: Callable[..., Path], reduce: str) -> None:
    class Reducing(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = paddle.nn.Linear(4, 6)

        def forward(self, x: Any) -> Any:
            made = self.linear(x)
            return made - getattr(made, reduce)()

    graph = dippm.load(save(Reducing(), 4))
    assert "reduce" in kinds(graph)
    assert [dim.at(3) for dim in graph.tensors[graph.outputs[0]].shape] == [3, 6]


def test_operators_that_the_converter_does_not_know_are_read_as_others(paddle: Any, save: Callable[..., Path]) -> None:
    functional = paddle.nn.functional

    class Rare(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            y = x / paddle.norm(x)
            y = y - paddle.amax(y, -1, keepdim=True) - paddle.amin(y)
            y = paddle.masked_fill(y, y > 0, 1.0)
            y = functional.celu(paddle.expm1(paddle.stanh(paddle.trunc(y))))
            y = paddle.lerp(y, x, 0.5)
            y = functional.pixel_unshuffle(functional.channel_shuffle(y, 4), 2)
            y = functional.maxout(paddle.repeat_interleave(y, 3, 2), 2)
            return paddle.addmm(paddle.ones([8]), y.reshape([-1, 8]), paddle.ones([8, 8]))

    graph = dippm.load(save(Rare(), 8, 16, 16))
    assert graph.unsupported_ops == {}
    assert [dim.at(3) for dim in graph.tensors[graph.outputs[0]].shape] == [3 * 16 * 3 * 8, 8]
    assert kinds(graph).count("reduce") == 4
    assert dippm.predict(graph, batch=3, device="A100").macs == 3 * 16 * 3 * 8 * 8 * 8


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_deformable_convolution(paddle: Any, save: Callable[..., Path], is_masked: bool) -> None:
    class Deformed(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.offsets = paddle.nn.Conv2D(4, 27, 3, padding=1)
            self.convolution = paddle.vision.ops.DeformConv2D(4, 8, 3, padding=1)

        def forward(self, x: Any) -> Any:
            found = self.offsets(x)
            return self.convolution(x, found[:, :18], *([found[:, 18:]] if is_masked else []))

    graph = dippm.load(save(Deformed(), 4, 8, 8))
    (sampled,) = [node for node in graph.nodes if node.kind.value == "grid_sample"]
    assert len(sampled.inputs) == 2 + is_masked


def test_interpolation_by_a_factor(paddle: Any, save: Callable[..., Path]) -> None:
    layer = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 1), paddle.nn.Upsample(scale_factor=2, mode="bilinear"))
    graph = dippm.load(save(layer, 3, 8, 8))
    assert kinds(graph) == ["conv", "resize"]
    assert [dim.fixed for dim in graph.tensors[graph.outputs[0]].shape[1:]] == [4, 16, 16]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_of_a_recurrent_network_are_one_operator(paddle: Any, save: Callable[..., Path], kind: str) -> None:
    layer = getattr(paddle.nn, kind)(4, 8, num_layers=3, direction="bidirect")
    graph = dippm.load(save(layer, 5, 4))
    (node,) = [node for node in graph.nodes if node.kind.value == kind.lower()]
    assert (node.attributes["num_layers"], node.attributes["num_directions"]) == (3, 2)
    assert node.attributes["batch_first"] is True
    assert graph.parameter_count == sum(int(item.size) for item in layer.parameters())


@pytest.mark.parametrize(("steps", "given"), [(None, "5,4"), (5, None)])
def test_a_recurrent_layer_that_takes_time_first(paddle: Any, tmp_path: Path, steps: int | None, given: Any) -> None:
    spec = paddle.static.InputSpec([steps, None, 4], "float32", "x")
    paddle.jit.save(paddle.nn.LSTM(4, 8, time_major=True), str(tmp_path / "m"), input_spec=[spec])
    graph = dippm.load(tmp_path / "m.json", input=given)
    assert graph.tensors[graph.inputs[0]].shape == ((0, 5), (1, 0), (0, 4))
    assert any("takes time first" in warning for warning in graph.warnings) is (steps is None)


def test_causal_attention_is_one_operator(paddle: Any, save: Callable[..., Path]) -> None:
    class Attention(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.project = paddle.nn.Linear(32, 96)

        def forward(self, x: Any) -> Any:
            query, key, value = paddle.split(self.project(x).reshape([0, 0, 12, 8]), 3, axis=2)
            attend = paddle.nn.functional.scaled_dot_product_attention
            return attend(query, key, value, is_causal=True)

    graph = dippm.load(save(Attention(), 16, 32))
    (node,) = [node for node in graph.nodes if node.kind.value == "attention"]
    assert node.attributes["is_causal"] is True
    assert not {"softmax", "matmul", "add", "fill"} & set(kinds(graph))


class Mark:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_no_pickle_is_opened(paddle: Any, tmp_path: Path) -> None:
    path, mark = tmp_path / "m.pdmodel", tmp_path / "mark"
    path.write_bytes(pickle.dumps(Mark(mark)))
    with pytest.raises(ModelReadError):
        convert_paddle(path, input=NO_INPUT)
    with pytest.raises(DippmError):
        dippm.load(path, framework="paddle")
    assert not mark.exists()


WATCH = """
import os, sys
def watch(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        with open({log!r}, "a") as log:
            log.write(repr(arguments[:2]) + "\\n")
sys.addaudithook(watch)
"""


@pytest.mark.usefixtures("fresh_cache", "cold_conversions")
def test_nothing_is_installed_while_a_model_is_converted(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, modules, log, mark = (tmp_path / name for name in ("bin", "lib", "log", "mark"))
    programs.mkdir()
    (modules / "pip").mkdir(parents=True)
    for name in ("pip", "pip3"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (programs / name).chmod(0o755)
    (modules / "pip" / "__init__.py").touch()
    (modules / "pip" / "__main__.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (modules / "sitecustomize.py").write_text(WATCH.format(log=str(log)))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(modules))
    assert not convert_paddle(saved, input=NO_INPUT).was_cached
    assert not mark.exists()
    assert "pip" not in (log.read_text() if log.exists() else "").replace(str(tmp_path), "")
    # The trap works: what would be run is what lies in it.
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    subprocess.run([sys.executable, "-c", "import os; os.system('pip')"], env=environment, check=True)
    assert mark.exists()
    assert "pip" in log.read_text()


@pytest.mark.parametrize("absent", ["paddle", "paddle2onnx", "packaging"])
def test_an_absent_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.setattr(convert, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(MissingExtraError, match=r'pip install "dippm\[paddle\]"') as caught:
        convert_paddle(tmp_path / "m.json", input=NO_INPUT)
    assert caught.value.package == absent


def test_the_command_line(saved: Path, tmp_path: Path) -> None:
    def run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dippm", "predict", str(path), "--device", "A100", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(saved / "net.json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["framework"] == "paddle"
    (tmp_path / "m.json").write_bytes((saved / "net.json").read_bytes()[:500])
    failed = run(tmp_path / "m.json")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "export it again" in " ".join(failed.stderr.split())
