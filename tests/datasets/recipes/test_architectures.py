from __future__ import annotations

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.alexnet import AlexNet  # noqa: E402
from dippm.datasets.recipes.architectures.cell_network import CellNetwork  # noqa: E402
from dippm.datasets.recipes.architectures.chain import Chain  # noqa: E402
from dippm.datasets.recipes.architectures.inception_v1 import InceptionV1  # noqa: E402
from dippm.datasets.recipes.architectures.lenet import LeNet  # noqa: E402
from dippm.datasets.recipes.architectures.overfeat import OverFeat  # noqa: E402
from dippm.datasets.recipes.architectures.recurrent import RecurrentClassifier  # noqa: E402
from dippm.datasets.recipes.architectures.unet import UNet  # noqa: E402
from dippm.datasets.recipes.architectures.vgg import VGG  # noqa: E402


@pytest.fixture(autouse=True)
def _on_meta():
    with torch.device("meta"):
        yield


def parameters(module: torch.nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def test_lenet_counts_as_the_usual_one_for_digits() -> None:
    module = LeNet(in_chans=1, height=28, width=28)
    by_hand = (25 * 32 + 32) + (25 * 32 * 64 + 64) + (7 * 7 * 64 * 1024 + 1024) + (1024 * 10 + 10)
    assert parameters(module) == by_hand == 3274634
    assert module(torch.empty(2, 1, 28, 28)).shape == (2, 10)


def test_vgg16_counts_as_in_its_paper() -> None:
    module = VGG(convolutions=(2, 2, 3, 3, 3), in_chans=3, height=224, width=224)
    assert parameters(module) == 138357544
    assert module(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


@pytest.mark.parametrize(
    ("definition", "size", "millions", "smallest"),
    [(AlexNet, 224, 50.3, 67), (OverFeat, 231, 145.0, 75)],
)
def test_fully_connected_layers_follow_the_image(definition, size: int, millions: float, smallest: int) -> None:
    module = definition(in_chans=3, height=size, width=size)
    assert parameters(module) / 1e6 == pytest.approx(millions, rel=0.02)
    tall = definition(in_chans=5, height=smallest, width=size + 13)
    assert tall(torch.empty(2, 5, smallest, size + 13)).shape == (2, 1000)


def test_inception_v1_has_seven_million_weights() -> None:
    module = InceptionV1(in_chans=3)
    assert parameters(module) / 1e6 == pytest.approx(7.0, rel=0.01)
    assert module.features(torch.empty(2, 3, 224, 224)).shape == (2, 1024, 7, 7)


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_recurrent_networks_have_their_gates(cell: str, gates: int) -> None:
    module = RecurrentClassifier(cell=cell, features=20, hidden=30, layers=1, bidirectional=True, classes=7)
    assert parameters(module) == 2 * gates * 30 * (20 + 30 + 2) + 60 * 7 + 7
    assert module(torch.empty(2, 11, 20)).shape == (2, 7)


def test_a_reduction_halves_the_map_and_doubles_the_channels() -> None:
    module = CellNetwork(
        normal=("0:conv3+1:skip", "1:maxpool+2:separable5"),
        reduction=("0:skip+1:dilated3", "0:avgpool+2:conv1", "2:conv5+3:dilated5"),
        stages=3,
        cells=2,
        channels=8,
        dense=(16,),
        in_chans=3,
        classes=10,
    )
    older = newer = module.stem(torch.empty(2, 3, 32, 32))
    shapes = []
    for cell in module.cells:
        older, newer = newer, cell(older, newer)
        shapes.append(tuple(newer.shape[1:]))
    assert shapes == [
        (16, 32, 32), (16, 32, 32),
        (48, 16, 16), (32, 16, 16), (32, 16, 16),
        (96, 8, 8), (64, 8, 8), (64, 8, 8),
    ]  # fmt: skip
    assert module(torch.empty(2, 3, 32, 32)).shape == (2, 10)


def test_each_operation_of_a_cell_is_the_one_named() -> None:
    def weights(operation: str) -> int:
        cell = (f"0:{operation}+1:{operation}",)
        network = CellNetwork(
            normal=cell, reduction=cell, stages=1, cells=1, channels=8, dense=(), in_chans=3, classes=10
        )
        return parameters(network.cells[0].nodes)

    norm = 2 * 8
    expected = {
        "conv1": 64 + norm,
        "conv3": 9 * 64 + norm,
        "conv5": 25 * 64 + norm,
        "separable3": 2 * (9 * 8 + 64 + 2 * norm),
        "separable5": 2 * (25 * 8 + 64 + 2 * norm),
        "dilated3": 9 * 8 + 64 + 2 * norm,
        "dilated5": 25 * 8 + 64 + 2 * norm,
        "maxpool": 0,
        "avgpool": 0,
        "skip": 0,
    }
    assert {operation: weights(operation) / 2 for operation in expected} == expected


def test_a_chain_is_what_it_says() -> None:
    module = Chain(
        layers=("conv:8:5:2", "pool:2", "conv:16:3:1"), dense=(32,), in_chans=3, height=30, width=22, classes=10
    )
    # 30 x 22 -> 15 x 11 -> 7 x 5 -> 7 x 5
    by_hand = (3 * 8 * 25 + 8) + (8 * 16 * 9 + 16) + (16 * 7 * 5 * 32 + 32) + (32 * 10 + 10)
    assert parameters(module) == by_hand
    assert module(torch.empty(2, 3, 30, 22)).shape == (2, 10)
    with pytest.raises(ValueError, match="dense:3"):
        Chain(layers=("dense:3",), dense=(), in_chans=3, height=8, width=8, classes=2)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("levels", [2, 4])
def test_unet_keeps_the_size_of_the_image(transposed: bool, levels: int) -> None:
    module = UNet(channels=8, levels=levels, convolutions=2, transposed=transposed, in_chans=3, classes=5)
    assert module(torch.empty(2, 3, 32, 48)).shape == (2, 5, 32, 48)


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_a_detector_answers_at_four_levels(block: str) -> None:
    if find_spec("timm") is None or find_spec("torchvision") is None:
        pytest.skip("needs timm and torchvision")
    from dippm.datasets.recipes.architectures.detector import PyramidDetector
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()

    def make(head_layers: int) -> PyramidDetector:
        return PyramidDetector(
            block=block,
            layers=(1, 1, 1, 1),
            channels=(16, 32, 64, 128),
            pyramid=24,
            head_layers=head_layers,
            anchors=9,
            classes=20,
        )

    image = torch.empty(2, 3, 128, 192)
    sides = [(16, 24), (8, 12), (4, 6), (2, 3)]
    assert [tuple(level.shape) for level in make(0)(image)] == [(2, 24, *side) for side in sides]
    maps = [tuple(level.shape) for level in make(2)(image)]
    assert maps == [(2, 180, *side) for side in sides] + [(2, 36, *side) for side in sides]
