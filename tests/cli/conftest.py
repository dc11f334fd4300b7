"""Small networks in files, what a command prints in each of its forms, and a device that answers at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dippm.cli import main, progress
from dippm.datasets.campaign import graph_hashes
from dippm.errors import UnsupportedError
from dippm.measuring import device_names, worker
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.protocol import Plan


def _save_net(path: Path, nodes: list[onnx.NodeProto], *, size: int) -> str:
    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, np.ones(shape, np.float32).tobytes(), raw=True)

    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [weight("w", 16, 3, 3, 3), weight("v", 16, 10)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.fixture(autouse=True)
def _no_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of progress, however slow the machine is that the tests run on."""
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 3600.0)


@pytest.fixture
def net(tmp_path: Path) -> str:
    """Four operators with names of modules, for images of 3x32x32."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["h"], name="/stem/conv/Conv", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["r"], name="/stem/act/Relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["p"], ["f"], name="/Flatten"),
        helper.make_node("Gemm", ["f", "v"], ["y"], name="/head/Gemm"),
    ]
    return _save_net(tmp_path / "net.onnx", nodes, size=32)


@pytest.fixture
def trained_net(tmp_path: Path) -> str:
    """The same with dropout, for images of 3x64x64."""
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["h"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Dropout", ["f"], ["d"]),
        helper.make_node("Gemm", ["d", "v"], ["y"]),
    ]
    return _save_net(tmp_path / "net.onnx", nodes, size=64)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print what a terminal of 120 columns shows."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The object that ``--json`` prints, with nothing beside it."""

    def run(*words: str) -> dict[str, Any]:
        assert main([*words, "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        answer: dict[str, Any] = json.loads(captured.out)
        assert answer["schema"] == 1
        return answer

    return run


@pytest.fixture
def run_noted_columns(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[dict[str, str]], str]]:
    """The rows that a pipe gets, by column, and the notes beside them."""

    def run(*words: str) -> tuple[list[dict[str, str]], str]:
        assert main(list(words)) == 0
        captured = capsys.readouterr()
        header, *rows = (line.split("\t") for line in captured.out.splitlines())
        return [dict(zip(header, row, strict=True)) for row in rows], captured.err

    return run


@pytest.fixture
def run_columns(
    run_noted_columns: Callable[..., tuple[list[dict[str, str]], str]],
) -> Callable[..., list[dict[str, str]]]:
    """The rows that a pipe gets, by column."""
    return lambda *words: run_noted_columns(*words)[0]


@pytest.fixture
def run_table(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a terminal shows, where the test says that there is one."""

    def run(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return run


class FakeWorker:
    """Says 1.25 ms a sample up to batch 100, beyond which there is no room; or that the device is gone."""

    busy_s = 0.0
    is_gone = False

    def __init__(self, device: str, *, configuration_limit_s: float, plan: Plan | None = None) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        if self.is_gone:
            raise UnsupportedError("The device is gone.", code="device.unavailable")
        for configuration in configurations:
            is_full = configuration.batch > 100
            yield Measurement(
                outcome=Outcome.OUT_OF_MEMORY if is_full else Outcome.OK,
                message="no \x1b[31mroom" if is_full else "",
                device="H200",
                measured_at="2026-01-01T00:00:00+00:00",
                timed_runs=30,
                warmup_runs=5,
                latency_ms=None if is_full else 1.25 * configuration.batch,
                latency_std_ms=None if is_full else 0.125,
                memory_mb=None if is_full else 640.0,
            )


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """A device that answers at once, in place of the real ones; the graphs of what it measures are not hashed."""
    monkeypatch.setattr(worker, "Worker", FakeWorker)
    monkeypatch.setattr(device_names, "describe_device", lambda device: "H200" if "cuda" in device else "Processor")
    monkeypatch.setattr(graph_hashes.GraphHashes, "add", lambda self, recipe: None)
    return FakeWorker
