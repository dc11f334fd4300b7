import pytest

from dippm.frontends.named_checkpoints import find_named, known_names, load_checkpoints


@pytest.mark.parametrize("prefix", ["hf", "diffusers"])
def test_names_without_owner_are_unique(prefix: str) -> None:
    names = [name.lower() for name in known_names(prefix)]
    assert len(names) == 2 * len(load_checkpoints(prefix)) == len(set(names))


@pytest.mark.parametrize("name", ["stable-diffusion-xl-base-1.0/unet", "stabilityai/Stable-Diffusion-XL-base-1.0/UNet"])
def test_a_part_of_a_pipeline_needs_neither_owner_nor_case(name: str) -> None:
    found = find_named("diffusers", name)
    assert found is load_checkpoints("diffusers")["stabilityai/stable-diffusion-xl-base-1.0/unet"]


def test_a_pipeline_is_no_model() -> None:
    assert find_named("diffusers", "stabilityai/stable-diffusion-xl-base-1.0") is None
