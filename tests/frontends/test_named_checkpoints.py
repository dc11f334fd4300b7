import math
import tomllib
from importlib import resources
from importlib.util import find_spec

import pytest

import dippm
from dippm.frontends import named_checkpoints
from dippm.frontends.named_checkpoints import Checkpoint, find_named, known_names, load_checkpoints, published_format
from dippm.graph import DType, Graph, TensorRole

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.mark.parametrize("prefix", ["hf", "diffusers"])
def test_names_without_owner_are_unique(prefix: str) -> None:
    names = [name.lower() for name in known_names(prefix)]
    assert len(names) == 2 * len(load_checkpoints(prefix)) == len(set(names))


def test_a_model_that_was_trained_on_has_what_it_started_from_but_for_what_it_names() -> None:
    known = load_checkpoints("hf")
    base, same = known["meta-llama/Llama-3.2-3B"], known["meta-llama/Llama-3.2-3B-Instruct"]
    assert same == base
    base, shorter = known["Qwen/Qwen2.5-7B"], known["Qwen/Qwen2.5-7B-Instruct"]
    assert (shorter.architecture, shorter.parameters) == (base.architecture, base.parameters)
    assert {**base.config, "max_position_embeddings": 32768} == shorter.config != base.config
    without_window = known["mistralai/Mistral-7B-Instruct-v0.2"].config
    assert without_window == {"max_position_embeddings": 32768, "sliding_window": None}


def test_weights_are_published_in_a_type_of_their_own() -> None:
    known = load_checkpoints("hf")
    published = {
        "openai-community/gpt2": None,
        "meta-llama/Llama-2-7b-chat-hf": DType.FLOAT16,
        "meta-llama/Llama-3.1-8B-Instruct": DType.BFLOAT16,
        # The base in 32 bits, what was trained on from it in 16.
        "google/gemma-2-2b": None,
        "google/gemma-2-2b-it": DType.BFLOAT16,
    }
    assert {name: known[name].dtype for name in published} == published
    assert {each.dtype for each in known.values()} <= {None, DType.FLOAT16, DType.BFLOAT16}


def _bytes_of(graph: Graph, dtype: DType | None = None) -> float:
    return sum(
        math.prod(size.fixed for size in tensor.shape) * tensor.dtype.bits / 8
        for tensor in graph.tensors
        if tensor.role in {TensorRole.PARAMETER, TensorRole.BUFFER} and dtype in {None, tensor.dtype}
    )


@needs_transformers
def test_published_quantised_weights_take_what_their_files_do() -> None:
    # metadata.total_size of model.safetensors.index.json of openai/gpt-oss-20b; a table of frequencies is in no file.
    graph = dippm.load("hf:gpt-oss-20b")
    assert _bytes_of(graph) - _bytes_of(graph, DType.FLOAT32) == 13_761_264_768


def test_every_quantisation_can_be_followed() -> None:
    quantised = {name: each for name, each in load_checkpoints("hf").items() if each.quantization}
    assert len(quantised) > 40
    assert [name for name, each in quantised.items() if each.weight_format is None] == []
    known = load_checkpoints("hf")
    for name, whole_bits in (("Qwen3-8B-FP8", 8), ("Qwen2.5-7B-Instruct-AWQ", 4)):
        stored = published_format(f"hf:{name.lower()}#decode=9")
        assert stored is not None
        assert stored == known[f"Qwen/{name}"].weight_format
        assert stored.dtype.bits == whole_bits
    for whole in ("hf:Qwen3-8B", "hf:bert", "timm:resnet18", "model.onnx", "diffusers:none"):
        assert published_format(whole) is None


@needs_transformers
def test_published_quantised_weights_are_whole_where_they_are_trained_or_asked_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_local_experts": 4, "head_dim": 16}
    small = Checkpoint(
        architecture="GptOssForCausalLM",
        parameters=1,
        dtype=DType.BFLOAT16,
        config={**sizes, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64},
        quantization=load_checkpoints("hf")["openai/gpt-oss-20b"].quantization,
    )
    monkeypatch.setattr(named_checkpoints, "load_checkpoints", lambda prefix: {"someone/small": small})
    published = dippm.load("hf:small")
    (told,) = [warning for warning in published.warnings if "mxfp4" in warning]
    assert "4.25 bits each" in told
    packed = [tensor for tensor in published.tensors if tensor.dtype is DType.FLOAT4]
    assert [len(tensor.shape) for tensor in packed] == [3, 3]
    asked = dippm.load("hf:small", weights="dequantised")
    trained = dippm.load("hf:small", mode="training")
    for graph in (asked, trained):
        assert {tensor.dtype for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER} == {DType.BFLOAT16}
    assert [["mxfp4" in warning for warning in graph.warnings] for graph in (asked, trained)] == [[], [True]]
    other = dippm.load("hf:small", weights="int4")
    (anew,) = [warning for warning in other.warnings if "mxfp4" in warning]
    assert "taken as they were before that, and then stored as asked" in anew
    assert sum(tensor.dtype is DType.UINT4 for tensor in other.tensors) > len(packed)


def test_what_was_trained_on_says_from_what_and_nothing_that_follows_from_it() -> None:
    table = tomllib.loads(resources.files("dippm.frontends").joinpath("hf_checkpoints.toml").read_text("utf-8"))
    derived = {name: entry for name, entry in table.items() if "like" in entry}
    assert len(derived) > 30
    for name, entry in derived.items():
        assert not entry.keys() - {"like", "dtype", "config", "absent", "quantization"}, name
        assert "like" not in table[entry["like"]], name


@pytest.mark.parametrize("name", ["llama-3.1-8b-instruct", "mistralai/mistral-7b-instruct-v0.3", "gemma-2b-it"])
def test_models_that_were_trained_on_go_by_their_own_names(name: str) -> None:
    assert find_named("hf", name) is not None


@pytest.mark.parametrize("name", ["stable-diffusion-xl-base-1.0/unet", "stabilityai/Stable-Diffusion-XL-base-1.0/UNet"])
def test_a_part_of_a_pipeline_needs_neither_owner_nor_case(name: str) -> None:
    found = find_named("diffusers", name)
    assert found is load_checkpoints("diffusers")["stabilityai/stable-diffusion-xl-base-1.0/unet"]


def test_a_pipeline_is_no_model() -> None:
    assert find_named("diffusers", "stabilityai/stable-diffusion-xl-base-1.0") is None
