"""The inputs of models of transformers: small ones run with them for real, and cost what was read."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dippm.costs import Workload
from dippm.errors import UnsupportedError
from dippm.frontends import zoo
from dippm.frontends.checkpoint_folder import find_checkpoint
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.open_model import open_model
from dippm.frontends.torch import read_module
from dippm.frontends.transformers_inputs import with_plain_text
from dippm.frontends.unread_weights import warn_of_unread_weights
from dippm.graph import DType

if find_spec("torch") is None or find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

_TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
_PATCHED: dict[str, Any] = {"depth": 2, "embed_dim": 16, "num_heads": 2, "hidden_size": 32, "patch_size": 14}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_LLAVA = {
    "text_config": {"model_type": "llama", **_TEXT},
    "vision_config": {"model_type": "clip_vision_model", "projection_dim": 16, **_VISION},
    "image_token_index": 150,
}
_QWEN = {"text_config": {**_TEXT, "rope_parameters": _ROPE}, "vision_config": _PATCHED, "image_token_id": 150}
_GEMMA = {
    "text_config": {**_TEXT, "head_dim": 8, "sliding_window": 64},
    "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
    "image_token_index": 150,
    "mm_tokens_per_image": 4,
}
_WHISPER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 200, "max_source_positions": 50,
    "num_mel_bins": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_SPEECH = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 200, "input_feat_per_channel": 12,
    "conv_channels": 8, "max_source_positions": 50, "pad_token_id": 0, "decoder_start_token_id": 1,
}  # fmt: skip
_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
_MLLAMA = {
    "text_config": {**_TEXT, "cross_attention_layers": [1], "pad_token_id": 0},
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 24, "attention_heads": 2, "num_hidden_layers": 2, "image_size": 28,
        "num_global_layers": 1, "vision_output_dim": 32, "intermediate_layers_indices": [0],
    },
    "image_token_index": 150,
}  # fmt: skip
_VOXTRAL = {
    "text_config": {"model_type": "llama", **_TEXT},
    "audio_config": {**_TOWER, "intermediate_size": 64, "max_source_positions": 64, "num_mel_bins": 12},
    "audio_token_id": 150,
}
_SPEECHT5 = {
    "hidden_size": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_layers": 1,
    "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 200, "num_mel_bins": 8,
    "speaker_embedding_dim": 6, "speech_decoder_prenet_units": 8, "speech_decoder_postnet_units": 8,
}  # fmt: skip
_CLAP = {
    "text_config": {**_TOWER, "vocab_size": 200},
    "audio_config": {
        "spec_size": 64, "num_mel_bins": 16, "patch_embeds_hidden_size": 8, "depths": [1, 1], "hidden_size": 16,
        "num_attention_heads": [1, 2], "window_size": 4, "projection_dim": 8,
    },
    "projection_dim": 8,
}  # fmt: skip
_LAGGED: dict[str, Any] = {
    "prediction_length": 6, "context_length": 8, "lags_sequence": [1, 2, 5], "num_time_features": 2, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip

CASES: dict[str, dict[str, Any]] = {
    "LlavaForConditionalGeneration": _LLAVA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "Qwen2VLForConditionalGeneration": _QWEN,
    "Qwen3VLForConditionalGeneration": {
        **_QWEN,
        "text_config": {**_TEXT, "head_dim": 8, "rope_parameters": _ROPE},
        "vision_config": {
            **_TOWER, "depth": 2, "num_heads": 2, "out_hidden_size": 32, "deepstack_visual_indexes": [0, 1],
        },
    },
    "WhisperForConditionalGeneration": _WHISPER,
    "Speech2TextForConditionalGeneration": _SPEECH,
    "MusicgenForCausalLM": {
        "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 200,
        "num_codebooks": 3,
    },
    "Siglip2Model": {
        "text_config": {**_TOWER, "vocab_size": 200, "projection_size": 16},
        "vision_config": {**_TOWER, "patch_size": 7, "num_patches": 16},
    },
    "VideoMAEModel": {**_TOWER, "image_size": 16, "patch_size": 8, "num_frames": 4},
    "MllamaForConditionalGeneration": _MLLAMA,
    "GlmAsrForConditionalGeneration": {
        "text_config": {"model_type": "llama", **_TEXT},
        "audio_config": {**_TOWER, "intermediate_size": 64, "max_position_embeddings": 60, "num_mel_bins": 12},
        "audio_token_id": 150,
    },
    "VoxtralForConditionalGeneration": _VOXTRAL,
    "ClapModel": _CLAP,
    "DacModel": {
        "encoder_hidden_size": 4, "downsampling_ratios": [2, 2], "decoder_hidden_size": 8, "n_codebooks": 2,
        "codebook_size": 16, "codebook_dim": 4, "sampling_rate": 400,
    },
    "SpeechT5ForTextToSpeech": _SPEECHT5,
    "DiaForConditionalGeneration": {
        "encoder_config": {**_TOWER, "head_dim": 8, "num_key_value_heads": 2, "vocab_size": 200},
        "decoder_config": {
            **_TOWER, "head_dim": 8, "num_key_value_heads": 2, "cross_num_attention_heads": 2, "cross_head_dim": 8,
            "cross_num_key_value_heads": 2, "cross_hidden_size": 16, "num_channels": 3, "vocab_size": 200,
        },
        "delay_pattern": [0, 1, 2],
    },
    "SegGptForImageSegmentation": {
        "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "mlp_dim": 24, "image_size": [64, 32],
        "pretrain_image_size": 32, "patch_size": 8, "merge_index": 0, "intermediate_hidden_state_indices": [0, 1],
        "decoder_hidden_size": 8,
    },
    "TimesFmModel": {
        **_TOWER, "context_length": 64, "patch_length": 8, "horizon_length": 8, "head_dim": 8,
    },
    "TimeSeriesTransformerForPrediction": _LAGGED,
    "InformerForPrediction": {
        **_LAGGED, "input_size": 3, "num_static_categorical_features": 1, "cardinality": [5],
        "embedding_dimension": [4], "num_static_real_features": 2, "num_dynamic_real_features": 1,
    },
    "AutoformerModel": {**_LAGGED, "label_length": 4},
    "PatchTSMixerModel": {"context_length": 64, "patch_length": 8, "d_model": 8, "num_layers": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_model_costs_what_pytorch_counts_when_it_runs(name: str) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from dippm.measuring.sample_inputs import make_inputs

    module, shapes = zoo.build(f"hf:{name}", device="cpu", options=CASES[name])
    graph = read_module(module, input=shapes, source=name, batch_hint=2)
    inputs = make_inputs(module, shapes, batch=2, device="cpu")
    # The counter does not know the fused attention of CPUs.
    with sdpa_kernel(SDPBackend.MATH), torch.inference_mode(), FlopCounterMode(display=False) as counter:
        module(*inputs.args, **inputs.kwargs)
    assert int(Workload.from_graph(graph).at(2).macs.sum()) == counter.get_total_flops() // 2 > 0
    assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())
    assert not graph.unsupported_ops


def test_a_text_has_places_for_the_features_of_its_image() -> None:
    _, shapes = zoo.build("hf:LlavaForConditionalGeneration", options=_LLAVA)
    named = shapes.named or {}
    assert named["pixel_values"].shape == (3, 28, 28)
    values = named["input_ids"].values or ()
    assert values.count(150) == (28 // 7) ** 2
    assert len(values) == 128 + values.count(150)


def test_a_text_has_places_for_the_features_of_its_sound() -> None:
    _, shapes = zoo.build("hf:VoxtralForConditionalGeneration", options=_VOXTRAL)
    named = shapes.named or {}
    assert named["input_features"].shape == (12, 2 * 64)
    values = named["input_ids"].values or ()
    assert values.count(150) == 64 * 16 // 64
    assert len(values) == 128 + values.count(150)


def test_a_sound_stands_beside_a_text_that_it_is_compared_with() -> None:
    _, shapes = zoo.build("hf:ClapModel", options=_CLAP)
    named = shapes.named or {}
    assert (named["input_ids"].shape, named["input_features"].shape) == ((128,), (1, 4 * 64, 16))


def test_a_text_is_alone_where_how_many_features_a_sound_has_is_not_known() -> None:
    tower = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
    options = {"audio_config": tower, "text_config": {"model_type": "qwen2", **_TEXT}}
    _, shapes = zoo.build("hf:Qwen2AudioForConditionalGeneration", options=options)
    assert list(shapes.named or {}) == ["input_ids"]


def test_every_token_of_a_text_may_look_at_every_tile_of_an_image() -> None:
    _, shapes = zoo.build("hf:MllamaForConditionalGeneration", options=_MLLAMA)
    named = shapes.named or {}
    assert named["pixel_values"].shape == (1, 4, 3, 28, 28)
    # Of the ratios that the library lists the sixth has two tiles by two.
    assert named["aspect_ratio_ids"].values == (6,)
    assert named["cross_attention_mask"].shape == (128, 1, 4)


def test_texts_that_a_model_needs_are_given_with_their_masks() -> None:
    _, shapes = zoo.build("hf:BrosModel", options={**_TOWER, "vocab_size": 200})
    assert (shapes.named or {})["bbox"].shape == (128, 4)
    _, shapes = zoo.build("hf:OmDetTurboForObjectDetection")
    needed = {"classes_input_ids", "classes_attention_mask", "tasks_input_ids", "tasks_attention_mask"}
    assert needed < (shapes.named or {}).keys()


def test_patches_of_all_images_lie_below_each_other() -> None:
    _, shapes = zoo.build("hf:Qwen2VLForConditionalGeneration", options=_QWEN)
    named = shapes.named or {}
    assert named["pixel_values"].at(3) == (3 * 32 * 32, 3 * 2 * 14 * 14)
    assert named["image_grid_thw"].values == (1, 32, 32)
    values = named["input_ids"].values or ()
    assert values.count(150) == 32 * 32 // 4
    assert named["mm_token_type_ids"].values == tuple(int(value == 150) for value in values)


def test_a_model_of_timm_takes_images_of_its_own_size(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    settings = {"model_type": "timm_wrapper", "architecture": "resnet18", "num_classes": 2, "label_names": ["a", "b"]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**settings, "pretrained_cfg": {"input_size": [3, 96, 64]}}))
    checkpoint = find_checkpoint(config)
    assert checkpoint is not None
    _, shapes = zoo.build_stored(checkpoint)
    assert (shapes.named or {})["pixel_values"].shape == (3, 96, 64)


def test_a_model_that_looks_for_padding_is_read_on_a_text_without() -> None:
    options = {"emb_dim": 16, "n_layers": 1, "n_heads": 2, "n_words": 200}
    graph = open_model("hf:XLMModel", input=InputShapes())
    assert any("no padding" in warning for warning in graph.warnings)
    module, shapes = zoo.build("hf:XLMModel", options=options)
    with pytest.raises(UnsupportedError):
        read_module(module, input=shapes)
    plain = with_plain_text(shapes)
    assert plain is not None
    assert read_module(module, input=plain).fixed_batch is None
    assert with_plain_text(plain) is None


def test_a_model_that_looks_for_the_end_of_a_text_is_read_on_one_that_has_it(tmp_path: Path) -> None:
    size = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 200}  # fmt: skip
    settings = {"model_type": "bart", "architectures": ["BartForSequenceClassification"], **size}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings))
    graph = open_model(str(config), input=InputShapes())
    assert graph.fixed_batch is None
    assert graph.tensors[graph.outputs[0]].shape[0].per_sample == 1
    given = InputShapes(named={"input_ids": InputEntry(shape=(3,), dtype=DType.INT64)})
    ended = with_plain_text(given, end=2)
    assert ended is not None
    assert (ended.named or {})["input_ids"].values == (99, 99, 2)


def test_only_texts_become_plain() -> None:
    entries = {"pixel_values": InputEntry(shape=(3, 8, 8)), "input_ids": InputEntry(shape=(4,), dtype=DType.INT64)}
    plain = with_plain_text(InputShapes(named=entries))
    assert plain is not None
    assert (plain.named or {})["pixel_values"] == entries["pixel_values"]
    assert len((plain.named or {})["input_ids"].values or ()) == 4


def test_a_text_is_read_alone_where_no_image_fits_it_and_what_is_left_out_is_told() -> None:
    options = {**_QWEN, "vision_config": {**_PATCHED, "hidden_size": 48}}
    module, shapes = zoo.build("hf:Qwen2VLForConditionalGeneration", options=options)
    assert set(shapes.named or {}) == {"input_ids"}
    (warning,) = warn_of_unread_weights(read_module(module, input=shapes)).warnings
    assert "those of model.visual" in warning


def test_a_decoder_of_sounds_takes_a_step_for_each_token_of_a_text() -> None:
    _, shapes = zoo.build("hf:SpeechT5ForTextToSpeech", options=_SPEECHT5)
    named = {name: entry.shape for name, entry in (shapes.named or {}).items()}
    assert named == {"input_ids": (128,), "decoder_input_values": (256, 8), "speaker_embeddings": (6,)}
    _, shapes = zoo.build("hf:DiaForConditionalGeneration", options=CASES["DiaForConditionalGeneration"])
    assert (shapes.named or {})["decoder_input_ids"].shape == (128, 3)
    _, shapes = zoo.build("hf:MusicgenForConditionalGeneration")
    assert (shapes.named or {})["decoder_input_ids"].at(2) == (2 * 4, 128)


def test_what_is_to_be_done_with_an_image_stands_beside_it() -> None:
    pytest.importorskip("timm")
    _, shapes = zoo.build("hf:OneFormerForUniversalSegmentation")
    assert {name: entry.shape for name, entry in (shapes.named or {}).items()} == {
        "pixel_values": (3, 224, 224), "task_inputs": (77,),
    }  # fmt: skip


def test_inputs_that_do_not_fit_are_told_with_those_that_the_model_takes() -> None:
    with pytest.raises(UnsupportedError, match=r"spectrogram.*config\.json") as caught:
        open_model("hf:SpeechT5HifiGan", input=InputShapes())
    assert caught.value.code == "zoo.inputs_unknown"
