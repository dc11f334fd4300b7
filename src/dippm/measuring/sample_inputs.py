"""Random inputs of a model, made on the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dippm.errors import UsageError
from dippm.frontends.call_structure import CallStructure
from dippm.frontends.inputs import InputEntry, InputShapes, by_position, nest_dotted_names
from dippm.frontends.torch.call_inputs import default_dtype
from dippm.frontends.torch.dtypes import to_torch_dtype

__all__ = ["Inputs", "make_inputs"]

# Where a model has no table to look its integers up in: every index into something with two entries is valid.
_SMALLEST_LIMIT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Arguments of one call.

    Args:
        args: By position.
        kwargs: By name; those inside another argument by their path, parts joined by dots.
        structure: How those by name make up the arguments, where some are inside others.
    """

    args: tuple[torch.Tensor, ...]
    kwargs: Mapping[str, torch.Tensor]
    structure: CallStructure | None = None

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model is called with, by position and by name."""
        if self.structure is None:
            return self.args, dict(self.kwargs)
        return self.structure.fill(tuple(self.kwargs.values()))

    def to_dtype(self, dtype: torch.dtype) -> Inputs:
        """The same with all floating tensors in another format."""
        return self._changed(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def to_channels_last(self) -> Inputs:
        """The same with all images in channels-last order."""
        return self._changed(
            lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        )

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        return replace(
            self,
            args=tuple(change(tensor) for tensor in self.args),
            kwargs={name: change(tensor) for name, tensor in self.kwargs.items()},
        )


def make_inputs(module: nn.Module, shapes: InputShapes, *, batch: int, device: str) -> Inputs:
    """Make inputs: normal numbers; for integers, valid indices into the model's table of tokens; masks of ones.

    An input whose values are given has those.

    Args:
        module: The model, which says what types its inputs have where the shapes do not.
        shapes: Shapes of one sample.
        batch: Samples.
        device: Where they are made.

    Raises:
        UsageError: ``input.dtype_unknown`` where PyTorch has no such type; ``input.nested`` where inputs are nested or
            no tensors.
    """
    shapes.refuse_structure("A measurement")
    limit = _index_limit(module)
    default = default_dtype(module)

    def make(name: str, entry: InputEntry) -> torch.Tensor:
        dtype = default if entry.dtype is None else to_torch_dtype(entry.dtype)
        if dtype is None:
            raise UsageError(
                f"The input '{name}' has element type {entry.dtype}, which PyTorch does not have.",
                code="input.dtype_unknown",
                cure="Use one of float32, float16, bfloat16, int64, int32, int8, uint8, bool.",
            )
        size = entry.at(batch)
        if entry.values is not None:
            one = torch.tensor(entry.values, dtype=dtype, device=device).reshape(entry.shape)
            return one.expand(size).contiguous()
        if "mask" in name or dtype is torch.bool:
            return torch.ones(size, dtype=dtype, device=device)
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(size, dtype=dtype, device=device)
        high = _SMALLEST_LIMIT if "type" in name else min(limit, torch.iinfo(dtype).max)
        return torch.randint(0, high, size, dtype=dtype, device=device)

    names = _positional_names(module)
    shapes = by_position(shapes, names)
    return Inputs(
        args=tuple(
            make(names[position] if position < len(names) else "", entry)
            for position, entry in enumerate(shapes.positional)
        ),
        kwargs={name: make(name, entry) for name, entry in (shapes.named or {}).items()},
        structure=nest_dotted_names(shapes, names).structure,
    )


def _positional_names(module: nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # a scripted forward has no signature
        return []


def _index_limit(module: nn.Module) -> int:
    """Integers below this are valid in each of the model's tables but those of token types."""
    sizes = [table.num_embeddings for table in module.modules() if isinstance(table, nn.Embedding)]
    return min((size for size in sizes if size > _SMALLEST_LIMIT), default=_SMALLEST_LIMIT)
