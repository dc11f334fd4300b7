"""Calls of a part of a model of transformers with one sample, to see which of several inputs it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dippm.frontends.inputs import InputEntry

__all__ = ["count_features", "first_taken"]

_Entries = Mapping[str, InputEntry]


def first_taken(module: Any, function: Callable[..., Any], ways: Iterable[_Entries]) -> tuple[_Entries, Any]:
    """The first inputs that a function of a module takes, and what it makes of those of one sample.

    Where that depends on values, None in its place, and reading the module says so. No inputs where it takes none.

    Args:
        module: The model.
        function: Its forward, or another method of it.
        ways: Inputs by the names of the model's forward; of those, the function is given what it knows.
    """
    from dippm.frontends.torch.asked_values import DataDependentError
    from dippm.frontends.torch.recorded_call import call_without_data

    arguments = inspect.signature(function).parameters.values()
    takes_any = any(item.kind is item.VAR_KEYWORD for item in arguments)
    names = {item.name for item in arguments}
    for way in ways:
        try:
            taken = {name: entry for name, entry in way.items() if takes_any or name in names}
            return way, call_without_data(module, function, taken, batch=1)
        except DataDependentError:
            return way, None
        except Exception:  # noqa: BLE001, S112 - the library's own code, which fails in any way on what it does not take
            continue
    return {}, None


def count_features(features: Any, *, size: int | None) -> int:
    """How many places in a text the features of an image or a sound take; 0 where they are not of its tokens' size.

    Args:
        features: What the model's own method makes of one sample.
        size: Size of what stands for a token; None where that is not known.
    """
    import torch

    found = getattr(features, "pooler_output", features)
    if isinstance(found, torch.Tensor):
        return found.numel() // max(found.shape[-1], 1) if size in {None, found.shape[-1]} else 0
    return sum(count_features(each, size=size) for each in found) if isinstance(found, list | tuple) else 0
