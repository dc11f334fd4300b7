"""Functions with a gradient of their own: which of their operators the backward pass computes again."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from threading import Event, Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd.function import FunctionCtx, FunctionMeta  # noqa: E402
from torch.utils import checkpoint as checkpoint_module  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.costs.training_step.checkpointing import AUTOGRAD_FUNCTION  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.graph import OpKind  # noqa: E402


class _KeepsArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.tanh(x * 2) * x


class _KeepsMore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        wave = torch.tanh(x * 2)
        ctx.save_for_backward(x, wave)
        return wave * x


class _Net(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 8), function

    def forward(self, x: Any) -> Any:
        return self.last(self.function.apply(self.function.apply(self.first(x))))


def _marks(function: Any, mode: Mode) -> list[object]:
    graph = read_module(_Net(function), input=parse_input_shapes("8"), mode=mode)
    assert [node.kind for node in graph.nodes[1:4]] == [OpKind.MUL, OpKind.TANH, OpKind.MUL]
    return [node.attributes.get(AUTOGRAD_FUNCTION) for node in graph.nodes]


def test_a_function_that_keeps_its_argument_is_marked_at_each_call() -> None:
    assert _marks(_KeepsArgument, Mode.TRAINING) == [None, *["_KeepsArgument_1"] * 3, *["_KeepsArgument_4"] * 3, None]


class _KeepsInItsContext(torch.autograd.Function):
    @staticmethod
    def forward(x: Any, factor: float = 2.0) -> Any:
        return torch.tanh(x * factor) * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        assert len(inputs) == 2
        ctx.save_for_backward(inputs[0])


class _KeepsItsOutput(_KeepsInItsContext):
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return _KeepsMore.apply(x)


def test_a_function_with_a_context_of_its_own_is_marked_by_what_that_keeps() -> None:
    name = "_KeepsInItsContext"
    assert _marks(_KeepsInItsContext, Mode.TRAINING) == [None, *[f"{name}_1"] * 3, *[f"{name}_4"] * 3, None]


def test_a_function_in_another_is_computed_again_with_it() -> None:
    assert _marks(_Outer, Mode.TRAINING) == [None, *["_Outer_1"] * 3, *["_Outer_4"] * 3, None]


def test_nothing_is_marked_of_a_function_that_keeps_more_nor_at_inference() -> None:
    assert set(_marks(_KeepsMore, Mode.TRAINING)) == {None}
    assert set(_marks(_KeepsItsOutput, Mode.TRAINING)) == {None}
    assert set(_marks(_KeepsArgument, Mode.INFERENCE)) == {None}


def test_pytorch_is_as_before_after_a_reading() -> None:
    before = dict(vars(FunctionMeta)), dict(vars(FunctionCtx))
    _marks(_KeepsArgument, Mode.TRAINING)
    assert (dict(vars(FunctionMeta)), dict(vars(FunctionCtx))) == before


def test_a_function_is_followed_by_whatever_name_it_is_called() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.wave = nn.Linear(8, 8), _KeepsArgument.apply

        def forward(self, x: Any) -> Any:
            return self.wave(self.first(x))

    graph = read_module(Net(), input=parse_input_shapes("8"), mode=Mode.TRAINING)
    marks = [node.attributes.get(AUTOGRAD_FUNCTION) for node in graph.nodes]
    assert marks == [None, *["_KeepsArgument_1"] * 3]


class _Spoils(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        raise ValueError("not today")


def test_a_function_that_fails_leaves_the_next_one_as_it_is() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            with suppress(ValueError):
                _Spoils.apply(x)
            return _KeepsArgument.apply(torch.tanh(x))

    graph = read_module(Tries(), input=parse_input_shapes("8"), mode=Mode.TRAINING)
    marks = [node.attributes.get(AUTOGRAD_FUNCTION) for node in graph.nodes]
    assert marks == [None, None, *["_KeepsArgument_2"] * 3]


class _Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        x.mul_(weight)
        ctx.mark_dirty(x)
        ctx.save_for_backward(weight)
        return x


def test_a_function_that_overwrites_its_argument_is_read() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            return torch.relu_(_Overwrites.apply(self.first(x), self.weight))

    graph = read_module(Net(), input=parse_input_shapes("8"), mode=Mode.TRAINING)
    assert [node.kind for node in graph.nodes if node.kind is not OpKind.VIEW] == [
        OpKind.LINEAR, OpKind.MUL, OpKind.RELU,
    ]  # fmt: skip


def test_what_another_thread_runs_meanwhile_is_not_the_models() -> None:
    has_begun, may_end, ones = Event(), Event(), torch.ones(2)

    class Elsewhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            has_begun.set()
            may_end.wait(10)
            return x * 2

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            thread = Thread(target=Elsewhere.apply, args=[ones])
            thread.start()
            has_begun.wait(10)
            x = self.head(x)
            may_end.set()
            thread.join()
            return x

    graph = read_module(Waits(), input=parse_input_shapes("8"), mode=Mode.TRAINING)
    assert [node.attributes.get(AUTOGRAD_FUNCTION) for node in graph.nodes] == [None]


class _KeepsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        assert not torch.is_grad_enabled()
        result = x @ weight
        ctx.save_for_backward(x, weight, result)
        return result


def test_a_function_may_keep_what_it_makes_of_a_weight() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 8))

        def forward(self, x: Any) -> Any:
            return _KeepsResult.apply(x, self.weight)

    graph = read_module(Net(), input=parse_input_shapes("8"), mode=Mode.TRAINING)
    assert [node.source_op for node in graph.nodes] == ["aten.mm"]


class _Blocks(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
        self.head, self.options = nn.Linear(8, 8), options

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options)
        return self.head(x)


class _BlocksWithoutGradient(_Blocks):
    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        return super().forward(x)


def _block_marks(module: nn.Module, mode: Mode) -> list[object]:
    graph = read_module(module, input=parse_input_shapes("8"), mode=mode)
    return [node.attributes.get(AUTOGRAD_FUNCTION) for node in graph.nodes if node.kind is not OpKind.VIEW]


def test_what_a_model_checkpoints_is_marked() -> None:
    again = ["checkpoint_0"] * 2 + ["checkpoint_2"] * 2 + [None]
    assert _block_marks(_Blocks(use_reentrant=False), Mode.TRAINING) == again
    assert _block_marks(_Blocks(use_reentrant=False), Mode.INFERENCE) == [None] * 5
    reentrant = ["CheckpointFunction_0"] * 2 + ["CheckpointFunction_2"] * 2 + [None]
    assert _block_marks(_Blocks(use_reentrant=True), Mode.TRAINING) == reentrant


class _BlocksWithGradient(_Blocks):
    """Recomputes what a gradient goes back from, as DenseNet's blocks do."""

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if x.requires_grad else block(x)
        return self.head(x)


def test_a_model_that_asks_for_gradients_before_it_checkpoints_is_answered() -> None:
    marks = _block_marks(_BlocksWithGradient(use_reentrant=False), Mode.TRAINING)
    assert marks == [None] * 2 + ["checkpoint_2"] * 2 + [None]
    assert _block_marks(_BlocksWithGradient(use_reentrant=False), Mode.INFERENCE) == [None] * 5


def test_nothing_is_marked_where_a_model_chooses_what_is_kept_or_wants_no_gradient() -> None:
    def keep() -> tuple[Any, Any]:
        return nullcontext(), nullcontext()

    assert _block_marks(_Blocks(use_reentrant=False, context_fn=keep), Mode.TRAINING) == [None] * 5
    for use_reentrant in (True, False):
        marks = _block_marks(_BlocksWithoutGradient(use_reentrant=use_reentrant), Mode.TRAINING)
        assert marks == [None] * 5


def test_checkpointing_is_pytorchs_own_after_a_reading() -> None:
    before = dict(vars(checkpoint_module))
    _block_marks(_Blocks(use_reentrant=False), Mode.TRAINING)
    assert dict(vars(checkpoint_module)) == before


def test_a_model_is_read_where_checkpointing_has_another_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator"):
        monkeypatch.delattr(checkpoint_module, name, raising=False)
    assert _marks(_KeepsArgument, Mode.TRAINING)[1] == "_KeepsArgument_1"
