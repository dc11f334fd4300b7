"""Which operators a model runs for its backward pass to run them again, and keeps the arguments of alone.

Those are a ``torch.autograd.Function`` of its own that keeps nothing but its arguments, and what runs under
``torch.utils.checkpoint``, which is such a function where it is reentrant.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, _SingleLevelFunction
from torch.utils import checkpoint

from dippm.frontends.torch.gradient_flow import GradientFlow
from dippm.frontends.torch.recorder import Recorder

__all__ = ["checkpoints_followed", "functions_followed"]

_CHECKPOINT = "_checkpoint_without_reentrant_generator"


@contextmanager
def functions_followed(recorder: Recorder, flow: GradientFlow) -> Iterator[None]:
    """Mark what runs inside a function that keeps its arguments alone: its backward pass computes the rest again.

    Of a function that keeps something else, or keeps it elsewhere, nothing is known: it is read as the operators that
    it runs. What other threads run meanwhile is theirs.

    Args:
        recorder: Where the operators are recorded.
        flow: Its gradients.
    """
    # Below ``Function``, whose ``apply`` models may have taken under another name before.
    base: Any = _SingleLevelFunction
    save: Callable[..., None] = FunctionCtx.save_for_backward
    kept: list[list[torch.Tensor | None]] = []
    reader = threading.get_ident()

    def follow(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != reader:
            return super(base, cls).apply(*args, **kwargs)
        kept.append([])
        start, is_on = recorder.step_count, flow.is_on
        try:
            # As PyTorch runs it; it would keep what the function saves, which tensors of a recording do not allow.
            with flow.inside_function(), torch.no_grad():
                result = super(base, cls).apply(*args, **kwargs)
        finally:
            saved = kept.pop()
        arguments = {id(value) for value in (*args, *kwargs.values())}
        if is_on and saved and all(tensor is None or id(tensor) in arguments for tensor in saved):
            recorder.mark_function(start, cls.__name__)
        return result

    def note(self: Any, *tensors: torch.Tensor | None) -> None:
        if kept and threading.get_ident() == reader:
            kept[-1].extend(tensors)
        save(self, *tensors)

    base.apply = classmethod(follow)
    FunctionCtx.save_for_backward = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        del base.apply
        FunctionCtx.save_for_backward = save  # type: ignore[method-assign]


@contextmanager
def checkpoints_followed(recorder: Recorder, flow: GradientFlow) -> Iterator[None]:
    """Mark what runs under ``torch.utils.checkpoint`` without reentrance, whose activations are computed again.

    Where a model chooses by ``context_fn`` what is kept all the same, everything is taken to be kept.

    Args:
        recorder: Where the operators are recorded.
        flow: Its gradients.
    """
    original = getattr(checkpoint, _CHECKPOINT)
    reader = threading.get_ident()

    def follow(function: Any, preserve: bool, context_fn: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        if threading.get_ident() != reader:
            yield from original(function, preserve, context_fn, *args, **kwargs)
            return
        # The original would keep the arguments for a backward pass that a recording does not run.
        start = recorder.step_count
        yield
        if flow.is_on and context_fn is checkpoint.noop_context_fn:
            recorder.mark_function(start, "checkpoint")

    setattr(checkpoint, _CHECKPOINT, follow)
    try:
        yield
    finally:
        setattr(checkpoint, _CHECKPOINT, original)
