import tomllib
from importlib import resources

import pytest

from dippm.frontends.named_checkpoints import find_named, known_names, load_checkpoints
from dippm.graph import DType


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


def test_what_was_trained_on_says_from_what_and_nothing_that_follows_from_it() -> None:
    table = tomllib.loads(resources.files("dippm.frontends").joinpath("hf_checkpoints.toml").read_text("utf-8"))
    derived = {name: entry for name, entry in table.items() if "like" in entry}
    assert len(derived) > 30
    for name, entry in derived.items():
        assert not entry.keys() - {"like", "dtype", "config", "absent"}, name
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
