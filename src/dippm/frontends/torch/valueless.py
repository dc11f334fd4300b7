"""Building a model whose weights have shapes and no values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["WithoutValues"]

_FILLS = frozenset(
    {
        torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.bernoulli_, torch.Tensor.random_,
        torch.Tensor.exponential_, torch.Tensor.log_normal_, torch.Tensor.cauchy_, torch.Tensor.geometric_,
        torch.Tensor.erfinv_, torch.Tensor.fill_, torch.Tensor.zero_, torch.Tensor.clamp_,
        nn.init.uniform_, nn.init.normal_, nn.init.constant_, nn.init.kaiming_uniform_,
    }
)  # fmt: skip


class WithoutValues(TorchFunctionMode):
    """Leaves out what would give values to a tensor on the meta device, which has none.

    PyTorch would run the initial values through Python code of its own that imports its compiler first. A single
    integer keeps its value, on the host: models that hold the stride of a layer as a buffer compute sizes with it.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _FILLS:
            tensor: Any = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta:
                return tensor
        if func is torch.tensor and _is_integer(*args, **(kwargs or {})) and torch.get_default_device().type == "meta":
            return func(*args, **{**(kwargs or {}), "device": "cpu"})
        return func(*args, **(kwargs or {}))


def _is_integer(data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> bool:
    """Whether a tensor of these arguments is one integer, on whatever device others are made."""
    is_whole = dtype is None or not (dtype.is_floating_point or dtype.is_complex)
    return isinstance(data, int) and is_whole and device is None
