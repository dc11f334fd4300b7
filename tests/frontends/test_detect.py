import io
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.errors import ModelReadError, UsageError
from dippm.frontends.checkpoint_folder import find_checkpoint
from dippm.frontends.detect import Framework, detect_framework, parse_framework


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        for name in names:
            # A fixed date: the bytes stand in the tests' names, which must not change from second to second.
            out.writestr(zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0)), b"x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "framework"),
    [
        ("m.onnx", b"\x08\x08\x12\x07pytorch", Framework.ONNX),
        ("m.bin", b"\x08\x08\x12\x07pytorch", Framework.ONNX),
        ("m.index", b"\x08\x08\x12\x07pytorch", Framework.ONNX),
        ("m.onnx", b"\x3a\x10graph first", Framework.ONNX),
        ("m.pt", archive("m/data.pkl", "m/code/x.py"), Framework.PYTORCH),
        ("m.onnx", archive("m/constants.pkl"), Framework.PYTORCH),
        ("m.pt2", archive("archive_format", "models/model.json"), Framework.PYTORCH),
        ("m.pt", pickle.dumps([1]), Framework.PYTORCH),
        ("m.h5", b"\x89HDF\r\n\x1a\n....", Framework.TENSORFLOW),
        ("m.tflite", b"\x1c\0\0\0TFL3....", Framework.TENSORFLOW),
        ("m.keras", archive("config.json", "metadata.json", "model.weights.h5"), Framework.TENSORFLOW),
        ("model.bin", b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder", Framework.TENSORFLOW),
        ("frozen.pb", b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder", Framework.TENSORFLOW),
        ("saved_model.pb", b"\x08\x01\x12\x10....", Framework.TENSORFLOW),
        ("other.pb", b"\x08\x01\x12\x10....", Framework.TENSORFLOW),
        ("really.pb", b"\x08\x08\x12\x07pytorch", Framework.ONNX),
        ("m.json", b'{"base_code": {"magic": "pir"}}', Framework.PADDLE),
        ("m.pdmodel", b"\x0a\x10...", Framework.PADDLE),
        ("config.json", b'\n{"model_type": "bert"}', Framework.PYTORCH),
        ("timm.json", b'{"architecture": "vgg16", "pretrained_cfg": {}}', Framework.PYTORCH),
    ],
)
def test_content_tells_the_framework(tmp_path: Path, name: str, content: bytes, framework: Framework) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert detect_framework(path) is framework


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["config.json", "model.onnx"], "Give the .onnx file"),
        (["model_index.json"], "pipeline of diffusers"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter"),
        (["snapshots/abc"], "snapshot"),
        (["config.json", "diffusion_pytorch_model.safetensors"], "names no model of transformers, diffusers or timm"),
        (["model-00001-of-00002.safetensors"], "weights alone"),
        (["pytorch_model.bin"], "weights alone"),
        (
            ["checkpoint", "ck-1.index", "ck-1.data-00000-of-00001"],
            "checkpoint of TensorFlow, which holds weights alone",
        ),
        (["readme.txt"], "no config.json"),
    ],
)
def test_folders_that_are_no_model_say_what_they_are(tmp_path: Path, names: list[str], words: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"_class_name": "UNet2DConditionModel"}')
    with pytest.raises(ModelReadError, match=words) as caught:
        detect_framework(tmp_path)
    assert caught.value.code == "model.unrecognised"


def test_a_pipeline_names_its_parts(tmp_path: Path) -> None:
    index = tmp_path / "model_index.json"
    index.write_text('{"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.6.0"}')
    for part in ("vae", "unet", "scheduler"):
        (tmp_path / part).mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text("{}")
    for path in (tmp_path, index):
        with pytest.raises(ModelReadError, match="such as its unet or transformer"):
            detect_framework(path)
    for part in ("vae", "unet"):
        (tmp_path / part / "config.json").write_text('{"_class_name": "AutoencoderKL", "_diffusers_version": "0.6.0"}')
    for path in (tmp_path, index):
        with pytest.raises(ModelReadError) as caught:
            detect_framework(path)
        assert caught.value.cure == f"Give one of them at a time: '{tmp_path / 'unet'}', '{tmp_path / 'vae'}'."


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("m.onnx", b"", "model.empty"),
        ("m.onnx", b"<html>not found</html>", "model.unrecognised"),
        ("m.txt", b"hello world", "model.unrecognised"),
        ("m.onnx", archive("readme.txt"), "model.unrecognised"),
        ("m.pt", archive("m/data.pkl")[:20], "model.truncated"),
        ("m.pt", archive("m/byteorder", "m/data/0", "m/version"), "model.truncated"),
        ("m.safetensors", b"\x40\0\0\0\0\0\0\0{}", "model.weights_only"),
        ("m.gguf", b"GGUF\x03\0\0\0", "model.weights_only"),
        ("short.bin", b"\x08", "model.unrecognised"),
    ],
)
def test_what_is_no_model_is_named(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelReadError) as caught:
        detect_framework(path)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ck-1.index", b"\0\0\x06\x08\x01\x1a\x02\x08\x01"),
        ("ck-1.data-00000-of-00001", b"\x08\x08\x12\x07"),
        ("checkpoint", b'model_checkpoint_path: "ck-1"\n'),
    ],
)
def test_a_checkpoint_of_tensorflow_is_to_be_saved_whole(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelReadError, match="checkpoint of TensorFlow, which holds weights alone") as caught:
        detect_framework(path)
    assert caught.value.code == "model.weights_only"
    assert "Save the whole model" in str(caught.value.cure)
    (tmp_path / "ck-1.index").touch()
    with pytest.raises(ModelReadError, match="checkpoint of TensorFlow"):
        detect_framework(tmp_path / "ck-1")


@pytest.mark.parametrize(
    ("name", "content"),
    [("adapter_config.json", b'{"r": 8}'), ("own.json", b'\n{"peft_type": "LORA", "task_type": "CAUSAL_LM"}')],
)
def test_the_configuration_of_an_adapter_is_no_model(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelReadError, match="an adapter, which is no model by itself") as caught:
        detect_framework(path)
    assert caught.value.code == "model.unrecognised"
    assert caught.value.cure == "Give the folder of its base model."


def test_missing_files_and_plain_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as caught:
        detect_framework(tmp_path / "none.onnx")
    assert caught.value.code == "model.missing"
    assert "timm:" in str(caught.value)
    with pytest.raises(ModelReadError, match="without quotes"):
        detect_framework(tmp_path / "*.onnx")
    with pytest.raises(ModelReadError) as caught:
        detect_framework(tmp_path)
    assert caught.value.code == "model.unrecognised"
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    assert detect_framework(tmp_path) is Framework.TENSORFLOW


@pytest.mark.parametrize("place", ["pipe", "config.json", "model.pdmodel"])
def test_no_one_waits_for_the_writer_of_a_pipe(tmp_path: Path, place: str) -> None:
    pipe = tmp_path / place
    os.mkfifo(pipe)
    assert find_checkpoint(pipe) is None
    assert find_checkpoint(tmp_path) is None
    with pytest.raises(ModelReadError, match="a pipe or a device") as caught:
        detect_framework(pipe)
    assert caught.value.code == "model.unreadable"
    with pytest.raises(ModelReadError) as caught:
        detect_framework(tmp_path)
    assert caught.value.code == "model.unrecognised"


def test_a_name_that_no_file_system_takes_is_refused() -> None:
    with pytest.raises(ModelReadError):
        detect_framework(Path("a\0b"))


@given(st.binary(max_size=200))
def test_any_bytes_give_an_answer_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "model.bin"
    path.write_bytes(content)
    try:
        assert detect_framework(path) in Framework
    except ModelReadError as exc:
        assert exc.code.startswith("model.")


def test_names_of_frameworks() -> None:
    assert [parse_framework(name) for name in ("torch", "PyTorch", "tf", "onnx")] == [
        Framework.PYTORCH, Framework.PYTORCH, Framework.TENSORFLOW, Framework.ONNX,
    ]  # fmt: skip
    with pytest.raises(UsageError):
        parse_framework("caffe")
