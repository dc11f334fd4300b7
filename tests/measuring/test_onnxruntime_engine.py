"""Inference in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

torch = pytest.importorskip("torch")

from dippm.costs.conditions import Conditions  # noqa: E402
from dippm.errors import DippmError, UnsupportedError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.measuring import onnxruntime_engine  # noqa: E402
from dippm.measuring.bench import Bench  # noqa: E402
from dippm.measuring.configuration import Configuration, Engine  # noqa: E402
from dippm.measuring.measurement import Outcome  # noqa: E402
from dippm.measuring.model_files import FileSource  # noqa: E402
from dippm.measuring.onnxruntime_engine import file_call, module_call  # noqa: E402
from dippm.measuring.protocol import Plan  # noqa: E402
from dippm.measuring.sample_inputs import make_inputs  # noqa: E402


def asked(**conditions: str) -> Configuration:
    return Configuration(batch=3, conditions=Conditions.parse(**conditions), engine=Engine.ONNXRUNTIME)


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    """log(x) + ids: NaN for about half of all normal x; x has an open size."""
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["positive"]),
            helper.make_node("Cast", ["ids"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["positive", "numbers"], ["y"]),
        ],
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "L"]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "L"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def test_a_file(path: Path) -> None:
    with file_call(path, parse_input_shapes({"x": (5,)}), asked(), device="cpu") as call:
        (output,) = call()  # type: ignore[misc]
    assert output.shape == (3, 5)
    assert np.isfinite(output).all()


def test_a_file_is_measured(path: Path) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    source = FileSource(path, parse_input_shapes({"x": (5,)}))
    results = list(bench.measure(source, [asked(), asked()]))
    assert [result.outcome for result in results] == [Outcome.OK] * 2, results[0].message
    assert all(result.latency_ms is not None for result in results)


@pytest.mark.parametrize(
    ("shapes", "code"),
    [
        (InputShapes(), "input.shape_needed"),
        (parse_input_shapes({"z": (5,)}), "input.name_unknown"),
        (parse_input_shapes([(5,), (1,), (1,)]), "input.name_unknown"),
    ],
)
def test_inputs_that_do_not_fit(path: Path, shapes: InputShapes, code: str) -> None:
    with pytest.raises(DippmError) as caught, file_call(path, shapes, asked(), device="cpu"):
        pytest.fail("it must not get here")
    assert caught.value.code == code


def test_a_module_gives_what_pytorch_gives(models: Any) -> None:
    pytest.importorskip("onnxscript")
    module, shapes = models.Example().build("cpu")
    inputs = make_inputs(module, shapes, batch=3, device="cpu")
    with torch.no_grad():
        expected = module(*inputs.args).numpy()
    with module_call(module, inputs, asked(), device="cpu") as call:
        (output,) = call()  # type: ignore[misc]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_on_a_gpu_the_weights_are_there_once(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    log: list[str] = []
    module, shapes = models.Example().build("cpu")
    inputs = make_inputs(module, shapes, batch=3, device="cpu")

    def open_session(path: Path, configuration: Configuration, device: str) -> Any:
        log.append("session" if path.exists() else "no file")
        return SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="x")])

    monkeypatch.setattr(module, "to", lambda device: log.append(f"to {device}"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("empty_cache"))
    monkeypatch.setattr(onnxruntime_engine, "_open_session", open_session)
    monkeypatch.setattr(onnxruntime_engine, "_bound", lambda session, feeds, device: lambda: feeds["x"].shape)
    with module_call(module, inputs, asked(precision="fp32-strict"), device="cuda:0") as call:
        assert call() == (3, 8)
        assert log == ["to cpu", "empty_cache", "session"]
    assert log[3:] == ["to cuda:0"]


@pytest.mark.parametrize(
    ("conditions", "device"),
    [({"precision": "amp"}, "cpu"), ({"precision": "fp32"}, "cuda:0"), ({"layout": "nhwc"}, "cpu")],
)
def test_what_onnxruntime_cannot_be_told(conditions: dict[str, str], device: str, path: Path) -> None:
    shapes = parse_input_shapes({"x": (5,)})
    with pytest.raises(UnsupportedError) as caught, file_call(path, shapes, asked(**conditions), device=device):
        pytest.fail("it must not get here")
    assert caught.value.code == "engine.unsupported"
