"""``dippm.measure``: with a device that answers at once, and once for real."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import dippm
from dippm.costs.conditions import Conditions, Optimizer
from dippm.costs.cpu_time import CpuRates
from dippm.costs.precision import Precision
from dippm.errors import ModelReadError, UnsupportedError, UsageError
from dippm.measuring import cpu_rates, device_names, worker
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.predictors.cpu import CpuPredictor


class FakeWorker:
    asked: list[tuple[Any, list[Configuration]]]

    def __init__(self, device: str, *, configuration_limit_s: float) -> None:
        self.device = device
        type(self).asked = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        self.asked.append((source, list(configurations)))
        for configuration in configurations:
            is_full = configuration.batch > 100
            yield Measurement(
                outcome=Outcome.OUT_OF_MEMORY if is_full else Outcome.OK,
                device="H200",
                measured_at="2026-01-01T00:00:00+00:00",
                latency_ms=None if is_full else 1.5 * configuration.batch,
            )


@pytest.fixture
def net(tmp_path: Path) -> Path:
    weight = helper.make_tensor("w", TensorProto.FLOAT, (8, 8), np.ones((8, 8), np.float32).tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [weight],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def device_name(monkeypatch: pytest.MonkeyPatch) -> Any:
    def name_it(name: str) -> None:
        monkeypatch.setattr(worker, "Worker", FakeWorker)
        monkeypatch.setattr(device_names, "describe_device", lambda device: name)

    name_it("H200")
    return name_it


@pytest.mark.usefixtures("device_name")
def test_a_gpu_of_the_catalogue_is_measured_and_predicted(net: Path) -> None:
    results = dippm.measure(net, batch=[1, 8], device="cuda:1", precision="tf32")
    predictions = dippm.predict(net, batch=[1, 8], device="H200", precision="tf32")
    for result, prediction in zip(results, predictions, strict=True):
        assert result.measurement.latency_ms == 1.5 * result.configuration.batch
        assert result.prediction is not None
        assert result.prediction.to_dict() == prediction.to_dict()
        assert result.prediction_note == ""
    ((source, configurations),) = FakeWorker.asked
    assert source.name == str(net)
    assert [(each.batch, each.engine) for each in configurations] == [(1, Engine.ONNXRUNTIME), (8, Engine.ONNXRUNTIME)]


@pytest.mark.usefixtures("device_name")
def test_one_batch_gives_one_result_and_a_failure_is_one_too(net: Path) -> None:
    result = dippm.measure(net, batch=128, device="cuda", precision="tf32")
    assert result.measurement.outcome is Outcome.OUT_OF_MEMORY
    assert result.prediction is not None
    measured: Any = result.to_dict()["measured"]
    assert (measured["fits"], measured["outcome"], measured["latency_ms"]) == (False, "out-of-memory", None)


def test_without_a_predicted_device_the_prediction_is_absent_and_says_why(net: Path, device_name: Any) -> None:
    device_name("Some Processor")
    result = dippm.measure(net)
    assert result.prediction is None
    assert "Some Processor" in result.prediction_note
    assert "onnxruntime" in result.prediction_note
    device_name("A Card of the Future")
    result = dippm.measure(net, device="cuda", precision="tf32")
    assert result.prediction is None
    assert "A Card of the Future" in result.prediction_note
    spec = dippm.find_device("A100")
    result = dippm.measure(net, device_spec=spec)
    assert result.prediction is not None
    assert result.prediction.device == spec.name


def test_what_cannot_be_predicted_is_measured_all_the_same(net: Path, device_name: Any) -> None:
    device_name("P100")
    result = dippm.measure(net, device="cuda", runtime="compile", engine="torch")
    assert result.measurement.outcome is Outcome.OK
    assert result.prediction is None
    assert "torch.compile makes kernels for GPUs" in result.prediction_note


@pytest.mark.usefixtures("device_name")
def test_a_step_stands_beside_its_prediction(net: Path) -> None:
    result = dippm.measure(net, device="cuda", mode="training", optimizer="adam", engine="torch")
    assert result.prediction is not None
    assert result.prediction.step_time_ms is not None
    assert result.prediction.conditions == result.configuration.conditions


@pytest.mark.usefixtures("device_name")
def test_training_is_by_momentum_unless_said_otherwise(net: Path) -> None:
    (result,) = dippm.measure(net, device="cuda", batch=[1], mode="training", engine="torch")
    assert result.configuration.conditions.optimizer is Optimizer.MOMENTUM


@pytest.mark.usefixtures("device_name")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"batch": 0}, "batch.invalid"),
        ({"engine": "tvm"}, "engine.unknown"),
        ({"optimizer": "adam"}, "optimizer.unused"),
        ({"mode": "training", "optimizer": "sgd"}, "engine.unsupported"),
        ({"precision": "fp7"}, "precision.unknown"),
        ({"precision": "amp"}, "engine.unsupported"),
        ({"precision": "fp32"}, "engine.unsupported"),
        ({"precision": "fp16"}, "engine.unsupported"),
        ({}, "engine.unsupported"),
        ({"precision": "tf32", "layout": "nhwc"}, "engine.unsupported"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(net: Path, options: Any, code: str) -> None:
    FakeWorker.asked = []
    with pytest.raises((UsageError, UnsupportedError)) as caught:
        dippm.measure(net, device="cuda", **options)
    assert caught.value.code == code
    assert FakeWorker.asked == []


@pytest.mark.usefixtures("device_name")
@pytest.mark.parametrize(("device", "mode"), [("cpu", "inference"), ("cuda", "training")])
def test_captures_that_cannot_be_are_refused_before_the_model_is_read(
    device: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeWorker.asked = []
    monkeypatch.setattr("dippm.api.measuring.load", lambda *args, **options: pytest.fail("it must not be read"))
    with pytest.raises(UnsupportedError) as caught:
        dippm.measure("timm:resnet18", device=device, mode=mode, runtime="cuda-graph")
    assert caught.value.code == "runtime.unsupported"
    assert FakeWorker.asked == []


@pytest.mark.usefixtures("device_name")
def test_autocast_of_an_onnx_file_is_refused_on_the_processor_too(net: Path) -> None:
    FakeWorker.asked = []
    with pytest.raises(UnsupportedError, match="onnxruntime on cpu has no precision amp") as caught:
        dippm.measure(net, precision="amp")
    assert "or the engine torch" not in str(caught.value)
    assert FakeWorker.asked == []


@pytest.fixture(name="checkpoint")
def _checkpoint(tmp_path: Path) -> Path:
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 100,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture(name="halved_net")
def _halved_net(net: Path) -> Path:
    model = onnx.load(net)
    weight = model.graph.initializer[0]
    weight.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT16, (8, 8), np.ones((8, 8), np.float16).tobytes(), True))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(model, net)
    return net


@pytest.mark.usefixtures("device_name")
@pytest.mark.parametrize(
    ("asked", "run"),
    [(None, Precision.BF16), ("fp32", Precision.BF16), ("bf16", Precision.BF16), ("amp", Precision.AMP)],
)
def test_weights_of_16_bits_decide_the_precision(checkpoint: Path, asked: str | None, run: Precision) -> None:
    result = dippm.measure(checkpoint, device="cuda", precision=asked)
    ((_, (configuration,)),) = FakeWorker.asked
    assert configuration == result.configuration
    assert configuration.conditions.precision is run
    assert result.to_dict()["precision"] == run.value
    predicted = dippm.predict(checkpoint, device="H200", precision=asked)
    assert result.prediction is not None
    assert result.prediction.conditions.precision is run
    assert result.prediction.to_dict() == predicted.to_dict()


def test_a_processor_has_no_prediction_for_weights_of_16_bits(
    checkpoint: Path, device_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_name("Some Processor")
    monkeypatch.setattr(cpu_rates, "measure_cpu_rates", lambda threads: RATES)
    result = dippm.measure(checkpoint)
    assert result.to_dict()["precision"] == "bf16"
    assert result.prediction is None
    assert "bf16" in result.prediction_note


@pytest.mark.usefixtures("device_name")
def test_an_onnx_file_of_16_bits_runs_in_these(halved_net: Path) -> None:
    for device in ("cpu", "cuda"):
        for asked in (None, "fp32", "fp16"):
            result = dippm.measure(halved_net, device=device, precision=asked)
            assert result.to_dict()["precision"] == "fp16"
    assert result.prediction is not None
    assert result.prediction.conditions.precision is Precision.FP16
    FakeWorker.asked = []
    with pytest.raises(UnsupportedError, match="no precision bf16"):
        dippm.measure(halved_net, precision="bf16")
    assert FakeWorker.asked == []


@pytest.mark.usefixtures("device_name")
def test_a_model_that_is_not_there_is_an_error_and_no_row(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError):
        dippm.measure(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="process of its own"):
        dippm.measure(object())  # type: ignore[call-overload]


@pytest.mark.usefixtures("device_name")
def test_a_model_that_takes_time_first_is_measured_as_it_is_predicted(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.LSTM(16, 8), (torch.zeros(20, 2, 16),)).save(tmp_path / "m.pt")
    measured = dippm.measure(tmp_path / "m.pt", input="20,16", batch=4, device="cuda")
    ((source, _),) = FakeWorker.asked
    assert [entry.at(4) for entry in source.inputs.entries] == [(20, 4, 16)]
    assert measured.prediction is not None
    assert measured.prediction.inputs == {"input": (20, 4, 16)}


def test_a_device_that_is_not_there_is_refused(net: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dippm.measure(net, device="A100")
    assert caught.value.code == "device.unavailable"


RATES = CpuRates(
    gflops=100.0,
    convolution_gflops=150.0,
    bandwidth_gb_s=10.0,
    cache_gb_s=30.0,
    fresh_gb_s=2.0,
    dispatch_us=1.0,
    convolution_us=40.0,
    threads=3,
)


@pytest.fixture(name="tiny")
def _tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.pt"
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*")
        torch.jit.save(torch.jit.trace(module.eval(), torch.randn(1, 8), check_trace=False), str(path))
    return path


class StartedWorker(FakeWorker):
    threads = 3

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        for measurement in super().measure(source, configurations):
            yield replace(measurement, context_mb=321.0, software=SoftwareStack(threads=self.threads))


@pytest.mark.parametrize(
    ("threads", "busy", "is_told"), [(1, 9.0, False), (2, 0.3, False), (2, 0.7, True), (3, 0.0, True)]
)
def test_threads_that_share_their_processors_are_told_of_it(
    tiny: Path, device_name: Any, monkeypatch: pytest.MonkeyPatch, threads: int, busy: float, is_told: bool
) -> None:
    device_name("Some Processor")
    monkeypatch.setattr(worker, "Worker", StartedWorker)
    monkeypatch.setattr(StartedWorker, "threads", threads)
    monkeypatch.setattr(cpu_rates, "measure_cpu_rates", lambda threads: RATES)
    monkeypatch.setattr("dippm.api.measuring.usable_processors", lambda: 2)
    monkeypatch.setattr("dippm.api.measuring.busy_processors", lambda: busy)
    prediction = dippm.measure(tiny, input=(8,)).prediction
    assert prediction is not None
    assert any(f"{busy:.1f} of 2 processors were busy" in warning for warning in prediction.warnings) is is_told


def test_a_processor_is_predicted_with_the_threads_and_the_start_of_the_measuring_process(
    tiny: Path, device_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure_rates(*, threads: int | None) -> CpuRates:
        asked.append(threads)
        return RATES

    device_name("Some Processor")
    monkeypatch.setattr(worker, "Worker", StartedWorker)
    monkeypatch.setattr(cpu_rates, "measure_cpu_rates", measure_rates)
    monkeypatch.setattr("dippm.api.measuring.usable_processors", lambda: 99)
    results = dippm.measure(tiny, batch=[1, 8], input=(8,))
    assert asked == [3]
    predictions = CpuPredictor.load().predict(
        dippm.load(tiny, input=(8,)),
        batches=[1, 8],
        device="Some Processor",
        rates=RATES,
        conditions=Conditions(),
        context_mb=321.0,
    )
    assert [result.prediction for result in results] == predictions
    assert results[0].prediction_note == ""
    predicted: Any = results[0].to_dict()["predicted"]
    assert (predicted["energy_j"], predicted["mig"]) == (None, None)
    result = dippm.measure(tiny, input=(8,), mode="training", optimizer="sgd")
    assert result.prediction is None
    assert "training" in result.prediction_note


@pytest.mark.slow
def test_a_file_of_16_bits_is_really_measured_on_the_processor(halved_net: Path) -> None:
    result = dippm.measure(halved_net)
    assert result.measurement.outcome is Outcome.OK, result.measurement.message
    assert result.configuration.conditions.precision is Precision.FP16


@pytest.mark.slow
def test_a_file_is_really_measured_on_the_processor(net: Path) -> None:
    results = dippm.measure(net, batch=[1, 4])
    for result in results:
        measurement = result.measurement
        assert measurement.outcome is Outcome.OK, measurement.message
        assert measurement.latency_ms is not None
        assert 0 < measurement.latency_ms < 1000
        assert measurement.timed_runs == 30
        assert measurement.device == device_names.cpu_name()
        assert measurement.software.framework.startswith("onnxruntime")


def test_the_verb_is_not_hidden_by_the_subpackage_of_its_name() -> None:
    # The import of dippm.measuring.worker at the top of this file has set the subpackage.
    assert dippm.measure is dippm.api.measure
    assert worker.__name__ == "dippm.measuring.worker"
