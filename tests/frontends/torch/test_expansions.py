"""Operators mean what their parts mean: compared with PyTorch's own results on real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.costs.autocast import RAISED  # noqa: E402
from dippm.frontends.torch.expansions import EXPANSIONS, is_attention_fused  # noqa: E402
from dippm.graph import Dim, Graph, OpKind  # noqa: E402


def test_multi_head_attention() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(2, 5, 12)
    with torch.inference_mode():
        expected, weights = layer(x, x, x)
        arguments = (12, 3, layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)
        fused, _ = EXPANSIONS["_native_multi_head_attention"](x, x, x, *arguments, None, False)
        slow, scores = EXPANSIONS["_native_multi_head_attention"](x, x.clone(), x, *arguments)
    torch.testing.assert_close(fused, expected)
    assert slow.shape == expected.shape
    assert scores.shape == weights.shape


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        12, 3, dim_feedforward=20, batch_first=True, norm_first=norm_first, activation=activation
    ).eval()
    attend = layer.self_attn
    x = torch.randn(2, 5, 12)
    with torch.inference_mode():
        result = EXPANSIONS["_transformer_encoder_layer_fwd"](
            x, 12, 3, attend.in_proj_weight, attend.in_proj_bias, attend.out_proj.weight, attend.out_proj.bias,
            activation == "gelu", norm_first, layer.norm1.eps, layer.norm1.weight, layer.norm1.bias,
            layer.norm2.weight, layer.norm2.bias, layer.linear1.weight, layer.linear1.bias, layer.linear2.weight,
            layer.linear2.bias,
        )  # fmt: skip
        torch.testing.assert_close(result, layer(x))


def test_a_sum_of_products_is_one_product() -> None:
    torch.manual_seed(0)
    total, first, second = torch.randn(3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    result = EXPANSIONS["addbmm"](total, first, second, beta=0.5, alpha=2)
    torch.testing.assert_close(result, torch.addbmm(total, first, second, beta=0.5, alpha=2))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_bilinear(leading: tuple[int, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Bilinear(4, 5, 6, bias=has_bias)
    a, b = torch.randn(*leading, 4), torch.randn(*leading, 5)
    with torch.inference_mode():
        torch.testing.assert_close(EXPANSIONS["bilinear"](a, b, layer.weight, layer.bias), layer(a, b))


def test_distances_are_one_product() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 30, 4, dtype=torch.float64), torch.randn(2, 40, 4, dtype=torch.float64)
    torch.testing.assert_close(EXPANSIONS["_euclidean_dist"](a, b), torch.cdist(a, b))


def test_distances_are_known(read: Callable[..., Graph]) -> None:
    class Distances(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return torch.cdist(a, b)

    graph = read(Distances(), ["30,4", "40,4"])
    assert not graph.unsupported_ops
    assert float(Workload.from_graph(graph).at([2]).macs.sum()) == 2 * 30 * 40 * (4 + 2)
    # Autocast has distances in FP32.
    assert [node.attributes.get(RAISED) for node in graph.nodes if node.kind is OpKind.MATMUL] == [True]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3)])
def test_a_step_of_a_recurrent_layer_is_two_products_and_one_kernel(
    cell: type[nn.Module], gates: int, bias: bool, read: Callable[..., Graph]
) -> None:
    graph = read(cell(6, 8, bias=bias), ["6", "8" if cell is nn.GRUCell else ("8", ((8,), "float32"))])
    computing = [node for node in graph.nodes if node.kind is not OpKind.VIEW]
    assert [node.kind for node in computing] == [OpKind.LINEAR, OpKind.LINEAR, OpKind.BINARY]
    assert len([index for index in computing[-1].inputs if index >= 0]) == (5 if bias else 3)
    assert float(Workload.from_graph(graph).at([3]).macs.sum()) == 3 * gates * 8 * (6 + 8)
    assert {graph.tensors[index].shape for index in graph.outputs} == {(Dim(1, 0), Dim(0, 8))}


def test_softmax_gives_nothing_where_no_key_may_be_looked_at() -> None:
    scores = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]])
    assert EXPANSIONS["_safe_softmax"](scores, -1).tolist() == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("query", "key", "enable_gqa", "is_fused"),
    [
        ((2, 4, 5, 8), (2, 4, 6, 8), False, True),
        ((2, 4, 5, 8), (2, 2, 6, 8), True, True),
        ((2, 4, 5, 8), (2, 1, 6, 8), False, False),
        ((1, 4, 5, 8), (2, 4, 6, 8), False, False),
        ((2, 5, 8), (2, 6, 8), False, False),
        ((2, 3, 4, 5, 8), (2, 3, 4, 6, 8), False, False),
    ],
)
def test_which_attention_is_fused(
    query: tuple[int, ...], key: tuple[int, ...], enable_gqa: bool, is_fused: bool
) -> None:
    q, k = torch.empty(query), torch.empty(key)
    assert is_attention_fused(q, k, k, enable_gqa=enable_gqa) == is_fused


@pytest.mark.parametrize("count", [4, 50])
@pytest.mark.parametrize("invert", [False, True])
def test_which_elements_are_among_others(read: Callable[..., Graph], count: int, invert: bool) -> None:
    torch.manual_seed(0)
    elements, among = torch.randint(0, 100, (3, 7)), torch.randint(0, 100, (count,))
    expected = torch.isin(elements, among, invert=invert)
    assert torch.equal(EXPANSIONS["isin"](elements, among, invert=invert), expected)

    class Marks(nn.Module):
        def forward(self, tokens: Any) -> Any:
            return torch.isin(tokens, torch.arange(count), invert=invert)

    graph = read(Marks(), "7:int64")
    assert not graph.unsupported_ops
    assert (OpKind.SORT in {node.kind for node in graph.nodes}) is (count == 50)


def test_a_number_may_be_looked_for() -> None:
    tokens = torch.tensor([[1, 2], [3, 2]])
    assert torch.equal(EXPANSIONS["isin"](tokens, 2), torch.isin(tokens, 2))
    assert torch.equal(EXPANSIONS["isin"](2, tokens), torch.isin(2, tokens))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss(reduction: str, zero_infinity: bool) -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(9, 3, 5).log_softmax(-1), torch.randint(1, 5, (3, 4))
    numbers = ([9, 8, 1], [4, 2, 3])  # the last one cannot be told apart: its loss is infinite
    tensors = tuple(map(torch.tensor, numbers))
    expected = nn.functional.ctc_loss(scores, targets, *tensors, reduction=reduction, zero_infinity=zero_infinity)
    code = {"none": 0, "mean": 1, "sum": 2}[reduction]
    for lengths in (numbers, tensors):
        found = EXPANSIONS["ctc_loss"](scores, targets, *lengths, 0, code, zero_infinity)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("as_numbers", [False, True])
def test_a_model_may_take_its_ctc_loss_itself(read: Callable[..., Graph], as_numbers: bool) -> None:
    class Recogniser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 10)
            self.loss = nn.CTCLoss()

        def forward(self, x: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            scores = self.head(x).log_softmax(-1).transpose(0, 1)
            steps, samples = scores.shape[:2]
            if as_numbers:
                return self.loss(scores, targets, (steps,) * samples, (targets.shape[1],) * samples)
            return self.loss(scores, targets, torch.full((samples,), steps), lengths)

    graph = read(Recogniser(), ["20,16", "6:int64", ((), "int64")])
    assert dict(graph.unsupported_ops) == {"aten._ctc_loss": 1}
    (loss,) = (node for node in graph.nodes if node.source_op == "aten._ctc_loss")
    losses, paths = (graph.tensors[index].shape for index in loss.outputs)
    assert tuple(dim.at(5) for dim in losses) == (5,)
    assert tuple(dim.at(5) for dim in paths) == (5, 20, 2 * 6 + 1)
