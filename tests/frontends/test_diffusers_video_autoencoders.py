"""Autoencoders of videos take the video that their pipeline makes."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from dippm.frontends import zoo
from dippm.frontends.diffusers_video_autoencoders import VIDEO_AUTOENCODERS, video_of
from dippm.frontends.inputs import InputShapes

if any(find_spec(package) is None for package in ("torch", "transformers", "diffusers")):
    pytest.skip("diffusers is not installed", allow_module_level=True)

# Those that go through a video piece by piece take seconds for a long one, and do the same again and again.
# Several pieces, of which the last is as long as that of the whole video.
_FEW_FRAMES = {"AutoencoderKLCogVideoX": 17, "AutoencoderKLMagvit": 17, "AutoencoderKLWan": 17}
_WHOLE = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        *((name, _FEW_FRAMES.get(name, frames)) for name, (frames, _, _) in VIDEO_AUTOENCODERS.items()),
        *(pytest.param(name, VIDEO_AUTOENCODERS[name][0], marks=_WHOLE) for name in _FEW_FRAMES),
    ],
)
def test_a_video_goes_in_and_comes_out(name: str, frames: int) -> None:
    from dippm.frontends.torch import read_module

    module, inputs = zoo.build(f"diffusers:{name}")
    assert inputs.named == video_of(name)
    (entry,) = inputs.named.values()
    colours, whole, *size = entry.shape
    assert (whole - frames) % 16 == 0
    video = InputShapes(named={"sample": replace(entry, shape=(colours, frames, *size))})
    graph = read_module(module, input=video, batch_hint=1)
    assert not graph.unsupported_ops
    assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())
    assert [dim.at(1) for dim in graph.tensors[graph.outputs[0]].shape[1:3]] == [3, frames]
