"""Which operators a model runs in a ``torch.autograd.Function`` of its own, and what that keeps for its gradient."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from dippm.frontends.torch.recorder import Recorder

__all__ = ["functions_followed"]


@contextmanager
def functions_followed(recorder: Recorder) -> Iterator[None]:
    """Mark what runs inside a function that keeps its arguments alone: its backward pass computes the rest again.

    Of a function that keeps something else, or keeps it elsewhere, nothing is known: it is read as the operators that
    it runs. What other threads run meanwhile is theirs.

    Args:
        recorder: Where the operators are recorded.
    """
    apply = torch.autograd.Function.__dict__["apply"]
    save: Callable[..., None] = FunctionCtx.save_for_backward
    kept: list[list[torch.Tensor | None]] = []
    reader = threading.get_ident()

    def follow(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != reader:
            return apply.__get__(None, cls)(*args, **kwargs)
        kept.append([])
        start = recorder.step_count
        try:
            result = apply.__get__(None, cls)(*args, **kwargs)
        finally:
            saved = kept.pop()
        arguments = {id(value) for value in (*args, *kwargs.values())}
        if saved and all(tensor is None or id(tensor) in arguments for tensor in saved):
            recorder.mark_function(start, cls.__name__)
        return result

    def note(self: Any, *tensors: torch.Tensor | None) -> None:
        if kept and threading.get_ident() == reader:
            kept[-1].extend(tensors)
        save(self, *tensors)

    torch.autograd.Function.apply = classmethod(follow)  # type: ignore[assignment]
    FunctionCtx.save_for_backward = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        FunctionCtx.save_for_backward = save  # type: ignore[method-assign]
