"""A model is read once, from whatever names it, and what is read is what prediction takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dippm
from dippm.api.loading import load, read_format
from dippm.errors import ModelReadError, UsageError


@pytest.fixture(name="model")
def _model() -> onnx.ModelProto:
    weight = helper.make_tensor("w", TensorProto.FLOAT, (8, 5), np.ones((8, 5), np.float32).tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Dropout", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(name="file")
def _file(model: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_model_may_be_named_in_any_way(model: onnx.ModelProto, file: Path) -> None:
    graphs = [load(file), load(str(file)), load(path=file), load(path=str(file), framework="onnx"), load(model)]
    assert len({(graph.nodes, graph.tensors) == (graphs[0].nodes, graphs[0].tensors) for graph in graphs}) == 1
    assert [graph.parameter_count for graph in graphs] == [40] * 5
    assert graphs[0].source == graphs[2].source == str(file)
    assert load(graphs[0]) is graphs[0]


def test_what_is_loaded_predicts_as_its_file(file: Path) -> None:
    graph = load(file)
    assert dippm.predict(graph, batch=8).latency_ms == dippm.predict(file, batch=8).latency_ms


def test_training_reads_what_only_training_has(file: Path) -> None:
    inference, training = (
        [node.kind.value for node in load(file, mode=mode).nodes] for mode in ("inference", "training")
    )
    assert inference == ["linear"]
    assert training == ["linear", "dropout"]


@pytest.mark.parametrize(
    ("arguments", "options", "code"),
    [
        ((), {}, "model.invalid"),
        (("a.onnx",), {"path": "b.onnx"}, "model.invalid"),
        (("a.onnx",), {"mode": "sleeping"}, "mode.unknown"),
        (("a.onnx",), {"input": "3,-1"}, "input.invalid"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], options: dict[str, str], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(*arguments, **options)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError, match=r"absent\.onnx"):
        load(tmp_path / "absent.onnx")


def test_shapes_are_of_one_sample(file: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(file, input="9")
    assert caught.value.code == "input.shape_conflict"


def test_a_checkpoint_is_kept_by_its_content_and_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: onnx.ModelProto
) -> None:
    """Two copies share one kept graph, and each is told by its own name."""
    asked = []

    def read_kept(name: str, read: object, **_: object) -> dippm.Graph:
        asked.append(name)
        return replace(load(model), source="as it was first read")

    monkeypatch.setattr("dippm.api.named_models.read_kept", read_kept)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text('{"model_type": "bert"}')
        assert load(tmp_path / folder).source == str(tmp_path / folder)
    assert asked[0] == asked[1]
    assert asked[0].startswith("hf:")


def test_two_precisions_are_read_apart() -> None:
    formats = {precision: read_format(precision) for precision in ("fp32", "tf32", "amp", "amp-bf16", "fp16", "bf16")}
    assert {name: found for name, found in formats.items() if found} == {"fp16": "float16", "bf16": "bfloat16"}
    assert read_format(None) not in formats.values()
    with pytest.raises(UsageError):
        read_format("fp17")


@pytest.mark.parametrize("batch", [0, -1, True, 2.5, pytest.param(10**5000, id="huge"), [1, 2]])
def test_a_batch_to_read_for_is_a_batch(file: Path, batch: object) -> None:
    with pytest.raises(UsageError) as caught:
        load(file, batch_hint=batch)  # type: ignore[arg-type]
    assert caught.value.code == "batch.invalid"
