"""Layers that run by themselves, on the CPU, whose profile has no kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from dippm.costs.conditions import Layout  # noqa: E402
from dippm.costs.precision import Precision  # noqa: E402
from dippm.graph import OpKind  # noqa: E402
from dippm.measuring.layer import ACTIVATIONS, Layer  # noqa: E402
from dippm.measuring.layer_bench import LayerBench, _shaped  # noqa: E402

LAYER = Layer(
    precision=Precision.FP32,
    layout=Layout.NCHW,
    image=(2, 4, 8, 6),
    image_bytes=4,
    is_read_last=False,
    channels=8,
    kernel=(3, 3),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    groups=1,
    has_bias=True,
    has_norm=True,
    activation=OpKind.RELU,
    is_in_place=True,
)


@pytest.fixture(name="bench", scope="module")
def _bench() -> LayerBench:
    return LayerBench("cpu", image_bytes=2**20, weight_bytes=2**16)


def test_each_layer_has_its_own_operators_in_the_order_that_was_asked(bench: LayerBench) -> None:
    amp = replace(LAYER, precision=Precision.AMP_BF16, image=(1, 4, 5, 5), has_norm=False)
    plain = replace(LAYER, image=(1, 2, 3, 3), channels=2, has_norm=False, activation=None)
    found = bench.trace([amp, LAYER, plain])
    names = [[run.name for run in runs or ()] for runs in found]
    assert names == [
        ["aten::conv2d", "aten::relu_"],
        ["aten::conv2d", "aten::batch_norm", "aten::relu_"],
        ["aten::conv2d"],
    ]
    images = [(runs or ())[0].input_shapes[0] for runs in found]
    assert images == [amp.image, LAYER.image, plain.image]
    first = (found[1] or ())[0]
    assert first.input_shapes[1:3] == ((8, 4, 3, 3), (8,))


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
@pytest.mark.parametrize("is_in_place", [False, True])
def test_every_activation_runs(bench: LayerBench, kind: OpKind, *, is_in_place: bool) -> None:
    (runs,) = bench.trace([replace(LAYER, activation=kind, is_in_place=is_in_place)])
    assert runs is not None
    assert len(runs) == 3
    if kind is not OpKind.GELU:  # which PyTorch has no such form of
        assert runs[-1].name.endswith("_") is is_in_place


@pytest.mark.parametrize("precision", list(Precision))
def test_every_precision_and_layout_runs(bench: LayerBench, precision: Precision) -> None:
    is_half = precision not in {Precision.FP32, Precision.TF32, Precision.FP32_STRICT}
    layer = replace(LAYER, precision=precision, image_bytes=2 if is_half else 4)
    for layout in Layout:
        (runs,) = bench.trace([replace(layer, layout=layout, is_read_last=layout is Layout.NHWC)])
        assert runs is not None


def test_what_does_not_run_or_has_no_room_is_none(bench: LayerBench) -> None:
    window = replace(LAYER, kernel=(9, 9), padding=(0, 0))
    room = replace(LAYER, image=(64, 64, 64, 64))
    found = bench.trace([window, LAYER, room])
    assert [runs is None for runs in found] == [True, False, True]


def test_channels_that_lie_side_by_side_do() -> None:
    numbers = torch.arange(2 * 3 * 4 * 5)
    last = _shaped(numbers, (2, 3, 4, 5), is_last=True)
    assert last.shape == (2, 3, 4, 5)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert last[0, :, 0, 0].tolist() == [0, 1, 2]
    assert _shaped(numbers, (2, 3, 4, 5), is_last=False)[0, 0, 0].tolist() == [0, 1, 2, 3, 4]


def test_weights_of_a_layer_follow_those_before_and_begin_again_at_the_end() -> None:
    bench = LayerBench("cpu", image_bytes=2**10, weight_bytes=2048)
    places = [bench._take_weight((100,), torch.float32).data_ptr() for _ in range(5)]
    assert [place - places[0] for place in places] == [0, 512, 1024, 1536, 0]
