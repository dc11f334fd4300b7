"""What is written down while a module runs: operators, known values, and what cannot be known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file, recorder  # noqa: E402
from dippm.graph import Dim, Graph, OpKind  # noqa: E402

torch = pytest.importorskip("torch")


def test_dropout_leaves_no_node(
    small: type[nn.Module], read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    assert kinds(read(small(), "3,32,32")) == [
        OpKind.CONV,
        OpKind.BATCH_NORM,
        OpKind.RELU,
        OpKind.GLOBAL_POOL,
        OpKind.LINEAR,
    ]


def test_values_that_follow_from_the_program_can_be_branched_on(read: Callable[..., Graph]) -> None:
    class Knows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.linspace(0, 1, 4).tolist()
            mask = torch.ones(x.shape[0], 5, dtype=torch.bool)
            mask[:, 2:] = False
            if mask.any() and not mask.all() and math.isclose(steps[-1], 1.0):
                return x[:, : int(mask[0].sum())]
            return x

    graph = read(Knows(), "5")
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 2))


def test_values_overwritten_by_the_input_are_no_longer_known(read: Callable[..., Graph]) -> None:
    class Overwrites(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known = torch.zeros(5)
            view = known[:3]
            view.copy_(x[0, :3])
            return x if known.sum() > 0 else x + 1

    with pytest.raises(UnsupportedError) as caught:
        read(Overwrites(), "5")
    assert caught.value.code == "torch.data_dependent"


def test_known_values_are_not_followed_into_large_tensors(read: Callable[..., Graph]) -> None:
    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            row = torch.arange(500_000, dtype=torch.float32)
            return (torch.outer(row, row) + torch.outer(row, row).repeat(2, 1)[:500_000]).sum() + x

    graph = read(Outer(), "5")  # each product would take 1 TB
    assert graph.fixed_batch is None


def test_a_known_mask_picks_of_unknown_values_also_where_it_is_expanded(read: Callable[..., Graph]) -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = (torch.arange(6) % 2 == 0).expand(x.shape[0], 6)
            wide = mask.unsqueeze(-1).expand(*mask.shape, 2**18)
            return x[wide[..., 0], :] * 2

    graph = read(Picks(), "6,5")
    assert graph.tensors[graph.outputs[0]].shape == (Dim(per_sample=3, fixed=0), Dim(per_sample=0, fixed=5))
    assert not graph.unsupported_ops


@pytest.mark.parametrize("use", ["if", "nonzero", "mask", "tolist", "numpy"])
def test_branching_on_input_values_is_refused_with_its_place(use: str, read: Callable[..., Graph]) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            match use:
                case "if":
                    return x if x.sum() > 0 else -x
                case "nonzero":
                    return x.nonzero()
                case "mask":
                    return x[x > 0]
                case "tolist":
                    return x * x[0].tolist()[0]
                case _:
                    return x * float(x.numpy()[0, 0])

    with pytest.raises(UnsupportedError) as caught:
        read(Branches(), "5")
    assert caught.value.code == "torch.data_dependent"
    assert "test_recorder.py:" in str(caught.value)


def test_recurrent_layers_stay_whole(read: Callable[..., Graph]) -> None:
    graph = read(nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True), "30,8")
    lstm = next(node for node in graph.nodes if node.kind is OpKind.LSTM)
    assert dict(lstm.attributes) == {
        "hidden_size": 16,
        "num_layers": 2,
        "num_directions": 2,
        "batch_first": True,
    }
    assert graph.tensors[lstm.outputs[0]].shape == (Dim(1, 0), Dim(0, 30), Dim(0, 32))


def test_fused_attention_stays_whole_and_frees_the_merge_of_heads(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.view(x.shape[0], -1, 2, 8).transpose(1, 2)
            y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return y.transpose(1, 2).reshape(x.shape)

    graph = read(Attends(), "10,16")
    assert kinds(graph) == [OpKind.ATTENTION]
    assert any(node.attributes.get("is_causal") is True for node in graph.nodes)


def test_product_with_a_weight_is_linear_however_it_is_written(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.addmm(self.bias, x, self.weight) @ self.weight.t()

    assert kinds(read(Conv1D(), "4")) == [OpKind.LINEAR, OpKind.LINEAR]
    assert kinds(read(_Product(), ["3,4", "4,3"])) == [OpKind.MATMUL]


class _Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def test_operators_without_a_rule_keep_their_shapes_and_are_reported(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Exotic(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    graph = read(Exotic(), "5")
    assert kinds(graph) == [OpKind.UNKNOWN]
    assert dict(graph.unsupported_ops) == {"aten.special_bessel_j0": 1}
    # Whoever predicts says so, once.
    assert graph.warnings == ()
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 5))


VECTOR = parse_input_shapes("4")


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.dim() == 2:
            x = x + 1
        return x


def test_a_loop_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_script: Callable[..., Path]
) -> None:
    monkeypatch.setattr(recorder, "_OPERATOR_LIMIT", 1000)
    with pytest.raises(UnsupportedError) as caught:
        read_torch_file(save_script(Endless(), tmp_path / "m.pt"), input=VECTOR)
    assert caught.value.code == "torch.too_many_operators"


def test_a_check_of_the_input_is_taken_to_pass_and_reported(read: Callable[..., Graph]) -> None:
    class Checks(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            torch._check_tensor_all((tokens == 3).sum() == 2)
            return tokens + 1

    graph = read(Checks(), "5:int64")
    assert len(graph.warnings) == 1
    assert "checks of its values" in graph.warnings[0]
    assert not graph.unsupported_ops
