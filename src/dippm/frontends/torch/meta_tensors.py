"""Tensors without data: those of an operator's arguments and results, and the operator run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["is_differentiable", "map_tensors", "run_on_meta", "tensors_in", "without_values"]


def tensors_in(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The tensors among an operator's arguments or results, in their order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def without_values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes and strides on the meta device."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def map_tensors(convert: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """A result with each of its tensors converted."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(convert, item) for item in value)
    return value


def is_differentiable(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers can have a gradient."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def run_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on tensors without data, by its decomposition where it has no rule for them.

    Raises:
        NotImplementedError: It has neither.
    """
    try:
        return func(*args, **kwargs)
    except NotImplementedError:
        from torch._decomp import decomposition_table

        decomposition = decomposition_table.get(func)
        if decomposition is None:
            raise
        return decomposition(*args, **kwargs)
