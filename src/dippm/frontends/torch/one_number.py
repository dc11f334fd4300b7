"""Values of large tensors that are one number everywhere, such as a mask that leaves nothing out: it is kept once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dippm.frontends.torch.meta_tensors import map_tensors, tensors_in
from dippm.frontends.torch.plans import OpPlan

__all__ = ["everywhere", "fill_of", "filled", "same_everywhere"]

_FILLS: Mapping[str, int] = {
    "ones": 1, "new_ones": 1, "ones_like": 1, "zeros": 0, "new_zeros": 0, "zeros_like": 0,
}  # fmt: skip
_FILLS_WITH_ANY = frozenset({"full", "new_full", "full_like"})
# Not elementwise to PyTorch; these make the same of one number however often it stands there.
_AS_ELEMENTWISE = frozenset({"_to_copy", "all", "any"})


def everywhere(number: Any, like: torch.Tensor) -> torch.Tensor:
    """The values of a tensor that is one number everywhere.

    Args:
        number: The number, or a tensor of nothing else.
        like: Has the tensor's sizes, and its type where the number has none.
    """
    found = number if isinstance(number, torch.Tensor) else _full((), (), like.dtype, number)
    return found.expand(like.shape)


def fill_of(plan: OpPlan, arguments: Mapping[str, Any]) -> Any:
    """The number that an operator fills a new tensor with; None for an operator that does not."""
    return arguments["fill_value"] if plan.name in _FILLS_WITH_ANY else _FILLS.get(plan.name)


def filled(like: torch.Tensor, number: Any) -> torch.Tensor:
    """A tensor of the sizes and strides of another one that is a number everywhere."""
    return _full(like.size(), like.stride(), like.dtype, number)


def same_everywhere(
    func: Any, plan: OpPlan, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """What an operator makes of tensors of one number each, where that is one number as well; None elsewhere.

    A view has the number of what it is a view of; an elementwise operator is run for a single element.

    Args:
        func: The operator.
        plan: What is known of it.
        args: Its arguments by position, the tensors among them with their values.
        kwargs: Those by name.
        outputs: Tensors of the sizes and types that it makes.
    """
    values = list(tensors_in((args, tuple(kwargs.values()))))
    is_elementwise = torch.Tag.pointwise in func.tags or plan.name in _AS_ELEMENTWISE
    if func._schema.is_mutable or not all(map(_is_one_number, values)):
        return None
    if plan.is_aliasing:
        number = _one_element(values[0]).reshape(())
        return [everywhere(number, each) for each in outputs] if outputs[0].dtype == number.dtype else None
    if not is_elementwise:
        return None
    single = {name: map_tensors(_one_element, value) for name, value in kwargs.items()}
    return [everywhere(func(*map_tensors(_one_element, tuple(args)), **single), outputs[0])]


def _full(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, number: Any) -> torch.Tensor:
    made = torch.empty_strided(size, stride, dtype=dtype)
    return made.fill_(number) if number else made.zero_()  # which every type has


def _is_one_number(value: torch.Tensor) -> bool:
    return value.untyped_storage().nbytes() == value.element_size()


def _one_element(value: torch.Tensor) -> torch.Tensor:
    """A tensor of as many dimensions, for PyTorch gives those without any another rank among types."""
    return value[(slice(1),) * value.dim()]
