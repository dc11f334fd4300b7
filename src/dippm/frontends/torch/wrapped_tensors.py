"""Tensors of classes that keep their numbers in other tensors, as those of quantised weights do (torchao).

Such a class has PyTorch ask it for each operator, and runs others in its place on the tensors that it wraps.
"""

from __future__ import annotations

import torch

__all__ = ["inner_tensors", "is_wrapper"]


def is_wrapper(kind: type) -> bool:
    """Whether a class of tensors is one of those.

    PyTorch's own, of nested and distributed tensors, are not meant: what they hold is no matter of shapes alone.
    """
    return hasattr(kind, "__tensor_flatten__") and not kind.__module__.startswith("torch.")


def inner_tensors(tensor: torch.Tensor, prefix: str = "") -> dict[str, torch.Tensor]:
    """What a tensor keeps its numbers in, by the path to it and the largest first.

    Args:
        tensor: Any tensor; one that wraps none is its own, with an empty path.
        prefix: What the paths begin with.
    """
    if not is_wrapper(type(tensor)):
        return {prefix: tensor}
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    parts: dict[str, torch.Tensor] = {}
    for name in names:
        parts |= inner_tensors(getattr(tensor, name), f"{prefix}.{name}")
    return dict(sorted(parts.items(), key=lambda item: -item[1].nbytes))
