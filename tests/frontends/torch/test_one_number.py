"""Large tensors of one number keep it, and what elementwise operators and views make of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.torch.one_number import everywhere, fill_of, filled, same_everywhere  # noqa: E402
from dippm.frontends.torch.plans import plan_for  # noqa: E402
from dippm.graph import Dim, Graph, OpKind  # noqa: E402

_LARGE = (64, 1024, 1024)  # 64 MiB of booleans


def _like(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_number_that_is_everywhere_takes_the_memory_of_one() -> None:
    value = everywhere(3, _like(*_LARGE))
    assert (value.shape, value.dtype, value.untyped_storage().nbytes()) == (_LARGE, torch.float32, 4)
    assert everywhere(torch.tensor(True), _like(2, 3)).tolist() == [[True] * 3] * 2
    assert everywhere(1, _like(0)).shape == (0,)


def test_what_is_filled_lies_in_memory_like_its_model() -> None:
    value = filled(_like(2, 3).t(), 7)
    assert (value.stride(), value.unique().tolist()) == ((1, 3), [7])
    assert filled(_like(2, dtype=torch.bits8), 0).dtype == torch.bits8


@pytest.mark.parametrize(
    ("func", "arguments", "number"),
    [
        (torch.ops.aten.ones.default, {}, 1),
        (torch.ops.aten.new_zeros.default, {}, 0),
        (torch.ops.aten.full_like.default, {"fill_value": 5}, 5),
        (torch.ops.aten.empty.memory_format, {}, None),
        (torch.ops.aten.add.Tensor, {}, None),
    ],
)
def test_the_number_of_a_fill(func: torch._ops.OpOverload, arguments: dict[str, object], number: object) -> None:
    assert fill_of(plan_for(func), arguments) == number


def test_an_operator_on_one_number_is_run_for_one_element() -> None:
    aten = torch.ops.aten
    mask, numbers = everywhere(True, _like(*_LARGE, dtype=torch.bool)), everywhere(2, _like(*_LARGE))
    cases = [
        (aten.logical_not.default, (mask,), _like(*_LARGE, dtype=torch.bool), False),
        (aten.all.default, (mask,), _like(dtype=torch.bool), True),
        (aten.all.dim, (mask, 1), _like(64, 1024, dtype=torch.bool), True),
        (aten.where.self, (mask, numbers, torch.tensor(1.0)), _like(*_LARGE), 2.0),
        (aten.select.int, (numbers, 0, 3), _like(1024, 1024), 2.0),
    ]
    for func, args, output, number in cases:
        (made,) = same_everywhere(func, plan_for(func), args, {}, [output]) or []
        assert (made.shape, made.dtype, made.untyped_storage().nbytes()) == (output.shape, output.dtype, made.itemsize)
        assert made.flatten()[0] == number


def test_what_makes_more_than_one_number_of_one_is_left_to_others() -> None:
    aten = torch.ops.aten
    numbers, row = everywhere(2, _like(4, 3)), torch.arange(3.0)
    cases = [
        (aten.cumsum.default, (numbers, 1), _like(4, 3)),
        (aten.mul.Tensor, (numbers, row), _like(4, 3)),
        (aten.mul_.Tensor, (numbers, 3), _like(4, 3)),
        (aten.view.dtype, (numbers, torch.int32), _like(4, 3, dtype=torch.int32)),
    ]
    for func, args, output in cases:
        assert same_everywhere(func, plan_for(func), args, {}, [output]) is None


def test_a_large_mask_can_be_decided_by(read: Callable[..., Graph]) -> None:
    class Masks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(x.shape[0], 1024, 1024, dtype=torch.int64)
            smaller = F.interpolate(mask[None].float(), size=(8, 8)).to(torch.bool)[0]
            return x + 1 if smaller.flatten(1).all() and not (mask == 0).any() else x

    graph = read(Masks(), "4")
    assert graph.fixed_batch is None
    assert graph.nodes[-1].kind is OpKind.ADD


@pytest.mark.parametrize("write", [lambda mask: mask[:, 1:].zero_(), lambda mask: mask.logical_not_()])
def test_what_is_written_to_is_no_longer_one_number(
    write: Callable[[torch.Tensor], torch.Tensor], read: Callable[..., Graph]
) -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(*_LARGE, dtype=torch.bool)
            write(mask)
            return x + 1 if mask.all() else x

    with pytest.raises(UnsupportedError) as caught:
        read(Writes(), "4")
    assert caught.value.code == "torch.data_dependent"


def test_what_is_filled_like_an_input_does_not_depend_on_it(read: Callable[..., Graph]) -> None:
    class Fills(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones_like(x)
            mask[:, 2:] = 0
            return x[:, : int(mask[0].sum())]

    graph = read(Fills(), "5")
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 2))
