from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.frontends.torch.attributes import ATTRIBUTE_BUILDERS  # noqa: E402
from dippm.frontends.torch.operators import OPERATORS  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402

torch = pytest.importorskip("torch")


def test_inputs_and_attributes_follow_the_kinds_conventions(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    graph = read(small(), "3,32,32")
    conv, norm = graph.nodes[0], graph.nodes[1]
    assert [graph.tensors[index].name for index in conv.inputs] == ["input", "conv.weight", "conv.bias"]
    assert dict(conv.attributes) == {
        "kernel": (3, 3),
        "stride": (2, 2),
        "dilation": (1, 1),
        "padding": (1, 1),
        "groups": 1,
    }
    assert [graph.tensors[index].name for index in norm.inputs[1:]] == [
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
    ]


def test_attribute_builders_are_all_known_and_used() -> None:
    assert {rule.attributes for rule in OPERATORS.values()} - {""} == set(ATTRIBUTE_BUILDERS)


@pytest.mark.parametrize(("is_copied", "expected"), [(False, None), (True, True)])
def test_attention_knows_how_its_query_lies_in_memory(
    read: Callable[..., Graph], is_copied: bool, expected: bool | None
) -> None:
    class Heads(nn.Module):
        def forward(self, x):
            query = x.view(x.shape[0], 6, 2, 8).transpose(1, 2)
            query = query.contiguous() if is_copied else query
            return nn.functional.scaled_dot_product_attention(query, query, query)

    (node,) = (node for node in read(Heads(), "6,16").nodes if node.kind is OpKind.ATTENTION)
    assert node.attributes.get("is_by_head") is expected
    assert "is_time_first" not in node.attributes


def test_pytorchs_own_attention_lays_time_first(read: Callable[..., Graph]) -> None:
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            return self.attend(x, x, x, need_weights=False)[0]

    graph = read(Own(), "6,16", mode=Mode.TRAINING)
    (node,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    assert node.attributes.get("is_time_first") is True


@pytest.mark.parametrize(("share", "expected"), [(0.0, None), (0.1, True)])
def test_attention_knows_whether_it_drops_out(read: Callable[..., Graph], share: float, expected: bool | None) -> None:
    class Heads(nn.Module):
        def forward(self, x):
            query = x.view(x.shape[0], 2, 6, 8)
            return nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=share)

    (node,) = (node for node in read(Heads(), "6,16").nodes if node.kind is OpKind.ATTENTION)
    assert node.attributes.get("has_dropout") is expected


@pytest.mark.parametrize(("axes", "expected"), [((1,), (1,)), ((-1, -2), (1, 2))])
def test_a_fourier_transform_names_its_axes(
    read: Callable[..., Graph], axes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    class Transform(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfftn(x, dim=axes)

    (node,) = read(Transform(), "16,4").nodes
    assert node.attributes["axes"] == expected


@pytest.mark.parametrize(
    ("run", "axes"),
    [
        (lambda x: torch.sort(x)[0], (2,)),
        (lambda x: torch.sort(x, dim=1, stable=True)[0], (1,)),
        (lambda x: torch.topk(x, 2, dim=-2)[0], (1,)),
        (lambda x: torch.kthvalue(x, 2, dim=1)[0], (1,)),
        (lambda x: torch.argsort(x, dim=1), (1,)),
        (torch.msort, (0,)),
    ],
)
def test_sorts_name_the_dimension_of_their_rows(
    read: Callable[..., Graph], run: Callable[[torch.Tensor], torch.Tensor], axes: tuple[int, ...]
) -> None:
    class Sort(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return run(x)

    (node,) = (each for each in read(Sort(), "8,4").nodes if each.kind is OpKind.SORT)
    assert node.attributes["axes"] == axes


@pytest.mark.parametrize(
    ("share", "mode", "expected"),
    [(0.2, Mode.TRAINING, True), (0.2, Mode.INFERENCE, None), (0.0, Mode.TRAINING, None)],
)
def test_recurrent_layers_know_whether_they_drop_out(
    read: Callable[..., Graph], share: float, mode: Mode, expected: bool | None
) -> None:
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.LSTM(8, 8, 2, dropout=share)

        def forward(self, x):
            return self.layers(x)[0]

    module = Layers().train(mode is Mode.TRAINING)
    (node,) = (node for node in read(module, "6,8", mode=mode).nodes if node.kind is OpKind.LSTM)
    assert node.attributes.get("has_dropout") is expected
