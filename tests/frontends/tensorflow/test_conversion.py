"""Each test converts at least one file; those whose commands or scripts are processes of their own start TensorFlow."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.cli import main
from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError
from dippm.graph import DType, OpKind, TensorRole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("warm_conversions"),
]

GROUPED_MACS = {
    name: 32 * (56 * 56 * 256 * 9 * 256 // groups + 2560) for name, groups in {"grouped": 32, "depthwise": 256}.items()
}
convert_module = importlib.import_module("dippm.frontends.conversion.convert")
# Convolution without bias and norm; depthwise convolution; linear layer.
PARAMETERS = 16 * 27 + 2 * 16 + 16 * 9 + 16 + 16 * 10 + 10


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIPPM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("name", ["saved", "model.keras", "model.h5", "frozen.pb"])
def test_every_file_holds_the_same_network(tensorflow_files: Path, name: str) -> None:
    graph = dippm.load(tensorflow_files / name)
    assert (graph.framework, graph.source) == ("tensorflow", str(tensorflow_files / name))
    assert graph.parameter_count == PARAMETERS
    assert graph.unsupported_ops == {}
    assert Counter(node.kind.value for node in graph.nodes) == Counter(
        ["view", "conv", "batch_norm", "relu", "max_pool", "conv", "silu", "reduce", "linear"]
    )
    (tensor,) = (graph.tensors[index] for index in graph.inputs)
    assert (tensor.name, [dim.at(7) for dim in tensor.shape]) == ("image", [7, 32, 32, 3])


def test_tensorflow_lite_has_folded_the_norm(tensorflow_files: Path) -> None:
    graph = dippm.load(tensorflow_files / "plain.tflite")
    # The convolution has a bias in place of the norm's scale and shift.
    assert graph.parameter_count == PARAMETERS - 16
    assert graph.tensors[graph.inputs[0]].name.startswith("image")
    assert dippm.predict(graph, batch=4, device="A100").macs > 0


def test_a_quantised_file_keeps_its_integers(tensorflow_files: Path) -> None:
    graph = dippm.load(tensorflow_files / "int8.tflite")
    kinds = {node.kind.value for node in graph.nodes}
    assert {"dequantize", "quantize", "conv"} <= kinds
    assert graph.unsupported_ops == {}


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("lambda.keras", ModelReadError, "keras.lambda_refused"),
        ("own.keras", ModelReadError, "keras.custom_object"),
        ("own.h5", ModelReadError, "keras.custom_object"),
        ("masked.h5", ModelReadError, "keras.not_restorable"),
        ("model.weights.h5", ModelReadError, "model.weights_only"),
        ("two", UnsupportedError, "tensorflow.signatures"),
        ("two.tflite", UnsupportedError, "tensorflow.signatures"),
        ("none", UnsupportedError, "tensorflow.no_signature"),
        ("thawed.pb", UnsupportedError, "tensorflow.not_frozen"),
        ("text.keras", UnsupportedError, "tensorflow.host_operators"),
        ("hashing.keras", UnsupportedError, "tensorflow.host_operators"),
        ("lookup.keras", UnsupportedError, "tensorflow.host_operators"),
        ("sparse", UnsupportedError, "tensorflow.sparse_input"),
        ("sparse_traced", UnsupportedError, "tensorflow.sparse_input"),
        ("ragged", UnsupportedError, "tensorflow.ragged_input"),
        ("open", UsageError, "input.shape_needed"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(
    tensorflow_files: Path, name: str, kind: type[DippmError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        dippm.load(tensorflow_files / name)
    assert caught.value.code == code
    assert caught.value.cure
    if code == "keras.custom_object":
        assert "needs 'Own'" in str(caught.value)
    if code == "tensorflow.signatures":
        assert "2 signatures" in str(caught.value)
        assert "first, second" in str(caught.value)
    if code == "tensorflow.host_operators":
        layer = {"text": "text_vectorization", "hashing": "hashing", "lookup": "integer_lookup"}[Path(name).stem]
        assert f"get_layer('{layer}')" in str(caught.value.cure)
    if code == "input.shape_needed":
        assert "dimension 1 of 3" in str(caught.value)


def test_what_the_errors_ask_for_helps(tensorflow_files: Path) -> None:
    assert dippm.load(tensorflow_files / "lambda.keras", trust=True).nodes
    assert dippm.load(tensorflow_files / "open", input={"image": (16, 16, 3)}).parameter_count == 4 * 27 + 4
    assert dippm.load(tensorflow_files / "one").parameter_count == 20
    assert [dim.fixed for dim in _shape_of_input(dippm.load(tensorflow_files / "one.tflite"))] == [0, 4]


@pytest.mark.parametrize("name", ["defaulted.pb", "switched.pb"])
def test_frozen_graphs_of_tensorflow_1(tensorflow_files: Path, name: str) -> None:
    graph = dippm.load(tensorflow_files / name)
    assert graph.unsupported_ops == {}
    assert [graph.tensors[index].name for index in graph.inputs] == ["x"]
    assert [dim.at(7) for dim in _shape_of_input(graph)] == [7, 4]
    assert not [index for index in graph.outputs if "switch" in graph.tensors[index].name]


def _shape_of_input(graph: dippm.Graph) -> Any:
    (index,) = graph.inputs
    return graph.tensors[index].shape


@pytest.mark.parametrize("name", ["grouped", "depthwise"])
@pytest.mark.parametrize("ending", ["", ".keras"])
def test_a_grouped_convolution_is_one(tensorflow_files: Path, name: str, ending: str) -> None:
    """Keras wraps it in a function that is to be compiled as a whole."""
    graph = dippm.load(tensorflow_files / f"{name}{ending}")
    assert graph.unsupported_ops == {}
    assert dippm.predict(graph, batch=32, device="A100").macs == GROUPED_MACS[name]


@pytest.mark.parametrize(("kind", "ending"), [("lstm", ".keras"), ("gru", "_gru.keras")])
def test_a_mask_leaves_recurrent_layers_whole(tensorflow_files: Path, kind: str, ending: str) -> None:
    masked, plain = (dippm.load(tensorflow_files / f"{name}{ending}") for name in ("masked", "unmasked"))
    kinds, expected = (Counter(node.kind.value for node in graph.nodes) for graph in (masked, plain))
    assert kinds == expected
    assert kinds[kind] == 2  # one of them bidirectional
    assert masked.parameter_count == plain.parameter_count
    (warning,) = masked.warnings
    assert f"'{kind}" in warning
    assert f"'forward_{kind}" in warning
    assert plain.warnings == ()
    assert dippm.load(tensorflow_files / f"masked{ending}").warnings == masked.warnings  # from the cache


def test_layers_that_share_weights_have_them_once(tensorflow_files: Path) -> None:
    """A copy that has the same values is a network of its own."""
    encoder, head = 8 * 27 + 8 * 4 + 4, 4 * 2 + 2
    # The convolution's bias is zero and reshaped for each reader.
    assert dippm.load(tensorflow_files / "shared.keras").parameter_count == encoder + 2 * 8 + head
    assert dippm.load(tensorflow_files / "copied.keras").parameter_count == 2 * (encoder + 8) + head


@pytest.mark.parametrize("name", ["mixed.keras", "mixed"])
def test_mixed_precision_keeps_its_weights_whole(tensorflow_files: Path, name: str) -> None:
    graph = dippm.load(tensorflow_files / name)
    weights = [tensor for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER]
    assert {tensor.dtype for tensor in weights} == {DType.FLOAT32}
    assert graph.parameter_count == 16 * 27 + 16 + 2 * 16 + 16 * 10 + 10
    convolution = next(node for node in graph.nodes if node.kind is OpKind.CONV)
    assert {graph.tensors[index].dtype for index in convolution.inputs} == {DType.FLOAT16}


def test_weights_in_bfloat16_are_half_as_wide(tensorflow_files: Path) -> None:
    graph = dippm.load(tensorflow_files / "bfloat16.keras")
    weights = [node.inputs[1] for node in graph.nodes if node.kind in (OpKind.CONV, OpKind.LINEAR)]
    assert [graph.tensors[index].dtype for index in weights] == [DType.FLOAT16] * 2
    assert graph.parameter_count == 16 * 27 + 16 + 2 * 16 + 16 * 10 + 10
    assert graph.unsupported_ops == {}


def test_a_wrong_input_costs_one_conversion(tensorflow_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tensorflow_files / "grouped.keras"
    dippm.load(path)
    monkeypatch.setattr(convert_module, "run_converter", None)  # what would be called is not there
    for wrong, code in (({"foo": (56, 56, 256)}, "input.name_unknown"), ((1, 56, 56, 256), "input.rank")):
        with pytest.raises(UsageError) as caught:
            dippm.load(path, input=wrong)
        assert caught.value.code == code
    assert dippm.load(path, input=(56, 56, 256)).nodes


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "plain.tflite"])
def test_the_end_of_a_file_is_missed(tensorflow_files: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((tensorflow_files / name).read_bytes()[:-100])
    with pytest.raises(ModelReadError, match="cut") as caught:
        dippm.load(path)
    assert caught.value.code == "model.truncated"


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "frozen.pb", "plain.tflite", "saved/saved_model.pb"])
def test_a_file_that_is_cut_off_is_told(tensorflow_files: Path, tmp_path: Path, name: str) -> None:
    whole = (tensorflow_files / name).read_bytes()
    path = tmp_path / Path(name).name
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises((ModelReadError, UnsupportedError)) as caught:
        dippm.load(path)
    assert not caught.value.code.startswith("onnx")


def test_objects_are_read_as_their_files_are(
    tensorflow_files: Path, start_warm_converter: Any, run_beside_tensorflow: Any
) -> None:
    worker = "dippm.frontends.tensorflow.worker"
    script = f"""
import json, sys, dippm, keras, tensorflow as tf
from dippm.frontends.conversion import converter_process
start_guarded = converter_process.start_guarded
def start(command, **settings):
    assert command[-2] == {worker!r}
    return start_guarded([*{start_warm_converter(worker).command(worker)!r}, command[-1]], **settings)
converter_process.start_guarded = start
def file(name):
    return keras.saving.load_model({str(tensorflow_files)!r} + "/" + name)
model, masked = file("model.keras"), file("masked.keras")
before = masked(tf.constant([[1] * 4 + [0] * 16])).numpy()
groups = [dippm.predict(file(name), batch=32, device="A100").macs for name in ("grouped.keras", "depthwise.keras")]
recurrent = dippm.load(masked)
is_as_before = bool((masked(tf.constant([[1] * 4 + [0] * 16])).numpy() == before).all())
class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.zeros((4, 5)))
    @tf.function
    def __call__(self, x):
        return x @ self.weight
class Sub(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
    def call(self, x):
        return self.dense(x)
linear = Linear()
function = linear.__call__.get_concrete_function(tf.TensorSpec((None, 4), tf.float32, name="x"))
try:
    dippm.load(Sub())
except dippm.UsageError as exc:
    asked = exc.code
print(json.dumps([
    dippm.load(model).parameter_count, dippm.load(linear, input=(4,)).parameter_count,
    dippm.load(function).parameter_count, dippm.load(Sub(), input=(6,)).parameter_count, asked,
    groups, sum(node.kind.value == "lstm" for node in recurrent.nodes), len(recurrent.warnings), is_as_before,
]))
"""
    assert run_beside_tensorflow(script) == [
        PARAMETERS, 20, 20, 21, "input.missing", list(GROUPED_MACS.values()), 2, 1, True
    ]  # fmt: skip


def test_the_command_line_predicts_and_leaves_stdout_to_the_answer(
    tensorflow_files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def words(name: str) -> list[str]:
        return ["predict", str(tensorflow_files / name), "--device", "A100", "--json"]

    # As a user starts it, with a converter that is started as users' are, and nothing in the cache.
    command = [sys.executable, "-m", "dippm", *words("model.keras")]
    good = subprocess.run(command, env={**os.environ, "DIPPM_CACHE": ""}, capture_output=True, text=True, check=False)
    assert good.returncode == 0
    assert json.loads(good.stdout)["model"]["framework"] == "tensorflow"
    for name, status, code in (("lambda.keras", 3, "keras.lambda_refused"), ("two", 4, "tensorflow.signatures")):
        assert main(words(name)) == status
        assert json.loads(capfd.readouterr().out)["error"]["code"] == code


def test_a_framework_that_the_content_contradicts_is_a_slip(tensorflow_files: Path) -> None:
    assert dippm.load(tensorflow_files / "model.keras", framework="keras").nodes
    with pytest.raises(UsageError) as caught:
        dippm.load(tensorflow_files / "model.keras", framework="onnx")
    assert caught.value.code == "framework.mismatch"
