from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.convolutions import (  # noqa: E402
    classifier,
    conv_norm_relu,
    conv_relu,
    flat_features,
)


def test_a_plain_convolution_has_a_bias_and_a_normalised_one_has_none() -> None:
    plain, normalised = conv_relu(3, 8, 5, stride=2, padding=1), conv_norm_relu(3, 8, 5)
    assert [tuple(tensor.shape) for tensor in plain.parameters()] == [(8, 3, 5, 5), (8,)]
    assert [tuple(tensor.shape) for tensor in normalised.parameters()] == [(8, 3, 5, 5), (8,), (8,)]
    assert plain(torch.empty(2, 3, 20, 15)).shape == (2, 8, 9, 7)


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("stride", "shape"), [(1, (16, 12)), (2, (8, 6))])
def test_a_normalised_convolution_keeps_the_size(
    kernel: int, dilation: int, stride: int, shape: tuple[int, int]
) -> None:
    layer = conv_norm_relu(8, 8, kernel, stride=stride, groups=4, dilation=dilation)
    assert layer(torch.empty(1, 8, 16, 12)).shape == (1, 8, *shape)


@pytest.mark.parametrize(("hidden", "widths"), [((), [12, 5]), ((7, 9), [12, 7, 9, 5])])
def test_a_classifier_goes_from_width_to_width(hidden: tuple[int, ...], widths: list[int]) -> None:
    head = classifier(12, hidden, 5)
    linear = [layer for layer in head if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == list(pairwise(widths))
    assert sum(isinstance(layer, torch.nn.Dropout) for layer in head) == len(hidden)
    assert head(torch.empty(2, 3, 2, 2)).shape == (2, 5)


@pytest.mark.parametrize(("height", "width"), [(33, 20), (64, 64)])
def test_features_are_counted_without_running_anything(height: int, width: int) -> None:
    features = torch.nn.Sequential(
        conv_relu(3, 8, 5, stride=2), torch.nn.MaxPool2d(3, 2, padding=1), conv_relu(8, 6, 3, padding=1)
    )
    assert flat_features(features, 3, height, width) == features(torch.empty(1, 3, height, width)).numel()
    assert flat_features(torch.nn.Sequential(), 3, height, width) == 3 * height * width
