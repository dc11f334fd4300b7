"""The frontend's own shape rules give what PyTorch's shape functions give."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module, recorder  # noqa: E402
from dippm.frontends.torch.operators import KEPT_WHOLE  # noqa: E402
from dippm.frontends.torch.shapes import SHAPE_RULES, empty_like  # noqa: E402


class Call(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], *weights: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.weights).mul(1.0)


CASES = {
    "relu of a slice": (lambda x: F.relu(x[:, 1:]), (), "6,5"),
    "scaled permuted slice": (lambda x: x.view(-1, 3, 2, 4, 7).permute(1, 0, 3, 2, 4)[0] * 2, (), "3,2,4,7"),
    "channels last": (lambda x: x.to(memory_format=torch.channels_last) + 1, (), "3,4,5"),
    "broadcast": (lambda x: x + x.sum(1, keepdim=True) * x[:, :, :1], (), "3,4"),
    "transposed plus plain": (lambda x: x.transpose(1, 2) + x, (), "4,4"),
    "modulus": (lambda x: torch.view_as_complex(x).abs(), (), "3,2"),
    "compare": (lambda x: (x > x.mean()).float(), (), "3,4"),
    "masked": (lambda x: x.masked_fill(x < 0, 0.0), (), "3,4"),
    "where": (lambda x: torch.where(x > 0, x, x * 2), (), "3,4"),
    "integer division": (lambda x: x.long() / 2, (), "3,4"),
    "mixed types": (lambda x: x.half() + x, (), "3,4"),
    "convolution": (
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=1, dilation=(1, 2), groups=2),
        ((6, 2, 3, 3),),
        "4,9,8",
    ),
    "convolution 1d": (lambda x, w: F.conv1d(x, w, stride=3), ((6, 4, 5),), "4,30"),
    "convolution 3d": (lambda x, w: F.conv3d(x, w, padding=1), ((6, 4, 3, 3, 3),), "4,5,6,7"),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        ((4, 6, 3, 3),),
        "4,9,8",
    ),
    "channels-last convolution": (
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w),
        ((6, 4, 3, 3),),
        "4,9,8",
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1, dilation=1), (), "4,9,8"),
    "max pool ceil": (lambda x: F.max_pool2d(x, 3, stride=2, ceil_mode=True), (), "4,10,7"),
    "average pool": (lambda x: F.avg_pool2d(x, 2, padding=1, ceil_mode=True), (), "4,10,7"),
    "concatenation": (lambda x: torch.cat([x, x[:, :1], x], 1), (), "4,5"),
    "concatenation from the end": (lambda x: torch.cat([x, x], -1), (), "4,5"),
    "concatenation with nothing": (lambda x: torch.cat([torch.empty(0), x], 0), (), "4,5"),
    "layer norm": (lambda x: F.layer_norm(x, (4, 5)), (), "3,4,5"),
    "layer norm of a transpose": (lambda x: F.layer_norm(x.transpose(1, 2), (3,)), (), "3,4"),
    "group norm": (lambda x: F.group_norm(x, 2), (), "4,5,6"),
    "mean": (lambda x: x.mean((1, -1)), (), "3,4,5"),
    "mean kept": (lambda x: x.mean(-1, keepdim=True), (), "3,4,5"),
    "sum of all": (lambda x: x + x.sum(), (), "3,4"),
    "sum of integers": (lambda x: x.int().sum(1), (), "3,4"),
    "variance": (lambda x: x.var(1, unbiased=False), (), "3,4"),
    "maximum over": (lambda x: x.amax((1, 2)), (), "3,4"),
    "product": (lambda x: torch.bmm(x, x.transpose(1, 2)), (), "3,4"),
    "product with bias": (lambda x: torch.baddbmm(x, x, x), (), "4,4"),
    "roll": (lambda x: torch.roll(x, (1, 2), (1, 2)), (), "3,4"),
    "softmax": (lambda x: x.transpose(1, 2).softmax(-1), (), "3,4"),
    "softmax of a transpose, turned back": (
        lambda x: x.transpose(1, 2).softmax(-1).transpose(1, 2).contiguous(), (), "3,4",
    ),
    "clone of a transpose": (lambda x: x.transpose(1, 2).clone(), (), "3,4"),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous(), (), "3,4"),
    "power": (lambda x: x**2 + 2**x, (), "3,4"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rules_agree_with_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, weights, shape = CASES[name]
    module = Call(function, *weights)
    ours = read_module(module, input=parse_input_shapes(shape))
    kept = {key: rule for key, rule in SHAPE_RULES.items() if key in KEPT_WHOLE}
    monkeypatch.setattr(recorder, "SHAPE_RULES", kept)
    monkeypatch.setattr(recorder, "elementwise_result", lambda *_args, **_options: None)
    theirs = read_module(module, input=parse_input_shapes(shape))
    assert ours == theirs


@pytest.mark.parametrize("strides", [(1, 2, 6), (6, 1, 2), (40, 8, 1), (0, 4, 1), (1, 1, 1)])
def test_empty_like_keeps_the_order_of_dimensions(strides: tuple[int, ...]) -> None:
    tensor = torch.empty(500).as_strided((2, 3, 4), strides)
    assert empty_like(tensor.to("meta")).stride() == torch.empty_like(tensor).stride() or 0 in strides


def test_a_log_sigmoid_keeps_nothing_beside_its_result() -> None:
    graph = read_module(torch.nn.LogSigmoid(), input=parse_input_shapes("8"))
    (node,) = graph.nodes
    assert [[dim.at(4) for dim in graph.tensors[index].shape] for index in node.outputs] == [[4, 8], [0]]


def test_every_operator_kept_whole_has_a_shape_rule() -> None:
    assert set(SHAPE_RULES) >= KEPT_WHOLE
