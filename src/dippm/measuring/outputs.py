"""What a model returned, whatever it is wrapped in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

__all__ = ["find_logits", "floating_tensors", "is_finite"]


def floating_tensors(output: object) -> Iterator[torch.Tensor]:
    """All tensors of real numbers in an output: in tuples, lists, dicts and dataclasses, however deep.

    Complex numbers come as their real and imaginary parts.
    """
    for leaf in _leaves(output):
        tensor = torch.view_as_real(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_complex() else leaf
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            yield tensor


def find_logits(output: object) -> torch.Tensor | None:
    """The output's scores of classes.

    What it calls ``logits``; else the first of its tensors that depends on weights, if it has 2 or 3 dimensions.
    """
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, torch.Tensor):
        return named
    tensors = [leaf for leaf in _leaves(output) if isinstance(leaf, torch.Tensor)]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    first = next((tensor for tensor in numbers if tensor.requires_grad), numbers[0] if numbers else None)
    if first is None or first.is_complex():
        return None
    return first if first.dim() in (2, 3) and first.shape[-1] > 1 else None


def is_finite(output: object) -> bool:
    """Whether an output has neither NaN nor infinities. It needs no memory of the output's size."""
    for leaf in _leaves(output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel():
            if not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(leaf.detach())):
                return False
        elif isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and leaf.size and not np.isfinite(leaf).all():
            return False
    return True


def _leaves(output: Any) -> Iterator[Any]:
    if isinstance(output, Mapping):
        children: Iterator[Any] = iter(output.values())
    elif isinstance(output, tuple | list):
        children = iter(output)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        children = (getattr(output, field.name) for field in dataclasses.fields(output))
    else:
        return iter((output,))
    return chain.from_iterable(map(_leaves, children))
