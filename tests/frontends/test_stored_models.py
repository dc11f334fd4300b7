"""Models of a config.json that need not be trusted: nothing beside it is run, opened or asked for."""

from __future__ import annotations

import json
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from dippm.costs.precision import Precision
from dippm.errors import UnsupportedError
from dippm.frontends import zoo
from dippm.frontends.checkpoint_folder import StoredCheckpoint, find_checkpoint
from dippm.frontends.inputs import InputShapes

if any(find_spec(package) is None for package in ("torch", "timm", "transformers")):
    pytest.skip("transformers or timm is not installed", allow_module_level=True)

_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
_VIT = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
_DETR = {
    "model_type": "detr", "architectures": ["DetrForObjectDetection"], "backbone": "resnet18", "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "use_timm_backbone": True, "use_pretrained_backbone": True,
}  # fmt: skip
_WRAPPER = {
    "model_type": "timm_wrapper", "architecture": "resnet18", "num_classes": 10, "label_names": ["a", "b"],
    "architectures": ["TimmWrapperForImageClassification"],
}  # fmt: skip
_TIMM = {"architecture": "resnet18", "num_classes": 10, "pretrained_cfg": {"input_size": [3, 64, 64]}}


def stored(folder: Path, settings: dict[str, Any], step: str = "") -> StoredCheckpoint:
    (folder / "config.json").write_text(json.dumps(settings))
    found = find_checkpoint(folder.with_name(folder.name + step))
    assert found is not None
    return found


def build(folder: Path, settings: dict[str, Any], step: str = "") -> tuple[Any, InputShapes]:
    return zoo.build_stored(stored(folder, settings, step))


def refusal(folder: Path, settings: dict[str, Any], step: str = "") -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        build(folder, settings, step)
    return caught.value


@pytest.mark.parametrize("step", ["", "#decode=5"])
def test_code_beside_it_is_neither_run_nor_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked whether to run code"))
    (tmp_path / "own.py").write_text("raise SystemExit\n")
    own = {"AutoModelForCausalLM": "own.Evil", "AutoModel": "own.Evil"}
    foreign = {"auto_map": own, "_name_or_path": str(tmp_path), "name_or_path": str(tmp_path), "architectures": []}
    module, _ = build(tmp_path, {**_LLAMA, **foreign}, step)
    inner = module.model if step else module
    assert type(inner).__name__ == ("LlamaForCausalLM" if step else "LlamaModel")
    assert refusal(tmp_path, {**_VIT, **foreign}, "#decode=5").code == "generation.no_cache"


@pytest.mark.parametrize("arguments", ["model_args", "backbone_kwargs"])
def test_weights_that_a_model_of_timm_would_open_are_left_out(tmp_path: Path, arguments: str) -> None:
    opened: list[str] = []
    asked: list[str] = []

    def listen(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and str(values[0]).startswith(str(tmp_path)):
            opened.append(Path(str(values[0])).name)
        if event in {"socket.connect", "socket.getaddrinfo"}:
            asked.append(event)

    (tmp_path / "own.pth").write_bytes(b"no weights")
    elsewhere = {"checkpoint_path": str(tmp_path / "own.pth"), "pretrained": True, "cache_dir": str(tmp_path)}
    sys.addaudithook(listen)  # stays until the process ends
    settings = _WRAPPER if arguments == "model_args" else _DETR
    build(tmp_path, {**settings, arguments: {**elsewhere, "in_chans": 3}})
    assert set(opened) == {"config.json"}
    assert not asked


@pytest.mark.parametrize("place", ["hf-hub:timm/resnet18.a1_in1k", "local-dir:/other"])
def test_a_model_of_timm_is_not_named_by_its_place(tmp_path: Path, place: str) -> None:
    nested = {"model_type": "timm_backbone", "backbone": place}
    for settings in (
        {**_WRAPPER, "architecture": place},
        nested,
        {**_TIMM, "architecture": place},
        {**_DETR, "backbone": place},
        {**_DETR, "backbone": None, "backbone_config": nested},
    ):
        error = refusal(tmp_path, settings)
        assert error.code == "zoo.unknown"
        assert place in str(error)


@pytest.mark.parametrize(
    "name", ["pipeline", "Trainer", "AutoModelForCausalLM", "__doc__", "BertModel", "LlamaConfig", "OwnForCausalLM"]
)
def test_another_class_than_one_of_the_type_is_told(tmp_path: Path, name: str) -> None:
    checkpoint = stored(tmp_path, {**_LLAMA, "architectures": [name]})
    module, _ = zoo.build_stored(checkpoint)
    assert type(module).__name__ == "LlamaModel"
    (doubt,) = zoo.doubts_of_stored(checkpoint, module)
    assert name in doubt
    assert "LlamaModel" in doubt
    with_code = {**_LLAMA, "architectures": [name], "auto_map": {"AutoModel": "own.Model"}}
    assert refusal(tmp_path, with_code).code == "checkpoint.foreign_code"


@pytest.mark.parametrize("named", ["LlamaForCausalLM", ["LlamaForCausalLM"], [], None, [5], 5])
def test_the_class_that_is_named_is_built_without_a_doubt(tmp_path: Path, named: object) -> None:
    checkpoint = stored(tmp_path, {**_LLAMA, "architectures": named, "auto_map": None})
    module, _ = zoo.build_stored(checkpoint)
    is_named = named in ("LlamaForCausalLM", ["LlamaForCausalLM"])
    assert type(module).__name__ == ("LlamaForCausalLM" if is_named else "LlamaModel")
    assert zoo.doubts_of_stored(checkpoint, module) == ()


def test_a_head_that_a_step_needs_is_told(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path, {**_LLAMA, "architectures": ["LlamaModel"]}, "#decode=5")
    module, _ = zoo.build_stored(checkpoint)
    assert "LlamaForCausalLM" in zoo.doubts_of_stored(checkpoint, module)[0]
    checkpoint = stored(tmp_path, _LLAMA, "#decode=5")
    module, _ = zoo.build_stored(checkpoint)
    assert zoo.doubts_of_stored(checkpoint, module) == ()


def test_a_backbone_of_timm_with_arguments_needs_no_hub(tmp_path: Path) -> None:
    def count(**changes: object) -> int:
        module, _ = build(tmp_path, {**_DETR, **changes})
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(backbone_kwargs={"out_indices": [1, 2, 3, 4]}) == count()
    assert count(backbone_kwargs={"in_chans": 1}, num_channels=1) < count()
    error = refusal(tmp_path, {**_DETR, "backbone": "owner/resnet", "use_timm_backbone": False})
    assert error.code == "zoo.build_failed"
    assert "asks a hub" in str(error)
    assert "OFFLINE" not in str(error)


def test_the_library_gives_no_advice_on_a_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    # It says some things only once.
    for warning in (logging.Logger.warning_once, logging.Logger.warning_advice):  # type: ignore[attr-defined]
        getattr(warning, "cache_clear", lambda: None)()
    try:
        rope = {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "odd": 3}, "bos_token_id": 5000}
        build(tmp_path, {**_LLAMA, **rope, "torch_dtype": "bfloat16"})
        build(tmp_path, {**_VIT, "torch_dtype": None})
        zoo.build("hf:llama", options={**rope, "num_hidden_layers": 1})
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn_x2", "int8"])
@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], []])
def test_a_type_of_files_alone_is_not_that_of_the_weights(tmp_path: Path, dtype: str, architectures: list[str]) -> None:
    import torch

    module, _ = build(tmp_path, {**_LLAMA, "architectures": architectures, "dtype": dtype})
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    module, _ = build(tmp_path, {**_LLAMA, "architectures": architectures, "dtype": "float16"})
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float16}


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({**_VIT, "patch_size": 0}, "zero"),
        ({"model_type": "swin", "depths": [2, 2], "num_heads": [3]}, "out of range"),
        ({**_TIMM, "model_args": [1]}, "model_args"),
        ({**_TIMM, "num_classes": 1e15}, "num_classes"),
        ({**_WRAPPER, "num_classes": 10**9, "label_names": None}, "num_classes"),
        ({**_LLAMA, "text_config": {"num_labels": 10**9}}, "num_labels"),
        ({**_TIMM, "pretrained_cfg": {"input_size": "big"}}, "'big'"),
        ({**_TIMM, "pretrained_cfg": {"input_size": 224}}, "224"),
        ({**_TIMM, "pretrained_cfg": {"input_size": [3, -1, 4]}}, "-1"),
        ({**_TIMM, "pretrained_cfg": {"input_size": [3, 4]}}, "[3, 4]"),
        ({**_TIMM, "pretrained_cfg": {"input_size": [3, 4.5, True]}}, "4.5"),
    ],
)
def test_what_cannot_be_built_is_no_defect(tmp_path: Path, settings: dict[str, Any], cause: str) -> None:
    error = refusal(tmp_path, settings)
    assert error.code == "zoo.build_failed"
    assert cause in str(error)


def test_every_part_is_made_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    part = {
        "model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "vocab_size": 50,
    }  # fmt: skip
    settings = {
        "model_type": "encoder-decoder", "architectures": ["EncoderDecoderModel"],
        "encoder": {**part, "dtype": "float32"},
        "decoder": {**part, "is_decoder": True, "add_cross_attention": True, "dtype": "bfloat16"},
    }  # fmt: skip
    module, _ = zoo.build_stored(stored(tmp_path, settings), precision=Precision.FP16)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float16}


def test_a_type_that_is_left_to_the_loader_is_no_type(tmp_path: Path) -> None:
    module, _ = build(tmp_path, {**_LLAMA, "dtype": "auto", "torch_dtype": "auto"})
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
