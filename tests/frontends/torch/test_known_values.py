"""What follows from the program alone, and what is taken where a model asks for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402


class _Deciding(nn.Module):
    """Runs a rectifier where it decides to."""

    def __init__(self, decide: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.decide = nn.Linear(8, 8), decide

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y.relu() if self.decide(y) else y


def _written(_: Any) -> Any:
    numbers = torch.arange(4)
    numbers[1] = 7
    return numbers.sum() == 12


def _picked(_: Any) -> Any:
    numbers = torch.arange(6)
    return len(numbers[numbers > 3]) == 2


@pytest.mark.parametrize(
    "decide",
    [
        lambda _: torch.arange(4).sum() == 6,
        lambda _: torch.full((2, 3), 5).mul(2).unique().item() == 10,
        lambda y: torch.tensor(y.shape[-1]) > 4,
        _written,
        _picked,
    ],
)
def test_what_follows_from_the_program_is_known(decide: Callable[[Any], Any], read: Callable[..., Graph]) -> None:
    graph = read(_Deciding(decide), "8")
    assert OpKind.RELU in {node.kind for node in graph.nodes}
    assert not graph.warnings


def test_what_a_known_mask_selects_is_known(read: Callable[..., Graph]) -> None:
    class Diagonals(nn.Module):
        """Those of a table for each sample, as contrastive losses select them."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            places = torch.arange(x.shape[-1])
            return x.masked_select(places[:, None] == places).view(len(x), -1).exp()

    graph = read(Diagonals(), "6,6")
    assert [dim.at(5) for dim in graph.tensors[graph.outputs[0]].shape] == [5, 6]
    assert not graph.warnings


@pytest.mark.parametrize(
    "decide",
    [
        lambda y: y.sum() > 0,
        # Memory that nobody has written to, chance, and what unknown numbers were written to.
        lambda _: torch.empty(2).sum() > 0,
        lambda _: torch.rand(3).sum() > 0,
        lambda y: torch.zeros(8).copy_(y[0].detach()).sum() > 0,
    ],
)
def test_what_does_not_is_refused(decide: Callable[[Any], Any], read: Callable[..., Graph]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read(_Deciding(decide), "8")
    assert caught.value.code == "torch.data_dependent"


def test_one_random_number_is_its_mean_and_said_once(read: Callable[..., Graph]) -> None:
    graph = read(_Deciding(lambda _: torch.rand(()) > 0.4), "8")
    assert OpKind.RELU in {node.kind for node in graph.nodes}
    (warning,) = graph.warnings
    assert "random number" in warning


def test_what_rests_on_finite_numbers_is_assumed_as_well(read: Callable[..., Graph]) -> None:
    graph = read(_Deciding(lambda y: (~torch.isfinite(y).all()).logical_not()), "8")
    assert OpKind.RELU in {node.kind for node in graph.nodes}
    (warning,) = graph.warnings
    assert "finite" in warning


def test_no_edge_is_taken_to_go_from_a_node_to_itself(read: Callable[..., Graph]) -> None:
    class Convolves(nn.Module):
        """Leaves out the edges from a node to itself and adds one for each node, as GCNConv and GATConv do."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            mask = edges[0] != edges[1]
            own = torch.arange(x.shape[0]).expand(2, -1)
            source, target = torch.cat([edges[:, mask], own], dim=1)
            own_weight = torch.ones(x.shape[0])
            own_weight[edges[0][~mask]] = 2.0
            h = self.linear(x) * own_weight[:, None]
            return torch.zeros_like(h).index_add(0, target, h[source])

    graph = read(Convolves(), [((10, 8), "unbatched"), ((2, 30), "int64", "unbatched")])
    picked = [node for node in graph.nodes if node.source_op == "aten.index"][-1]
    assert [dim.at(1) for dim in graph.tensors[picked.outputs[0]].shape] == [30 + 10, 4]
    (warning,) = graph.warnings
    assert "no edge goes from a node to itself" in warning


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, edges: x[edges[0] != edges[1] * 2],  # computed, and so anything
        lambda x, edges: x[edges[0] != 0],  # padding, perhaps
        lambda x, edges: x[x[0] != x[1]],  # no integers
    ],
)
def test_nothing_else_is_taken_to_differ(read: Callable[..., Graph], pick: Callable[..., torch.Tensor]) -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return pick(x, edges) * 2

    with pytest.raises(UnsupportedError) as caught:
        read(Picks(), [((30, 30), "unbatched"), ((2, 30), "int64", "unbatched")])
    assert caught.value.code == "torch.data_dependent"


def test_what_was_padded_is_taken_to_be_there(read: Callable[..., Graph]) -> None:
    class Pads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.pad(x, (2, 2))
            assert (y[..., 2:-2] == x).all()
            return y * 2

    (warning,) = read(Pads(), "8").warnings
    assert "pass the checks of its values" in warning


def test_nobody_knows_when_a_loop_has_settled(read: Callable[..., Graph]) -> None:
    class Settles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before, x = x, x.tanh()
            while not (before == x).all():
                before, x = x, x.tanh()
            return x

    with pytest.raises(UnsupportedError) as caught:
        read(Settles(), "8")
    assert caught.value.code == "torch.data_dependent"
