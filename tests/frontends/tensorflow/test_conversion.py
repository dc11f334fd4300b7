"""Each test starts TensorFlow at least once, which takes seconds."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

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
        ("model.weights.h5", ModelReadError, "model.weights_only"),
        ("two", UnsupportedError, "tensorflow.signatures"),
        ("none", UnsupportedError, "tensorflow.no_signature"),
        ("thawed.pb", UnsupportedError, "tensorflow.not_frozen"),
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


def test_what_the_errors_ask_for_helps(tensorflow_files: Path) -> None:
    assert dippm.load(tensorflow_files / "lambda.keras", trust=True).nodes
    assert dippm.load(tensorflow_files / "open", input={"image": (16, 16, 3)}).parameter_count == 4 * 27 + 4
    assert dippm.load(tensorflow_files / "one").parameter_count == 20


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "frozen.pb", "plain.tflite", "saved/saved_model.pb"])
def test_a_file_that_is_cut_off_is_told(tensorflow_files: Path, tmp_path: Path, name: str) -> None:
    whole = (tensorflow_files / name).read_bytes()
    path = tmp_path / Path(name).name
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises((ModelReadError, UnsupportedError)) as caught:
        dippm.load(path)
    assert not caught.value.code.startswith("onnx")


def test_objects_are_read_as_their_files_are(tensorflow_files: Path) -> None:
    script = f"""
import json, sys, dippm, keras, tensorflow as tf
model = keras.saving.load_model({str(tensorflow_files / "model.keras")!r})
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
]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [PARAMETERS, 20, 20, 21, "input.missing"]


def test_the_command_line_predicts_and_leaves_stdout_to_the_answer(tensorflow_files: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "dippm", "predict", *words, "--device", "A100", "--json")
        return subprocess.run(words, capture_output=True, text=True, check=False)

    good = run(str(tensorflow_files / "model.keras"))
    assert good.returncode == 0
    assert json.loads(good.stdout)["model"]["framework"] == "tensorflow"
    refused, unclear = run(str(tensorflow_files / "lambda.keras")), run(str(tensorflow_files / "two"))
    assert (refused.returncode, unclear.returncode) == (3, 4)
    assert json.loads(refused.stdout)["error"]["code"] == "keras.lambda_refused"


def test_a_framework_that_the_content_contradicts_is_a_slip(tensorflow_files: Path) -> None:
    assert dippm.load(tensorflow_files / "model.keras", framework="keras").nodes
    with pytest.raises(UsageError) as caught:
        dippm.load(tensorflow_files / "model.keras", framework="onnx")
    assert caught.value.code == "framework.mismatch"
