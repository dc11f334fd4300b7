"""Folders as hubs publish them: the model that config.json names, and what can be said of the weights beside it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dippm
from dippm.costs.precision import Precision
from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError
from dippm.frontends import zoo
from dippm.frontends.checkpoint_folder import find_checkpoint
from dippm.frontends.inputs import InputShapes
from dippm.frontends.open_model import open_model
from dippm.graph import DType

_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 256, "dtype": "bfloat16",
}  # fmt: skip
_TIMM = {"architecture": "resnet18", "num_classes": 10, "pretrained_cfg": {"input_size": [3, 64, 64]}}

needs_transformers = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("transformers") is None, reason="transformers is not installed"
)
needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return write(tmp_path / "tiny", _LLAMA)


def write(folder: Path, settings: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def write_weights(path: Path, shapes: dict[str, tuple[int, ...]], types: dict[str, str] | None = None) -> None:
    contents: dict[str, Any] = {
        name: {"dtype": (types or {}).get(name, "BF16"), "shape": shape, "data_offsets": [0, 0]}
        for name, shape in shapes.items()
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **contents}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def shape(graph: dippm.Graph, tensor: int, *, batch: int) -> tuple[int, ...]:
    return tuple(size.at(batch) for size in graph.tensors[tensor].shape)


def open_(model: Path | str) -> dippm.Graph:
    return open_model(str(model), input=InputShapes())


@needs_transformers
def test_a_folder_its_configuration_and_its_steps_are_models(folder: Path) -> None:
    whole, same = open_(folder), open_(folder / "config.json")
    prefill, decode = open_(f"{folder}#prefill=7"), open_(f"{folder}#decode=9")
    assert whole.nodes == same.nodes
    assert (whole.source, decode.source) == (str(folder), f"{folder}#decode=9")
    shapes = [shape(graph, graph.inputs[0], batch=3) for graph in (whole, prefill, decode)]
    assert shapes == [(3, 128), (3, 7), (3, 1)]
    cached = dippm.predict(decode, batch=2, device="L4").memory_parts_mb["kv_cache"]
    # Keys and values: 2 samples of 2 layers, 2 heads of 8, 9 tokens and the new one, 2 bytes each.
    assert cached * 2**20 == 2 * 2 * 2 * 2 * 8 * 10 * 2


@needs_transformers
def test_weights_have_the_type_that_the_configuration_names(folder: Path, tmp_path: Path) -> None:
    wide = write(tmp_path / "wide", {**_LLAMA, "dtype": "float32"})
    old = write(tmp_path / "old", {**_LLAMA, "dtype": None, "torch_dtype": "float16"})
    needed = [dippm.predict(open_(each), device="L4").memory_parts_mb["weights"] for each in (folder, wide, old)]
    assert needed[1] == pytest.approx(2 * needed[0], rel=1e-3)
    assert needed[2] == needed[0]
    prediction = dippm.predict(open_(folder), device="L4")
    assert prediction.conditions.precision is Precision.BF16
    assert "The model runs in bfloat16, the type that its weights are stored in." in prediction.warnings
    for precision, casts in (("amp", "them to float16 at every use"), ("amp-bf16", "the rest alone")):
        warnings = dippm.predict(open_(folder), device="L4", precision=precision).warnings
        (cast,) = [each for each in warnings if "stored" in each]
        assert cast == f"The model's weights are stored as bfloat16: {precision} casts {casts}."


@needs_transformers
def test_weights_have_the_stored_type_where_the_configuration_names_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "plain", {**_LLAMA, "dtype": None})
    single = dippm.predict(open_(folder), device="L4").memory_parts_mb["weights"]
    write_weights(folder / "model.safetensors", {"w": (20000,)})
    assert dippm.predict(open_(folder), device="L4").memory_parts_mb["weights"] == pytest.approx(single / 2, rel=1e-3)


@needs_transformers
def test_another_class_than_the_one_named_is_told(tmp_path: Path) -> None:
    graph = open_(write(tmp_path / "own", {**_LLAMA, "architectures": ["MyLlama"]}))
    assert any("MyLlama" in warning for warning in graph.warnings)


@needs_transformers
def test_a_half_precision_model_of_images_takes_half_precision_images(tmp_path: Path) -> None:
    settings = {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32, "dtype": "float16",
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32, "patch_size": 16,
    }  # fmt: skip
    graph = open_(write(tmp_path / "vit", settings))
    assert graph.tensors[graph.inputs[0]].dtype.value == "float16"


@needs_transformers
def test_attention_of_another_package_is_left_out(tmp_path: Path, folder: Path) -> None:
    fast = write(tmp_path / "fast", {**_LLAMA, "attn_implementation": "flash_attention_2"})
    hub = write(tmp_path / "hub", {**_LLAMA, "attn_implementation": "kernels-community/flash-attn"})
    plain = write(tmp_path / "plain", {**_LLAMA, "attn_implementation": "eager"})
    assert open_(fast).nodes == open_(hub).nodes == open_(folder).nodes
    assert "attention" not in {node.kind.value for node in open_(plain).nodes}


@needs_timm
def test_no_weights_are_opened_and_no_hub_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    asked = []

    def make(device: str, build: Callable[[], object], **_: object) -> object:
        asked.append(constants.HF_HUB_OFFLINE)
        return build()

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("dippm.frontends.zoo.make_on", make)
    (tmp_path / "w.pth").write_bytes(b"no weights")
    arguments = {"checkpoint_path": str(tmp_path / "w.pth"), "pretrained": True, "in_chans": 1}
    found = find_checkpoint(write(tmp_path / "m", {**_TIMM, "model_args": arguments}))
    assert found is not None
    module, _ = zoo.build_stored(found, device="cpu")
    assert next(module.parameters()).shape[1] == 1
    assert asked == [True]
    assert not constants.HF_HUB_OFFLINE


@needs_timm
def test_a_folder_of_timm_has_its_classes_and_its_image(tmp_path: Path) -> None:
    graph = open_(write(tmp_path / "r18", _TIMM))
    assert shape(graph, graph.inputs[0], batch=2) == (2, 3, 64, 64)
    assert shape(graph, graph.outputs[0], batch=2) == (2, 10)
    with pytest.raises(UsageError) as caught:
        open_(f"{tmp_path / 'r18'}#decode=5")
    assert caught.value.code == "generation.step"


@needs_transformers
def test_a_model_by_name_is_the_same_as_its_folder(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(architectures=["BertModel"]).save_pretrained(tmp_path / "bert")
    assert open_(tmp_path / "bert").nodes == open_("hf:bert").nodes


@needs_transformers
@pytest.mark.parametrize(
    ("settings", "error", "code"),
    [
        ({"model_type": "lama"}, UnsupportedError, "zoo.unknown"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "own.Model"}}, UnsupportedError, "checkpoint.foreign_code"),
        ({**_LLAMA, "hidden_size": "wide"}, UnsupportedError, "zoo.build_failed"),
        ({**_LLAMA, "num_attention_heads": 5}, UnsupportedError, "zoo.build_failed"),
        ({**_LLAMA, "hidden_size": -4}, UnsupportedError, "zoo.build_failed"),
        ({"architecture": "resnet1", "pretrained_cfg": {}}, UnsupportedError, "zoo.unknown"),
        ({"_class_name": "UNet2DConditionModel"}, ModelReadError, "model.unrecognised"),
    ],
)
def test_what_cannot_be_built_is_said(tmp_path: Path, settings: object, error: type[DippmError], code: str) -> None:
    with pytest.raises(error) as caught:
        open_(write(tmp_path / "bad", settings))
    assert caught.value.code == code
    assert "from its defaults" not in str(caught.value)


@needs_transformers
@pytest.mark.parametrize(
    ("setting", "settings", "package"),
    [
        ("model_type", {"model_type": "foobar"}, "transformers"),
        ("architecture", {"architecture": "foobar", "pretrained_cfg": {}}, "timm"),
        ("_class_name", {"_class_name": "foobar", "_diffusers_version": "0.30.0"}, "diffusers"),
    ],
)
@pytest.mark.parametrize("given", ["", "config.json"])
def test_a_model_that_the_library_does_not_have_is_told_by_file_and_setting(
    tmp_path: Path, setting: str, settings: object, package: str, given: str
) -> None:
    library = pytest.importorskip(package)
    folder = write(tmp_path / "own", settings)
    with pytest.raises(UnsupportedError) as caught:
        open_(folder / given)
    config = folder / "config.json"
    said = f"'{config}' names {setting} 'foobar', which {package} {library.__version__} does not have. Update {package}"
    assert str(caught.value).startswith(said)
    assert "nearest" not in str(caught.value)
    assert caught.value.code == "zoo.unknown"


@needs_transformers
def test_an_architecture_that_the_library_lacks_falls_back_to_the_type(tmp_path: Path) -> None:
    own = write(tmp_path / "own", {**_LLAMA, "architectures": ["MyLlama"]})
    # A model without a head cannot write text; asked to, it gets the one of its type.
    bare = write(tmp_path / "bare", {**_LLAMA, "architectures": ["LlamaModel"]})
    assert open_(own).nodes == open_(bare).nodes
    decode = open_(f"{bare}#decode=3")
    assert shape(decode, decode.outputs[0], batch=1)[-1] == 100


def doubts(path: Path, parameters: int) -> tuple[str, ...]:
    found = find_checkpoint(path)
    assert found is not None
    return found.doubts(parameters)


def test_weights_of_another_model_are_told(folder: Path, tmp_path: Path) -> None:
    assert doubts(folder, 1000) == ()
    write_weights(folder / "model.safetensors", {"a": (10, 50), "b": (501,)})
    assert doubts(folder, 1000) == ()
    assert "hold 1,001 weights" in doubts(folder, 2000)[0]
    assert "hold 1,001 weights" in doubts(folder, 500)[0]
    # The configuration alone knows of no files, and a damaged file tells nothing.
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(_LLAMA))
    assert doubts(alone, 2000) == ()
    (folder / "model.safetensors").write_bytes(b"\xff" * 40)
    assert doubts(folder, 2000) == ()


def test_only_the_files_of_the_model_count(folder: Path) -> None:
    """Others lie there too: the same weights once more, in another type, or an adapter's."""
    for name, count in (("model.fp16", 1000), ("consolidated", 1000), ("adapter_model", 3), ("model", 1000)):
        write_weights(folder / f"{name}.safetensors", {"a": (count,)})
    assert doubts(folder, 1000) == ()
    (folder / "model.safetensors").unlink()
    assert doubts(folder, 1) == ()
    for number in (1, 2):
        write_weights(folder / f"model-0000{number}-of-00002.safetensors", {f"w{number}": (500,)})
    names = {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert doubts(folder, 1000) == ()
    assert "hold 1,000 weights" in doubts(folder, 500)[0]
    (folder / names["w2"]).unlink()
    assert doubts(folder, 500) == ()


def test_a_model_of_diffusers_has_files_of_its_own(tmp_path: Path) -> None:
    settings = {"_class_name": "WanModel", "_diffusers_version": "0.30.0", "model_type": "t2v", "dim": 5}
    folder = write(tmp_path / "transformer", settings)
    found = find_checkpoint(folder)
    assert found is not None
    assert found.library == "diffusers"
    assert found.weights is None
    stem = "diffusion_pytorch_model"
    for name, count in ((f"{stem}.non_ema", 40), (f"{stem}.fp16", 30), ("model", 20)):
        write_weights(folder / f"{name}.safetensors", {"a": (count,)})
    assert "hold 30 weights" in doubts(folder, 1)[0]
    write_weights(folder / f"{stem}.safetensors", {"a": (10,)})
    assert "hold 10 weights" in doubts(folder, 1)[0]
    shards = {f"w{number}": f"{stem}.fp16-0000{number}-of-00002.safetensors" for number in (1, 2)}
    for name, file in shards.items():
        write_weights(folder / file, {name: (500,)})
    (folder / f"{stem}.safetensors.index.fp16.json").write_text(json.dumps({"weight_map": shards}))
    assert "hold 10 weights" in doubts(folder, 1)[0]
    (folder / f"{stem}.safetensors").unlink()
    assert "hold 1,000 weights" in doubts(folder, 1)[0]


def test_a_model_of_diffusers_without_sizes_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "vae", {"_class_name": "AutoencoderKL", "_diffusers_version": "0.30.0"})
    assert "the library's own for AutoencoderKL" in doubts(folder, 5)[0]


def test_a_tied_head_may_be_stored_twice(folder: Path) -> None:
    write_weights(folder / "model.safetensors", {"embed": (400,), "layers": (600,), "lm_head.weight": (400,)})
    assert doubts(folder, 1000) == doubts(folder, 1400) == ()
    assert doubts(folder, 600) != ()


def test_gguf_files_and_a_configuration_without_sizes_are_told(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", {"model_type": "llama", "dtype": "float16"})
    assert "library's own for llama" in doubts(bare, 1000)[0]
    (bare / "m.Q4_K_M.gguf").write_bytes(b"GGUF")
    assert "GGUF files, which are not read" in doubts(bare, 1000)[0]


@pytest.mark.parametrize(
    ("stored", "settings", "dtype"),
    [
        ({"a": ("BF16", 10), "b": ("F32", 3)}, {}, "bfloat16"),
        ({"a": ("U8", 100), "b": ("F16", 3)}, {"quant_method": "mxfp4"}, "float16"),
        ({"a": ("I32", 100)}, {"quant_method": "awq"}, "float16"),
        (None, {"quant_method": "mxfp4"}, "bfloat16"),
        (None, {}, None),
    ],
)
def test_the_type_where_the_configuration_names_none(
    tmp_path: Path, stored: dict[str, tuple[str, int]] | None, settings: dict[str, str], dtype: str | None
) -> None:
    folder = write(tmp_path / "m", {"model_type": "gpt_oss", "quantization_config": settings})
    if stored is not None:
        types = {name: kind for name, (kind, _) in stored.items()}
        write_weights(folder / "model.safetensors", {name: (count,) for name, (_, count) in stored.items()}, types)
    found = find_checkpoint(folder)
    assert found is not None
    assert found.weight_dtype == dtype


@needs_transformers
def test_quantised_weights_are_told(tmp_path: Path) -> None:
    for name, settings, words in (
        ("known", {"quant_method": "awq", "bits": 4, "group_size": 64}, "counted as stored, in 4.31 bits each"),
        ("unknown", {"quant_method": "own", "bits": 4}, "quantised (own). They are predicted as they were before"),
    ):
        quantised = write(tmp_path / name, {**_LLAMA, "quantization_config": settings})
        assert [words in warning for warning in open_(quantised).warnings] == [True]


@needs_transformers
def test_a_text_that_is_longer_than_the_positions_is_told(folder: Path) -> None:
    for length, is_told in ((256, False), (257, True)):
        warnings = dippm.load(folder, input=f"input_ids={length}:int64").warnings
        assert any("257 tokens is longer than the 256 positions" in warning for warning in warnings) == is_told


@needs_transformers
def test_weights_that_are_quantised_anew_are_told(tmp_path: Path) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    quantised = write(tmp_path / "q", {**_LLAMA, "quantization_config": settings})
    plain = write(tmp_path / "plain", _LLAMA)
    for path, weights, count in ((quantised, "nf4", 1), (quantised, "dequantised", 0), (plain, "nf4", 0)):
        graph = dippm.load(path, weights=weights)
        assert len([warning for warning in graph.warnings if "published quantised (gptq)" in warning]) == count


@needs_transformers
def test_quantised_weights_are_whole_where_nothing_trains_beside_them_or_asked_for(tmp_path: Path) -> None:
    def packed(method: str, **given: str) -> list[bool]:
        settings = {"quant_method": method, "bits": 4, "group_size": 64}
        folder = write(tmp_path / "-".join((method, *given.values())), {**_LLAMA, "quantization_config": settings})
        graph = dippm.load(folder, **given)
        return [
            not {DType.UINT4, DType.FLOAT4}.isdisjoint(tensor.dtype for tensor in graph.tensors),
            any(method in warning for warning in graph.warnings),
        ]

    assert packed("awq") == packed("mxfp4") == packed("awq", mode="training") == [True, True]
    assert packed("mxfp4", mode="training") == [False, True]
    assert packed("awq", weights="dequantised") == [False, False]
    # A format that cannot be followed is not taken as it is published, which nobody is told who asks for another.
    assert packed("hqq") == [False, True]
    assert packed("hqq", weights="dequantised") == [False, False]
    assert packed("hqq", weights="nf4") == [True, False]


@pytest.mark.parametrize("content", ['{"model_type": "bert",}', '{"model_type": "b\xe9rt"}', '{"model_type": "be'])
def test_a_damaged_configuration_is_told_where(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    for path in (folder, folder / "config.json"):
        with pytest.raises(ModelReadError) as caught:
            open_(path)
        assert caught.value.code == "checkpoint.invalid"


def test_a_byte_order_mark_is_overlooked(folder: Path) -> None:
    content = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + content)
    assert find_checkpoint(folder) is not None


@needs_transformers
def test_quantised_weights_are_held_as_stored(folder: Path, tmp_path: Path) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    quantised = write(tmp_path / "q", {**_LLAMA, "quantization_config": settings})
    plain, small = (
        sum(
            math.prod(size.fixed for size in tensor.shape) * tensor.dtype.bits / 8
            for tensor in open_(each).tensors
            if tensor.role.value in ("parameter", "buffer") and "inv_freq" not in tensor.name
        )
        for each in (folder, quantised)
    )
    # In each of two layers: q and o 32 x 32, k and v 16 x 32, gate, up and down 64 x 32.
    weights = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)
    assert plain - small == weights * (16 - 4 - 20 / 32) / 8
    graph = dippm.load(quantised, mode="training")
    with pytest.raises(UnsupportedError) as caught:
        dippm.predict(graph, mode="training")
    assert caught.value.code == "training.quantised"
    # 12 and 4 weights for each of the rank: q and o, k and v, gate and up, down, of two layers.
    step = dippm.predict(graph, mode="training", lora=8)
    assert step.model.parameters == 2 * 8 * (2 * (32 + 32) + 2 * (32 + 16) + 2 * (32 + 64) + 96)
    assert step.conditions.adapters is not None


def test_what_is_no_checkpoint_is_none(folder: Path, tmp_path: Path) -> None:
    (folder / "model.onnx").write_bytes(b"x")
    assert find_checkpoint(folder) is None
    for content in ("", "[]", "{}", '{"model_type": 5}', '{"model_type":', "[" * 100_000, '{"architecture": "vgg16"}'):
        path = tmp_path / "other.json"
        path.write_text(content)
        assert find_checkpoint(path) is None
    assert find_checkpoint(tmp_path) is None
    for name in ("missing#decode=4", "n" * 5000, "n" * 5000 + "#decode=4", "null\0", "#", "##"):
        assert find_checkpoint(tmp_path / name) is None


def test_a_large_file_of_another_kind_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    monkeypatch.setattr("json.loads", lambda _: pytest.fail("read"))
    assert find_checkpoint(path) is None


def test_a_folder_may_be_named_like_a_step(tmp_path: Path) -> None:
    found = find_checkpoint(write(tmp_path / "tiny#decode=4", _LLAMA))
    assert found is not None
    assert found.asked is None


def test_where_it_lies_does_not_count(folder: Path, tmp_path: Path) -> None:
    names = {find_checkpoint(each).content_name for each in (folder, write(tmp_path / "copy", _LLAMA))}  # type: ignore[union-attr]
    assert len(names) == 1
    other = find_checkpoint(write(tmp_path / "other", {**_LLAMA, "hidden_size": 64}))
    step = find_checkpoint(Path(f"{folder}#decode=4"))
    assert other is not None
    assert step is not None
    assert len({*names, other.content_name, step.content_name}) == 3


@given(st.binary(max_size=200))
def test_any_bytes_beside_it_leave_it_a_checkpoint(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = write(tmp_path_factory.mktemp("any") / "m", _LLAMA)
    (folder / "model.safetensors").write_bytes(content)
    found = find_checkpoint(folder)
    assert found is not None
    assert isinstance(found.doubts(5), tuple)


@needs_transformers
def test_another_framework_is_a_slip(folder: Path) -> None:
    for framework in ("onnx", "tensorflow"):
        with pytest.raises(UsageError) as caught:
            open_model(folder, input=InputShapes(), framework=framework)
        assert caught.value.code == "framework.mismatch"
    assert open_model(folder, input=InputShapes(), framework="pytorch").nodes
    with pytest.raises(UsageError, match="stands in its name"):
        dippm.load(f"{folder}#decode=5", input=(9,))
