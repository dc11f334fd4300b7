from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.errors import UnsupportedError, UsageError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402


def test_membership_in_the_input_is_assumed_and_reported(read: Callable[..., Graph]) -> None:
    class Warns(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            if 3 in tokens[:, [-1, 0]]:
                raise ValueError("padding")
            return tokens + 1

    graph = read(Warns(), "5:int64")
    assert len(graph.warnings) == 1
    assert "3" in graph.warnings[0]


def test_numbers_in_a_list_become_a_tensor_where_they_are_known(read: Callable[..., Graph]) -> None:
    class Collects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes = torch.tensor([torch.arange(4).max(), [2, torch.tensor(5)][1]])
            return x.split(sizes.tolist(), dim=1)[0] * 2

    graph = read(Collects(), "8")
    assert [fixed for _, fixed in graph.tensors[graph.outputs[0]].shape][1:] == [3]


def test_numbers_in_a_list_are_not_guessed(read: Callable[..., Graph]) -> None:
    class Collects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([x.max(), x.min()])

    with pytest.raises(UnsupportedError) as caught:
        read(Collects(), "8")
    assert caught.value.code == "torch.data_dependent"


def _in_device_context(x: torch.Tensor) -> torch.Tensor:
    with torch.device("cuda"):
        return x + torch.arange(5)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x + torch.arange(5, device="cuda"),
        lambda x: x + torch.zeros(5, device=torch.device("cuda", 1)),
        lambda x: x + x.new_zeros(5, device="cuda:0"),
        lambda x: x.cuda() + torch.ones(5).cuda(0, non_blocking=True),
        lambda x: x.to("cuda") + torch.ones(5).to(0),
        lambda x: x + torch.ones(5).to(torch.device("cuda"), torch.float32, non_blocking=True),
        lambda x: x + torch.ones(5).to(device="mps"),
        lambda x: x + torch.ones(5).to(x),
        _in_device_context,
    ],
)
def test_a_gpu_that_is_named_need_not_be_there(
    forward: Callable[[torch.Tensor], torch.Tensor],
    read: Callable[..., Graph],
    kinds: Callable[[Graph], list[OpKind]],
) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    graph = read(Named(), "5")
    assert kinds(graph) == [OpKind.FILL, OpKind.ADD]
    assert graph.fixed_batch is None


def test_a_cast_on_the_way_to_a_gpu_is_a_cast(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to("cuda", torch.float16)

    assert kinds(read(Halves(), "5")) == [OpKind.CAST]


@pytest.mark.parametrize(
    ("forward", "dtype"),
    [
        (lambda x: x.type(x.type()), torch.float32),
        (lambda x: x.type("torch.cuda.HalfTensor"), torch.float16),
        (lambda x: x.type(torch.cuda.LongTensor), torch.int64),
        (lambda x: x.type(dtype=torch.bfloat16), torch.bfloat16),
        (lambda x: x.type(torch.DoubleTensor if x.type() == "torch.FloatTensor" else torch.bool), torch.float64),
    ],
)
def test_tensor_types_of_any_device_are_element_types(
    forward: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, read: Callable[..., Graph]
) -> None:
    class Typed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x + 1)

    graph = read(Typed(), "5")
    assert f"torch.{graph.tensors[graph.outputs[0]].dtype.value}" == str(dtype)


def test_a_tensor_type_that_is_none_is_told(read: Callable[..., Graph]) -> None:
    class Typed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.type("torch.FloatingTensor")

    with pytest.raises(UsageError, match=r"invalid type: 'torch\.FloatingTensor'"):
        read(Typed(), "5")


def test_the_data_of_a_tensor_lie_where_the_tensor_lies(read: Callable[..., Graph]) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).data + 1

    graph = read(Net(), "8")
    assert [node.kind for node in graph.nodes] == [OpKind.MUL, OpKind.ADD]
    assert graph.nodes[1].inputs[:1] == graph.nodes[0].outputs


class _Momentum(nn.Module):
    """Keeps a slow copy of its encoder up to date in the forward pass, as MoCo and BYOL do."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = nn.Linear(8, 4)
        self.slow = nn.Linear(8, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for new, kept in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
                kept.data = kept.data * 0.99 + new.data * 0.01
        return self.fast(x) * self.slow(x)


def test_weights_whose_data_is_set_stay_weights(read: Callable[..., Graph]) -> None:
    module = _Momentum()
    before = module.slow.weight.detach().clone()
    graph = read(module, "8")
    assert [node.kind for node in graph.nodes].count(OpKind.LINEAR) == 2
    assert graph.parameter_count == 2 * (8 * 4 + 4)
    assert torch.equal(module.slow.weight, before)


def test_a_tensor_whose_data_is_set_is_what_it_was_set_to(read: Callable[..., Graph]) -> None:
    class Sets(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            y.data = torch.relu(x)
            return y * 2

    *_, made, read_after = read(Sets(), "8").nodes
    assert (made.kind, read_after.kind) == (OpKind.RELU, OpKind.MUL)
    assert read_after.inputs == made.outputs


def test_data_of_another_size_is_refused(read: Callable[..., Graph]) -> None:
    class Grows(_Momentum):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.slow.weight.data = self.fast.weight.repeat(2, 1)
            return self.fast(x)

    with pytest.raises(UnsupportedError, match=r"\(4, 8\) .* to one of \(8, 8\)"):
        read(Grows(), "8")


@pytest.mark.parametrize("mode", list(Mode))
def test_a_tensor_requires_a_gradient_as_in_autograd(mode: Mode) -> None:
    found: list[bool] = []

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trained, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.trained(x)
            with torch.no_grad():
                apart = self.trained(x)
            asked = [hidden, self.frozen(hidden), x, hidden.detach(), apart, self.frozen(x), torch.zeros(3)]
            found[:] = [tensor.requires_grad for tensor in asked]
            return hidden

    read_module(Asks(), input=parse_input_shapes("8"), mode=mode)
    assert found == [mode is Mode.TRAINING] * 2 + [False] * 5
