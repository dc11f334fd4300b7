"""Backward passes that functions define, recorded without data."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.graph import OWN_GRADIENT, Graph, OpKind  # noqa: E402


class _Net(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 8), function

    def forward(self, x: Any) -> Any:
        return self.last(self.function(self.first(x)))


def _read(function: Any, mode: Mode = Mode.TRAINING) -> Graph:
    return read_module(_Net(function), input=parse_input_shapes("8"), mode=mode)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        assert ctx.needs_input_grad == (True, False)
        y = torch.tanh(x * factor)
        ctx.save_for_backward(y, None)
        ctx.factor, ctx.given = factor, [x]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        assert not torch.is_grad_enabled()
        assert ctx.needs_input_grad == (True, False)
        y, nothing = ctx.saved_tensors
        assert nothing is None
        return gradient * (1 - y * y) * ctx.factor, None


def test_a_backward_pass_is_recorded_with_what_it_keeps() -> None:
    graph = _read(lambda x: _Tanh.apply(x, 2.0))
    (own,) = graph.own_gradients
    assert [node.attributes.get(OWN_GRADIENT) for node in graph.nodes] == [None, "_Tanh_1", "_Tanh_1", None]
    assert [node.source_op for node in own.nodes] == ["aten.mul", "aten.rsub", "aten.mul", "aten.mul"]
    (linear, _, tanh, _) = graph.nodes
    assert own.outputs == own.kept == tanh.outputs
    assert own.inputs == own.held == linear.outputs
    assert own.results == own.nodes[-1].outputs
    assert own.given[0] in own.nodes[2].inputs
    assert graph.fixed_batch is None
    assert graph.warnings == ()


def test_nothing_is_recorded_where_nothing_is_differentiated() -> None:
    def forward(x: Any) -> Any:
        with torch.no_grad():
            return torch.tanh(_Twice.apply(x))

    assert _read(forward).own_gradients == ()
    assert _read(_Twice.apply, Mode.INFERENCE).own_gradients == ()


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def vjp(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return _Twice.apply(x) + 1

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _Twice.apply(gradient)


def test_the_outermost_function_counts() -> None:
    (own,) = _read(_Outer.apply).own_gradients
    assert (own.name, [node.source_op for node in own.nodes]) == ("_Outer_1", ["aten.mul"])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_is_checkpointed_has_functions_inside(use_reentrant: bool) -> None:
    graph = _read(lambda x: checkpoint(lambda y: _Twice.apply(y.sin()), x, use_reentrant=use_reentrant))
    assert [own.name for own in graph.own_gradients] == ["_Twice_2"]


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x, y * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any, other: Any) -> Any:
        return gradient * 0.5, other


class _PassesWithContextApart(torch.autograd.Function):
    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x, y * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        assert output[0].shape == inputs[0].shape

    @staticmethod
    def backward(ctx: Any, gradient: Any, other: Any) -> Any:
        return gradient * 0.5, other


@pytest.mark.parametrize("function", [_Passes, _PassesWithContextApart])
def test_an_argument_that_is_passed_on_has_the_gradient_of_the_function(function: Any) -> None:
    graph = _read(lambda x: function.apply(x, x.sin())[0])
    assert [node.source_op for node in graph.nodes] == [
        "aten.linear", "aten.sin", "aten.mul", "aten.view", "aten.linear",
    ]  # fmt: skip
    (own,) = graph.own_gradients
    assert [node.source_op for node in own.nodes] == ["aten.mul"]
    assert own.inputs == (*graph.nodes[0].outputs, *graph.nodes[1].outputs)
    assert graph.nodes[-1].inputs[0] == own.outputs[0] == graph.nodes[3].outputs[0]


def test_an_argument_that_a_checkpoint_passes_on_has_a_gradient() -> None:
    graph = _read(lambda x: checkpoint(lambda y: y, x, use_reentrant=True))
    assert "aten.detach" not in [node.source_op for node in graph.nodes]


class _WritesToWhatItKeeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.sin()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (y,) = ctx.saved_tensors
        return y.mul_(gradient)


def test_what_the_forward_pass_made_stays_what_it_was() -> None:
    graph = _read(_WritesToWhatItKeeps.apply)
    assert graph.nodes[-1].inputs[0] == graph.nodes[1].outputs[0]


class _AsksForValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.exp() if gradient.sum() > 0 else gradient


class _HasNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sin()


@pytest.mark.parametrize("function", [_AsksForValues, _HasNone])
def test_what_cannot_be_run_is_told_and_left_to_the_operators(function: Any) -> None:
    graph = _read(function.apply)
    assert graph.own_gradients == ()
    assert [node.kind for node in graph.nodes] == [OpKind.LINEAR, OpKind.UNARY, OpKind.LINEAR]
    (said,) = graph.warnings
    assert f"The backward pass that {function.__name__} defines cannot be read" in said
