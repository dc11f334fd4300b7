"""Tensors of a recording: what they are, whose memory they lie in, and when it is given back."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import dippm  # noqa: E402
from dippm.graph import Graph, OpKind, TensorRole  # noqa: E402


def test_tied_and_unused_weights_count_once(read: Callable[..., Graph]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.table.weight
            self.unused = nn.Parameter(torch.zeros(7))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens))

    module = Tied()
    graph = read(module, "12:int64")
    assert graph.parameter_count == 50 * 16 + 7 == sum(p.numel() for p in module.parameters())
    embedding, linear = graph.nodes
    assert embedding.inputs[0] == linear.inputs[1]


def test_weights_that_share_one_flat_buffer_all_count(read: Callable[..., Graph]) -> None:
    module = nn.Linear(4, 6)
    flat = torch.zeros(30)
    module.weight.data = flat[:24].view(6, 4)
    module.bias.data = flat[24:]
    assert read(module, "4").parameter_count == 30


def test_roles(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    graph = read(small(), "3,32,32")
    roles = {tensor.name: tensor.role for tensor in graph.tensors}
    assert roles["conv.weight"] is TensorRole.PARAMETER
    assert roles["norm.running_var"] is TensorRole.BUFFER
    assert roles["input"] is TensorRole.INPUT


def test_views_and_in_place_results_share_storage(read: Callable[..., Graph]) -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            y.transpose(0, 1).mul_(2)
            return y

    graph = read(Views(), "5")
    add, transpose, mul = graph.nodes
    assert transpose.kind is OpKind.VIEW
    assert graph.tensors[transpose.outputs[0]].alias_of == add.outputs[0]
    assert mul.kind is OpKind.MUL
    assert graph.tensors[mul.outputs[0]].alias_of == add.outputs[0]


def test_releases_follow_python(read: Callable[..., Graph]) -> None:
    class Holds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = x.exp()
            second = first.sin()
            third = second.cos()
            del second
            fourth = third + 1
            return fourth + first

    graph = read(Holds(), "5")
    exp, sin, cos, plus_one, plus_first = graph.nodes
    assert exp.releases == ()
    assert sin.releases == ()
    assert cos.releases == sin.outputs
    # Neither `first` nor `third` dies before the function returns, which is after the last operator.
    assert plus_one.releases == ()
    assert sorted(plus_first.releases) == sorted((*exp.outputs, *cos.outputs, *plus_one.outputs))


def test_dropped_outputs_are_released_at_once(read: Callable[..., Graph]) -> None:
    graph = read(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), "4,8")
    norm = graph.nodes[0]
    assert len(norm.outputs) == 3
    assert set(norm.outputs[1:]) <= set(norm.releases)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "indexed": lambda table: table[0, 1],
    "iterated": lambda table: next(iter(table)),
    "transposed": lambda table: table.t(),
    "expanded": lambda table: table[None].expand(2, -1, -1)[0],
    "split": lambda table: table.chunk(2, dim=1)[1],
    "viewed": lambda table: table.view(-1)[3],
    "detached": lambda table: table.detach(),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("place", ["attribute", "list", "inference tensor", "buffer"])
def test_views_of_tensors_that_a_module_only_keeps(place: str, view: str, read: Callable[..., Graph]) -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with torch.inference_mode(place == "inference tensor"):
                table = torch.arange(4.0).view(2, 2) * 2
            if place == "buffer":
                self.register_buffer("table", table)
            else:
                self.table = [table] if place == "list" else table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = self.table[0] if isinstance(self.table, list) else self.table
            return x * VIEWS[view](table)

    graph = read(Keeping(), "3,2,2")
    assert [node.kind for node in graph.nodes if node.kind is not OpKind.VIEW] == [OpKind.MUL]
    assert graph.fixed_batch is None


class Overlapping(nn.Module):
    """Two weights in the memory of a third; of the last one a half lies beyond it."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.randn(48, 8)
        self.whole = nn.Parameter(memory[:32])
        self.within = nn.Parameter(memory[8:16])
        self.beyond = nn.Parameter(memory[24:40])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.whole.t() @ self.whole[:, :4] @ self.within[:4] @ self.beyond.t()


def test_parameters_in_the_memory_of_another_are_parameters() -> None:
    graph = dippm.load(Overlapping(), input="8", mode="training")
    weights = {spec.name: spec for spec in graph.tensors if spec.role is TensorRole.PARAMETER}
    assert {name: spec.alias_of for name, spec in weights.items()} == dict.fromkeys(["whole", "within", "beyond"])
    stated = {name: spec.storage_bytes_fixed for name, spec in weights.items()}
    assert stated == {"whole": None, "within": 0, "beyond": 8 * 8 * 4}
    # Their memory is counted once, their gradients and what the optimizer keeps of each.
    step = dippm.predict(graph, batch=1, device="A100", mode="training", optimizer="adam")
    parts, size = step.memory_parts_mb, 2**20 / 4
    assert parts["weights"] * size == 40 * 8
    assert parts["gradients"] * size == pytest.approx((32 + 8 + 16) * 8, rel=0.1)
    assert parts["optimizer"] * size == pytest.approx(2 * (32 + 8 + 16) * 8, rel=0.1)
    assert not any("No gradient" in warning for warning in step.warnings)


@pytest.mark.parametrize("owner", ["parameter", "buffer"])
def test_a_view_of_what_lies_in_the_memory_of_a_weight_is_a_view(owner: str, read: Callable[..., Graph]) -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.randn(8, 8)
            if owner == "buffer":
                self.register_buffer("weight", weight)
            else:
                self.weight = nn.Parameter(weight)
            self.register_buffer("upper", weight[:4])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.upper.t()

    graph = read(Halved(), "8")
    assert [node.kind for node in graph.nodes] == [OpKind.VIEW, OpKind.MATMUL]
    assert dippm.predict(graph, batch=1, device="A100").memory_parts_mb["weights"] * 2**18 == 64


@pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage|invariant checks).*:UserWarning")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_sparse_buffers_that_nothing_reads_take_the_memory_of_their_parts(
    layout: str, read: Callable[..., Graph]
) -> None:
    module = nn.Linear(8, 8)
    module.register_buffer("heads", torch.eye(100).to_sparse(layout=getattr(torch, layout)))
    graph = read(module, "8")
    sizes = {
        spec.name.partition(".")[2]: prod(dim.fixed for dim in spec.shape)
        for spec in graph.tensors
        if spec.role is TensorRole.BUFFER
    }
    assert (
        sizes
        == {
            "sparse_coo": {"indices": 200, "values": 100},
            "sparse_csr": {"rows": 101, "columns": 100, "values": 100},
            "sparse_csc": {"columns": 101, "rows": 100, "values": 100},
        }[layout]
    )
