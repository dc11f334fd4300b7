"""Operators that take functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import InputShapes  # noqa: E402
from dippm.frontends.torch import higher_order, read_torch_file  # noqa: E402
from dippm.frontends.torch.higher_order import run_eagerly  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402


class _Net(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.run = nn.Linear(8, 8), run

    def forward(self, x: Any) -> Any:
        return self.run(self.layer, x)


def _attend(layer: nn.Module, x: Any) -> Any:
    heads = layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
    return flex_attention(heads, heads, heads, score_mod=lambda score, b, h, q, k: score + (q - k))


def test_flexible_attention_has_its_products_and_its_scores(read: Callable[..., Graph]) -> None:
    graph = read(_Net(_attend), "16,8")
    assert graph.fixed_batch is None
    assert not graph.unsupported_ops
    per_sample = 16 * 8 * 8 + 2 * 2 * 16 * 16 * 4
    assert float(Workload.from_graph(graph).at([3]).macs.sum()) == 3 * per_sample
    assert sum(node.kind is OpKind.MATMUL for node in graph.nodes) == 2


def test_a_branch_is_taken_where_the_program_decides_and_refused_where_the_input_does(
    read: Callable[..., Graph],
) -> None:
    def branch(asked: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda layer, x: torch.cond(asked(x), lambda y: layer(y).relu(), lambda y: layer(y).tanh(), (x,))

    graph = read(_Net(branch(lambda _: torch.arange(2).sum() > 5)), "8")
    assert [node.kind for node in graph.nodes if node.kind in {OpKind.RELU, OpKind.TANH}] == [OpKind.TANH]
    with pytest.raises(UnsupportedError) as caught:
        read(_Net(branch(lambda x: x.sum() > 0)), "8")
    assert caught.value.code == "torch.data_dependent"


def test_a_loop_runs_as_often_as_the_program_says(read: Callable[..., Graph]) -> None:
    def repeat(layer: nn.Module, x: Any) -> Any:
        return torch._higher_order_ops.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, layer(y)), (torch.tensor(0), x)
        )[1]

    graph = read(_Net(repeat), "8")
    assert sum(node.kind is OpKind.LINEAR for node in graph.nodes) == 3


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_scan_runs_once_for_each_element(is_reversed: bool, read: Callable[..., Graph]) -> None:
    def scan(layer: nn.Module, x: Any) -> Any:
        def step(carried: Any, element: Any) -> tuple[Any, Any]:
            new = torch.tanh(layer(carried) + element)
            return new, new.clone()

        first = torch.zeros_like(x[:, 0])
        return torch._higher_order_ops.scan(step, first, x, dim=1, reverse=is_reversed)

    graph = read(_Net(scan), "5,8")
    assert graph.fixed_batch is None
    assert sum(node.kind is OpKind.LINEAR for node in graph.nodes) == 5
    assert float(Workload.from_graph(graph).at([3]).macs.sum()) == 3 * 5 * 8 * 8
    assert [[dim.at(3) for dim in graph.tensors[index].shape] for index in graph.outputs] == [[3, 8], [3, 5, 8]]


def test_what_only_compiled_models_run_is_refused_by_its_name() -> None:
    operator = SimpleNamespace(name=lambda: "something_compiled", py_kernels={})
    with pytest.raises(UnsupportedError, match="something_compiled") as caught:
        run_eagerly(operator, (), {})
    assert caught.value.code == "torch.higher_order"


def _branch(layer: nn.Module, x: Any) -> Any:
    return torch.cond(torch.arange(2).sum() > 5, lambda y: layer(y).relu(), lambda y: layer(layer(y)), (x,))


def _repeat(layer: nn.Module, x: Any) -> Any:
    loop = torch._higher_order_ops.while_loop
    return loop(lambda i, _: i < 3, lambda i, y: (i + 1, layer(y)), (torch.zeros((), dtype=torch.int64), x))[1]


def _accumulate(layer: nn.Module, x: Any) -> Any:
    def step(carried: Any, element: Any) -> tuple[Any, Any]:
        new = layer(carried) + element
        return new, new.clone()

    return torch._higher_order_ops.scan(step, torch.zeros_like(x[:, 0]), x, dim=1)[1]


def _each(layer: nn.Module, x: Any) -> Any:
    return torch._higher_order_ops.map(layer, x)


@pytest.mark.parametrize(
    ("run", "layers"),
    [(_branch, 5 * 2), (_repeat, 5 * 3), (_accumulate, 5), (_each, 5)],
    ids=lambda item: str(item)[:9],
)
def test_an_exported_program_runs_the_functions_that_operators_take(
    tmp_path: Path, run: Callable[..., Any], layers: int, export: Callable[..., Path], read: Callable[..., Graph]
) -> None:
    path = export(_Net(run), tmp_path / "m.pt2", torch.zeros(2, 5, 8))
    for graph in (read_torch_file(path, input=InputShapes()), read(_Net(run), "5,8", batch_hint=2)):
        assert not graph.unsupported_ops
        assert float(Workload.from_graph(graph).at([2]).macs.sum()) == 2 * layers * 8 * 8


def test_a_branch_by_the_input_names_a_cure_that_works(tmp_path: Path, export: Callable[..., Path]) -> None:
    net = _Net(lambda layer, x: torch.cond(x.sum() > 0, layer, lambda y: layer(y).tanh(), (x,)))
    path = export(net, tmp_path / "m.pt2", torch.zeros(2, 8))
    with pytest.raises(UnsupportedError) as caught:
        read_torch_file(path, input=InputShapes())
    assert caught.value.code == "torch.data_dependent"
    assert "larger side" in (caught.value.cure or "")


def test_a_program_of_vmap_is_read_where_it_is_taken_apart(tmp_path: Path, export: Callable[..., Path]) -> None:
    net = _Net(lambda layer, x: torch.vmap(lambda y: layer(y) @ y.T)(x)).eval()
    with pytest.raises(UnsupportedError, match=r"torch\.vmap") as caught:
        read_torch_file(export(net, tmp_path / "m.pt2", torch.zeros(2, 5, 8)), input=InputShapes())
    assert "run_decompositions" in (caught.value.cure or "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(net, (torch.zeros(2, 5, 8),)).run_decompositions({})
        torch.export.save(program, tmp_path / "d.pt2")
    graph = read_torch_file(tmp_path / "d.pt2", input=InputShapes())
    assert float(Workload.from_graph(graph).at([2]).macs.sum()) == 2 * (5 * 8 * 8 + 5 * 5 * 8)


def test_a_loop_that_runs_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(higher_order, "_STEP_LIMIT", 100)
    with pytest.raises(UnsupportedError) as caught:
        higher_order.WITHOUT_MODES["while_loop"](lambda *_: [True], lambda *carried: carried, (1,), ())
    assert caught.value.code == "torch.too_many_operators"
