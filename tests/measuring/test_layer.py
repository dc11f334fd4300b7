from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dippm.costs.conditions import Layout
from dippm.costs.precision import Precision
from dippm.errors import UsageError
from dippm.graph import OpKind
from dippm.measuring.layer import ACTIVATIONS, Layer

LAYER = Layer(
    precision=Precision.AMP,
    layout=Layout.NHWC,
    image=(8, 32, 14, 28),
    image_bytes=2,
    is_read_last=True,
    channels=64,
    kernel=(3, 5),
    stride=(2, 1),
    padding=(1, 2),
    dilation=(1, 1),
    groups=2,
    has_bias=True,
    has_norm=True,
    activation=OpKind.SILU,
    is_in_place=True,
)


def test_a_layer_survives_as_text() -> None:
    for layer in (LAYER, replace(LAYER, activation=None, is_in_place=False)):
        assert Layer.from_text(layer.to_text()) == layer
        assert hash(Layer.from_text(layer.to_text())) == hash(layer)


def test_a_layer_has_the_convolution_and_what_stands_behind_it() -> None:
    assert LAYER.operators == 3
    assert replace(LAYER, has_norm=False).operators == 2
    assert replace(LAYER, has_norm=False, activation=None).operators == 1
    assert LAYER.activation in ACTIVATIONS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        json.dumps([*json.loads(LAYER.to_text()), 1]),
        LAYER.to_text().replace("silu", "sillu"),
        LAYER.to_text().replace("[3,5]", '[3,"a"]'),
    ],
)
def test_what_is_no_layer_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Layer.from_text(text)
    assert caught.value.code == "layer.invalid"
