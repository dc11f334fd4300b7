"""What a training step does not differentiate: no gradient goes back, and nothing is kept for one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import dippm  # noqa: E402
from dippm.costs.conditions import Mode  # noqa: E402
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.frontends.torch.gradient_flow import GradientFlow  # noqa: E402


class _Net(nn.Module):
    """A body whose features go to a head as ``hand_over`` gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Linear(16, 4)
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Any) -> Any:
        return self.head(self.hand_over(x))


class _UnderNoGrad(_Net):
    @torch.no_grad()
    def hand_over(self, x: Any) -> Any:
        return self.body(x)


class _Detached(_Net):
    def hand_over(self, x: Any) -> Any:
        return self.body(x).detach()


class _Data(_Net):
    def hand_over(self, x: Any) -> Any:
        return self.body(x).data


class _StraightThrough(_Net):
    def hand_over(self, x: Any) -> Any:
        features = self.body(x)
        return features + (features.round() - features).detach()


class _MovingMean(_Net):
    def hand_over(self, x: Any) -> Any:
        features = self.body(x)
        with torch.no_grad():
            features.clamp_(-1, 1)
            self.mean.mul_(0.9).add_(features.mean(0), alpha=0.1)
        return features - self.mean


class _Asking(_Net):
    def hand_over(self, x: Any) -> Any:
        features = self.body(x)
        assert torch.is_grad_enabled() == self.training
        features.register_hook(lambda gradient: 2 * gradient).remove()
        features.retain_grad()
        return features


class _Hooked(_Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.register_full_backward_hook(lambda *_: None)

    def hand_over(self, x: Any) -> Any:
        return self.body(self.body[0](x)[:, :8])


class _InAFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.detach().sign()


class _ThroughAFunction(_Net):
    def hand_over(self, x: Any) -> Any:
        return _InAFunction.apply(self.body(x))


_HEAD, _ALL = {"head.weight", "head.bias"}, {name for name, _ in _Net().named_parameters()}


def _trained(module: nn.Module) -> set[str]:
    graph = read_module(module, input=parse_input_shapes("8"), mode=Mode.TRAINING)
    step = make_training_graph(graph, TrainingSettings())
    return {step.graph.tensors[index].name for index in step.trained}


@pytest.mark.parametrize("kind", [_UnderNoGrad, _Detached, _Data])
def test_weights_behind_a_cut_are_not_trained(kind: type[_Net]) -> None:
    assert _trained(kind()) == _HEAD


@pytest.mark.parametrize("kind", [_StraightThrough, _MovingMean, _Asking, _Hooked, _ThroughAFunction])
def test_weights_with_another_way_to_the_loss_are_trained(kind: type[_Net]) -> None:
    assert _trained(kind()) == _ALL


def test_the_cut_is_one_view_and_none_where_nothing_is_cut() -> None:
    def views(module: nn.Module, mode: Mode) -> int:
        graph = read_module(module, input=parse_input_shapes("8"), mode=mode)
        return sum(node.attributes.get("function") == "detach" for node in graph.nodes)

    assert views(_UnderNoGrad(), Mode.TRAINING) == views(_Detached(), Mode.TRAINING) == 1
    assert views(_UnderNoGrad(), Mode.INFERENCE) == views(_Detached(), Mode.INFERENCE) == 0
    frozen = _Detached().requires_grad_(False)
    frozen.head.requires_grad_(True)
    assert views(frozen, Mode.TRAINING) == 0


def test_an_output_that_is_cut_is_not_trained_on() -> None:
    class Two(_Net):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                scores = self.body(x)
            return scores, self.head(x.new_zeros(len(x), 16))

    assert _trained(Two()) == _HEAD


def test_a_step_holds_state_for_what_is_trained_alone() -> None:
    step = {
        kind: dippm.predict(kind(), input="8", device="A100", mode="training", optimizer="adamw")
        for kind in (_UnderNoGrad, _StraightThrough)
    }
    count = 16 * 4 + 4
    assert step[_UnderNoGrad].memory_parts_mb["optimizer"] * 2**20 == pytest.approx(8 * count, rel=0.2)
    assert step[_StraightThrough].memory_parts_mb["optimizer"] > 5 * step[_UnderNoGrad].memory_parts_mb["optimizer"]


def test_what_overwrites_a_tensor_without_gradients_leaves_it_its_own() -> None:
    flow = GradientFlow()
    flow.add_weight(0)
    with torch.enable_grad():
        flow.note([0], [(1, None)])
    with torch.no_grad():
        flow.note([1], [(2, 1), (3, None)])
        flow.note([3], [(4, 5)])
    assert [flow.depends(index) for index in range(6)] == [True] * 5 + [False]
    assert [flow.is_cut(index) for index in range(6)] == [False, False, False, True, True, False]


def test_inside_a_function_gradients_are_as_they_were_outside() -> None:
    flow = GradientFlow()
    with torch.enable_grad(), flow.inside_function(is_on=flow.is_on), torch.no_grad():
        assert flow.is_on
        assert flow.is_inside_function
    with torch.no_grad(), flow.inside_function(is_on=flow.is_on), torch.enable_grad():
        assert not flow.is_on
    assert not flow.is_inside_function


def test_what_a_function_of_its_own_makes_depends_on_what_it_is_given() -> None:
    flow = GradientFlow()
    flow.add_weight(0)
    flow.note_function([1], [2])
    assert not flow.depends(2)
    flow.note_function([0, 1], [2])
    assert flow.depends(2)
    assert not flow.is_cut(2)
