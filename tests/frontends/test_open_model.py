import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dippm.costs.precision import Arithmetic, Precision, plan_types, stored_half
from dippm.errors import MissingExtraError, ModelReadError, UsageError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.open_model import open_model
from dippm.graph import DType, Graph, GraphArrays, TensorRole


def _stored_half(graph: Graph) -> DType | None:
    (kept,) = GraphArrays.from_graph(graph).kept()
    return stored_half(kept)


def test_a_graph_is_returned_as_it_is(builder: Any) -> None:
    builder.input(builder.N, 4)
    graph = builder.graph()
    assert open_model(graph, input=InputShapes()) is graph


@pytest.mark.parametrize("model", [None, 7, object(), b"bytes"])
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises(UsageError) as caught:
        open_model(model, input=InputShapes())
    assert caught.value.code == "model.invalid"


def test_a_framework_that_the_content_contradicts_is_a_slip(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    with pytest.raises(UsageError) as caught:
        open_model(path, input=InputShapes(), framework="pytorch")
    assert caught.value.code == "framework.mismatch"


def test_a_missing_converter_is_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3....")
    monkeypatch.setattr("dippm.frontends.tensorflow.conversion.find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(MissingExtraError, match="tensorflow"):
        open_model(path, input=InputShapes())


def test_a_named_framework_is_believed_where_the_content_tells_none(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(b"nothing that is known")
    with pytest.raises(ModelReadError) as caught:
        open_model(path, input=InputShapes())
    assert caught.value.code == "model.unrecognised"
    with pytest.raises(ModelReadError) as caught:
        open_model(path, input=InputShapes(), framework="onnx")
    assert caught.value.code.startswith("onnx.")


def test_an_empty_path_is_not_the_folder_that_the_program_runs_in() -> None:
    with pytest.raises(UsageError) as caught:
        open_model("", input=InputShapes())
    assert caught.value.code == "model.no_name"


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["hf:LlamaForCausalLM", "hf:LlamaForCausalLM#decode=8"])
def test_a_model_of_transformers_is_built_in_the_16_bits_that_it_will_run_in(name: str) -> None:
    graph = open_model(name, input=InputShapes(), precision=Precision.BF16)
    assert _stored_half(graph) is DType.BFLOAT16
    made = [tensor.dtype for tensor in graph.tensors if tensor.role is TensorRole.ACTIVATION]
    # Its norms are computed in FP32, which a graph of FP32 cannot tell.
    assert {DType.BFLOAT16, DType.FLOAT32} <= set(made)
    assert _stored_half(open_model(name, input=InputShapes(), precision=Precision.AMP)) is None


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_model_that_looks_for_overflow_in_fp16_is_taken_to_find_none() -> None:
    graph = open_model("hf:BartForConditionalGeneration", input=InputShapes(), precision=Precision.FP16)
    assert _stored_half(graph) is DType.FLOAT16
    assert Arithmetic.BF16 not in plan_types(graph, Precision.FP16).arithmetic
    assert any("finite" in warning for warning in graph.warnings)
