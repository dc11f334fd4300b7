"""Autoencoders of videos take the video that their pipeline makes."""

from importlib.util import find_spec

import pytest

from dippm.frontends import zoo
from dippm.frontends.diffusers_video_autoencoders import VIDEO_AUTOENCODERS, video_of

if any(find_spec(package) is None for package in ("torch", "transformers", "diffusers")):
    pytest.skip("diffusers is not installed", allow_module_level=True)

# Those that go through a video piece by piece take seconds for a long one.
_IN_PIECES = {"AutoencoderKLCogVideoX", "AutoencoderKLMagvit", "AutoencoderKLMochi", "AutoencoderKLWan"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _IN_PIECES)) for name in VIDEO_AUTOENCODERS]
)
def test_a_video_goes_in_and_comes_out(name: str) -> None:
    from dippm.frontends.torch import read_module

    module, inputs = zoo.build(f"diffusers:{name}")
    assert inputs.named == video_of(name)
    graph = read_module(module, input=inputs, batch_hint=1)
    assert not graph.unsupported_ops
    assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())
    assert [dim.at(1) for dim in graph.tensors[graph.outputs[0]].shape[1:3]] == [3, VIDEO_AUTOENCODERS[name][0]]
