"""The networks of NVIDIA's DeepLearningExamples, by the parameters that their papers and READMEs state."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

from dippm.evaluation.example_networks import (  # noqa: E402
    JASPER,
    QUARTZNET,
    AcousticModel,
    NeuMf,
    Ssd300,
    TransformerXl,
    UNet,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def on_meta(make: Callable[[], Any]) -> Any:
    with torch.device("meta"):
        return make()


def whole(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        # README of Jasper: 333M; QuartzNet (Kriman et al., table 1): 18.9M.
        (lambda: AcousticModel(JASPER, is_dense=True), 333),
        (lambda: AcousticModel(QUARTZNET, is_dense=False), 18.9),
        # Transformer-XL base with the widths of its README; nnU-Net of six levels up to 320 filters.
        (lambda: TransformerXl(16, 512, is_projected=False), 192),
        (lambda: UNet(3), 31.2),
    ],
)
def test_parameters_are_as_many_as_stated(make: Callable[[], nn.Module], millions: float) -> None:
    assert count(on_meta(make)) == pytest.approx(millions * 1e6, rel=0.003)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_every_place_of_an_image_gets_scores(dimensions: int) -> None:
    network = on_meta(lambda: UNet(dimensions))
    sizes = (64, 96, 32)[:dimensions]
    assert network(torch.empty(2, 4, *sizes, device="meta")).shape == (2, 4, *sizes)


def test_ssd_has_8732_boxes_of_81_classes() -> None:
    places, classes = on_meta(Ssd300)(torch.empty(2, 3, 300, 300, device="meta"))
    assert (places.shape, classes.shape) == ((2, 4, 8732), (2, 81, 8732))


def test_what_lies_behind_the_end_of_a_sample_is_not_heard() -> None:
    network = AcousticModel(QUARTZNET[:1], is_dense=False).eval()
    sound = torch.rand(1, 64, 64)
    louder = sound.clone()
    louder[..., 32:] += 1.0
    with torch.no_grad():
        first, second = (network(each, torch.tensor([32])) for each in (sound, louder))
    assert first.shape == (1, 32, 29)
    assert torch.equal(first, second)


def test_a_dense_residual_adds_the_inputs_of_all_blocks_before() -> None:
    network = on_meta(lambda: AcousticModel(JASPER[:4], is_dense=True))
    assert [len(block.beside) for block in network.blocks] == [0, 1, 2, 3]
    assert network(torch.empty(1, 64, 128, device="meta"), whole(1)).shape == (1, 64, 29)


@pytest.mark.parametrize("has_sigmoid", [True, False])
def test_ratings_are_probabilities_in_evaluation(has_sigmoid: bool) -> None:
    network = on_meta(lambda: NeuMf(has_sigmoid=has_sigmoid))
    assert network(whole(8), whole(8)).shape == (8, 1)


@pytest.mark.parametrize("is_projected", [True, False])
def test_a_segment_looks_back_at_the_last_ones(is_projected: bool) -> None:
    network = on_meta(lambda: TransformerXl(2, 128, is_projected=is_projected))
    losses, memory = network(whole(4, 3), whole(4, 3), torch.empty(2, 6, 3, 128, device="meta"))
    assert losses.shape == (4, 3)
    assert memory.shape == (2, 6, 3, 128)
