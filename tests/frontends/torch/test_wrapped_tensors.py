"""Weights that are wrapped in a class of tensors, as torchao's are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nested._internal.nested_tensor import NestedTensor  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.costs.conditions import Mode  # noqa: E402
from dippm.frontends.inputs import InputShapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.frontends.torch.wrapped_tensors import inner_tensors, is_wrapper  # noqa: E402
from dippm.graph import DType, Graph, OpKind, TensorRole  # noqa: E402


class Scaled(torch.Tensor):
    """Numbers of few bits with a scale for each row; every operator takes what they stand for."""

    @staticmethod
    def __new__(cls, data: Any, scales: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32, device=data.device)

    def __init__(self, data: Any, scales: Any) -> None:
        self.data_of, self.scales = data, scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["scales", "data_of"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, _meta: Any, _size: Any, _stride: Any) -> Any:
        return cls(inner["data_of"], inner["scales"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].data_of, args[0].scales)
        plain = [item.data_of.to(torch.float32) * item.scales if isinstance(item, cls) else item for item in args]
        return func(*plain, **(kwargs or {}))


def quantised(*, is_nested: bool = False) -> nn.Module:
    layer = nn.Linear(64, 32, bias=False)
    data: Any = torch.zeros(32, 64, dtype=torch.int8)
    if is_nested:
        data = Scaled(data, torch.ones(1, 64))
    layer.weight = nn.Parameter(Scaled(data, torch.ones(32, 1)), requires_grad=False)
    return layer


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_wrapped_is_held_and_what_it_takes_to_unwrap_is_recorded(
    mode: Mode, read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    graph = read(quantised(), "64", mode=mode)
    held = {spec.name: (spec.dtype, spec.role) for spec in graph.tensors if spec.name.startswith("weight")}
    of_data = TensorRole.PARAMETER if mode is Mode.INFERENCE else TensorRole.BUFFER  # it is not trained
    assert held == {
        "weight.data_of": (DType.INT8, of_data),
        "weight.scales": (DType.FLOAT32, TensorRole.BUFFER),
    }
    assert kinds(graph) == [OpKind.CAST, OpKind.MUL, OpKind.LINEAR]
    assert float(Workload.from_graph(graph).at([3]).macs.sum()) == 3 * 64 * 32


def test_wrappers_may_wrap_each_other(read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]) -> None:
    module = quantised(is_nested=True)
    assert list(inner_tensors(module.weight)) == [".data_of.data_of", ".data_of.scales", ".scales"]
    assert kinds(read(module, "64")) == [OpKind.CAST, OpKind.MUL, OpKind.MUL, OpKind.LINEAR]


def test_tensors_of_pytorch_are_their_own() -> None:
    weight = nn.Linear(2, 2).weight
    assert inner_tensors(weight) == {"": weight}
    assert not any(map(is_wrapper, (torch.Tensor, nn.Parameter, NestedTensor)))


def test_a_program_does_not_tell_and_a_warning_does(tmp_path: Path, export: Callable[..., Path]) -> None:
    for module, count in ((quantised(), 1), (nn.Linear(64, 32), 0)):
        path = export(module, tmp_path / "m.pt2", torch.zeros(2, 64))
        warnings = read_torch_file(path, input=InputShapes()).warnings
        assert len(warnings) == count
        assert all("(weight)" in warning for warning in warnings)
