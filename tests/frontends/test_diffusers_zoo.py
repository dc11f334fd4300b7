import json
import logging
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.costs.precision import Precision
from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.frontends import zoo
from dippm.frontends.checkpoint_folder import find_checkpoint
from dippm.frontends.inputs import InputShapes
from dippm.frontends.named_checkpoints import load_checkpoints
from dippm.frontends.open_model import open_model

if any(find_spec(package) is None for package in ("torch", "transformers", "diffusers")):
    pytest.skip("diffusers is not installed", allow_module_level=True)

_UNET = {
    "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0", "sample_size": 8, "cross_attention_dim": 8,
    "block_out_channels": [8, 16], "norm_num_groups": 4, "attention_head_dim": 4, "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}  # fmt: skip


def write(folder: Path, settings: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def build(path: Path, *, precision: Precision = Precision.FP32) -> tuple[Any, InputShapes]:
    found = find_checkpoint(path)
    assert found is not None
    assert found.library == "diffusers"
    return zoo.build_stored(found, precision=precision)


@pytest.mark.parametrize("name", list(load_checkpoints("diffusers")))
def test_a_checkpoint_has_the_weights_that_it_is_published_with(name: str) -> None:
    module, _ = zoo.build(f"diffusers:{name}")
    assert sum(item.numel() for item in module.parameters()) == load_checkpoints("diffusers")[name].parameters
    assert all(item.is_meta for item in module.parameters())


def test_a_part_is_predicted_by_its_folder_its_configuration_and_its_name(tmp_path: Path) -> None:
    name = "stable-diffusion-v1-5/unet"
    module, _ = zoo.build(f"diffusers:{name}")
    described = {**module.config, "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0"}
    folder = write(tmp_path / "unet", described)
    by_name = dippm.predict(f"diffusers:{name}#image=256", device="A100")
    for path in (f"{folder}#image=256", f"{folder}/config.json#image=256"):
        assert dippm.predict(path, device="A100").macs == by_name.macs
    assert by_name.inputs["sample"] == (1, 4, 32, 32)


def test_the_model_is_read_in_the_format_that_it_runs_in(tmp_path: Path) -> None:
    folder = write(tmp_path / "unet", _UNET)
    graph = open_model(str(folder), input=InputShapes(), precision=Precision.FP16)
    types = {str(tensor.dtype) for tensor in graph.tensors if tensor.name.endswith(("weight", "bias"))}
    assert types == {"float16"}
    # The table of the timestep is made in FP32 whatever the format.
    assert "float32" in {str(tensor.dtype) for tensor in graph.tensors}


def test_what_from_pretrained_keeps_in_fp32_stays_in_it(tmp_path: Path) -> None:
    settings = {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0", "num_layers": 1,
                "num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 8}  # fmt: skip
    module, inputs = build(write(tmp_path / "wan", settings), precision=Precision.BF16)
    # What the others are in, its inputs are.
    assert {str(entry.dtype) for entry in (inputs.named or {}).values()} == {"bfloat16", "int64"}
    types = {name: str(item.dtype) for name, item in module.named_parameters()}
    assert types["scale_shift_table"] == types["blocks.0.scale_shift_table"] == "torch.float32"
    assert types["blocks.0.ffn.net.2.weight"] == "torch.bfloat16"


def test_a_class_that_was_split_is_built_as_what_it_became(tmp_path: Path) -> None:
    settings = {"_class_name": "Transformer2DModel", "_diffusers_version": "0.12.0", "norm_type": "ada_norm_zero",
                "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8, "num_layers": 1,
                "sample_size": 8, "num_embeds_ada_norm": 10, "norm_elementwise_affine": False, "attention_bias": True,
                "activation_fn": "gelu-approximate"}  # fmt: skip
    path = write(tmp_path / "transformer", settings)
    assert type(build(path)[0]).__name__ == "DiTTransformer2DModel"
    assert not any("Transformer2DModel" in text for text in open_model(str(path), input=InputShapes()).warnings)


def test_code_beside_it_is_neither_run_nor_is_a_hub_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "unet", {**_UNET, "auto_map": {"AutoModel": "evil.Evil"}, "_name_or_path": "/other"})
    (path / "evil.py").write_text("raise SystemExit")
    opened = []
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"open", "socket.connect"} and str(tmp_path) in str(arguments[0]):
            opened.append(arguments[0])

    sys.addaudithook(watch)
    build(path)
    assert {Path(name).name for name in opened} == {"config.json"}


def test_weights_of_another_model_are_told(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = write(tmp_path / "unet", _UNET)
    module, _ = build(path)
    import numpy

    count = sum(item.numel() for item in module.parameters())
    save_file({"a": numpy.zeros(count, "float16")}, path / "diffusion_pytorch_model.fp16.safetensors")
    said = "hold {:,} weights"
    assert not any("weights, the model" in text for text in dippm.predict(path, device="A100").warnings)
    # The plain copy goes before that in FP16.
    save_file({"a": numpy.zeros(2 * count, "float32")}, path / "diffusion_pytorch_model.safetensors")
    assert any(said.format(2 * count) in text for text in dippm.predict(path, device="A100").warnings)


def test_the_library_gives_no_advice_on_a_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build(write(tmp_path / "unet", {**_UNET, "unheard_of": 5}))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"_class_name": "UNet2DConditionalModel"}, "zoo.unknown", r"part.config\.json' names _class_name"),
        ({"_class_name": "PNDMScheduler"}, "zoo.unknown", "no model 'PNDMScheduler'"),
        ({"_class_name": "AutoModel"}, "zoo.unknown", "no model 'AutoModel'"),
        ({**_UNET, "block_out_channels": [8]}, "zoo.build_failed", "block_out_channels"),
        ({**_UNET, "sample_size": "many"}, "zoo.build_failed", "many"),
    ],
)
def test_what_cannot_be_built_is_said(tmp_path: Path, settings: Mapping[str, Any], code: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        build(write(tmp_path / "part", {"_diffusers_version": "0.30.0", **settings}))
    assert caught.value.code == code


def test_inputs_that_are_not_known_are_asked_for(tmp_path: Path) -> None:
    settings = {"_class_name": "PriorTransformer", "_diffusers_version": "0.30.0", "num_layers": 1,
                "num_attention_heads": 2, "attention_head_dim": 4, "embedding_dim": 8, "num_embeddings": 5}  # fmt: skip
    path = write(tmp_path / "prior", settings)
    with pytest.raises(UnsupportedError, match=r"Give them \(timestep, proj_embedding") as caught:
        dippm.predict(path, device="A100")
    assert caught.value.code == "zoo.inputs_unknown"
    given = {"hidden_states": (8,), "timestep": ((), "int64"), "proj_embedding": (8,), "encoder_hidden_states": (5, 8)}
    assert dippm.predict(path, device="A100", input=given).latency_ms > 0.0


def test_names_list_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="diffusers:stable-diffusion-2-1/unet"):
        zoo.build("diffusers:stabilityai/stable-diffusion-2-1")


@pytest.mark.parametrize(
    ("name", "options", "error", "code"),
    [
        ("diffusers:UNet2DConditionModel", {"sampel_size": 64}, UsageError, "zoo.option_unknown"),
        ("diffusers:UNet2DConditionModel#image=513", {}, UsageError, "zoo.image_invalid"),
        ("diffusers:UNet2DConditionModel#decode=5", {}, UsageError, "zoo.image_invalid"),
        ("diffusers:PriorTransformer#image=512", {}, UsageError, "zoo.image_invalid"),
    ],
)
def test_what_cannot_be_had_is_refused(name: str, options: dict[str, Any], error: type[DippmError], code: str) -> None:
    with pytest.raises(error) as caught:
        zoo.build(name, options=options)
    assert caught.value.code == code
