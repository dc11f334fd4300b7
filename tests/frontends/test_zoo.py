"""Models by name."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from dippm.errors import MissingExtraError, UnsupportedError, UsageError
from dippm.frontends import zoo
from dippm.frontends.inputs import InputEntry
from dippm.graph import DType

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("timm:resnet50", True), ("hf:bert", True), ("model.onnx", False), ("C:model.onnx", False), ("timm", False)],
)
def test_is_zoo_name(name: str, expected: bool) -> None:
    assert zoo.is_zoo_name(name) is expected


@needs_timm
def test_timm() -> None:
    module, given = zoo.build("timm:resnet18")
    assert given.positional == (InputEntry(shape=(3, 224, 224)),)
    assert not module.training
    assert all(parameter.device.type == "meta" for parameter in module.parameters())


@needs_timm
def test_on_a_real_device_the_weights_are_random_numbers() -> None:
    module, _ = zoo.build("timm:test_resnet", device="cpu")
    tensors = [*module.parameters(), *module.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert any(float(tensor.detach().float().std()) > 0 for tensor in module.parameters())


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("torchvision:vgg11", (3, 224, 224)),
        ("torchvision:inception_v3", (3, 299, 299)),
        ("torchvision:r3d_18", (3, 16, 112, 112)),
        ("torchvision:fcn_resnet50", (3, 520, 520)),
    ],
)
def test_torchvision(name: str, shape: tuple[int, ...]) -> None:
    _, given = zoo.build(name)
    assert given.positional[0].shape == shape


@needs_transformers
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("hf:bert", {"input_ids": (128,)}),
        ("hf:BertForMaskedLM", {"input_ids": (128,)}),
        ("hf:t5", {"input_ids": (128,), "decoder_input_ids": (128,)}),
        ("hf:vit", {"pixel_values": (3, 224, 224)}),
        ("hf:clip", {"pixel_values": (3, 224, 224), "input_ids": (77,)}),
        ("hf:wav2vec2", {"input_values": (16000,)}),
    ],
)
def test_hf(name: str, inputs: dict[str, tuple[int, ...]]) -> None:
    _, given = zoo.build(name)
    entries = given.named or {}
    assert {key: entry.shape for key, entry in entries.items()} == inputs
    assert all(entry.dtype is DType.INT64 for key, entry in entries.items() if key.endswith("input_ids"))


@needs_transformers
def test_a_large_language_model_takes_no_memory() -> None:
    module, _ = zoo.build("hf:LlamaForCausalLM")
    assert sum(parameter.numel() for parameter in module.parameters()) > 6e9
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        pytest.param("timm:resnet51", "timm:resnet50", marks=needs_timm),
        pytest.param("torchvision:vgg61", "torchvision:vgg16", marks=needs_torchvision),
        pytest.param("hf:bret", "hf:bert", marks=needs_transformers),
        ("keras:vgg16", "timm:NAME"),
        ("timm:", "timm:NAME"),
    ],
)
def test_unknown_names_list_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        zoo.build(name)
    assert caught.value.code == "zoo.unknown"
    assert near in str(caught.value)


@pytest.mark.parametrize("package", ["torch", "timm"])
def test_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingExtraError) as caught:
        zoo.build("timm:resnet18")
    assert caught.value.package == package
    assert caught.value.extra == "zoo"


@pytest.mark.parametrize("name", ["timm:resnet18#decode=16", "torchvision:vgg16#image=224"])
def test_nothing_stands_behind_the_name_of_an_image_model(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        zoo.build(name)
    assert caught.value.code == "generation.step"
    assert name.partition("#")[0] in str(caught.value.cure)
