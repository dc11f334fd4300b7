"""Which operators a model runs for its backward pass to run them again, and keeps the arguments of alone.

Those are a ``torch.autograd.Function`` of its own that keeps nothing but its arguments, and what runs under
``torch.utils.checkpoint``, which is such a function where it is reentrant.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, FunctionMeta, _SingleLevelFunction
from torch.utils import checkpoint

from dippm.frontends.torch.gradient_flow import GradientFlow
from dippm.frontends.torch.recorder import Recorder

__all__ = ["checkpoints_followed", "functions_followed"]

# What ``torch.utils.checkpoint.checkpoint`` calls without reentrance: the first since 2.15, the second before.
_CHECKPOINTS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


@contextmanager
def functions_followed(recorder: Recorder, flow: GradientFlow) -> Iterator[None]:
    """Mark what runs inside a function that keeps its arguments alone: its backward pass computes the rest again.

    Of a function that keeps something else, or keeps it elsewhere, nothing is known: it is read as the operators that
    it runs. What other threads run meanwhile is theirs.

    Args:
        recorder: Where the operators are recorded.
        flow: Its gradients.
    """
    calls = _Calls(recorder, flow)
    save: Callable[..., None] = FunctionCtx.save_for_backward
    reader = threading.get_ident()

    def look_up(cls: Any, name: str) -> Any:
        value = type.__getattribute__(cls, name)
        return calls.look_up(cls, name, value) if threading.get_ident() == reader else value

    def note(self: Any, *tensors: torch.Tensor | None) -> None:
        if threading.get_ident() == reader and calls.is_inside:
            # PyTorch would keep them for a backward pass, which tensors of a recording do not allow.
            calls.note(tensors)
        else:
            save(self, *tensors)

    # ``Function.apply`` is C's own since 2.15 (github.com/pytorch/pytorch, pull request 190694), and models may have
    # taken it under another name before. It asks the class for what it calls, which goes by way of its metaclass.
    metaclass: Any = FunctionMeta
    metaclass.__getattribute__ = look_up
    FunctionCtx.save_for_backward = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        del metaclass.__getattribute__
        FunctionCtx.save_for_backward = save  # type: ignore[method-assign]


@dataclass(kw_only=True, slots=True, eq=False)
class _Call:
    """One call of a function.

    Args:
        cls: Its class.
        start: Operators that were recorded before it.
        is_on: Whether it is differentiated.
        saved: What it keeps for its backward pass.
    """

    cls: Any
    start: int
    is_on: bool
    saved: list[torch.Tensor | None] = field(default_factory=list)


class _Calls:
    """The calls of functions that are under way, by what ``Function.apply`` asks their classes for, in turn.

    That is ``_backward_cls``, whose instance is the call's context, then ``forward``, then ``setup_context`` where a
    class has one of its own.
    """

    def __init__(self, recorder: Recorder, flow: GradientFlow) -> None:
        self._recorder, self._flow = recorder, flow
        self._inside: list[_Call] = []
        self._next: tuple[str, _Call] | None = None

    @property
    def is_inside(self) -> bool:
        """Whether a function runs."""
        return bool(self._inside)

    def note(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Take note of what the innermost function keeps."""
        self._inside[-1].saved.extend(tensors)

    def look_up(self, cls: Any, name: str, value: Any) -> Any:
        """What a class gives for a name: in the middle of a call a function that follows it."""
        if name == "_backward_cls":
            self._next = "forward", _Call(cls=cls, start=self._recorder.step_count, is_on=self._flow.is_on)
        elif self._next is not None and name == self._next[0] and cls is self._next[1].cls:
            (_, call), self._next = self._next, None
            return partial(self._run, call, name, value)
        return value

    def _run(self, call: _Call, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._inside.append(call)
        try:
            with self._flow.inside_function(is_on=call.is_on):
                result = function(*given, **named)
        finally:
            self._inside.pop()
        has_context = type.__getattribute__(call.cls, "setup_context") is not _SingleLevelFunction.setup_context
        if name == "forward" and has_context:
            self._next = "setup_context", call
        else:
            self._mark(call, given[1] if has_context else (*given[1:], *named.values()))
        return result

    def _mark(self, call: _Call, arguments: Sequence[Any]) -> None:
        known = set(map(id, arguments))
        if call.is_on and call.saved and all(tensor is None or id(tensor) in known for tensor in call.saved):
            self._recorder.mark_function(call.start, call.cls.__name__)


@contextmanager
def checkpoints_followed(recorder: Recorder, flow: GradientFlow) -> Iterator[None]:
    """Mark what runs under ``torch.utils.checkpoint`` without reentrance, whose activations are computed again.

    Where a model chooses by ``context_fn`` what is kept all the same, everything is taken to be kept.

    Args:
        recorder: Where the operators are recorded.
        flow: Its gradients.
    """
    name = next((name for name in _CHECKPOINTS if hasattr(checkpoint, name)), None)
    if name is None:  # a release that calls something else: what it checkpoints is read as kept
        yield
        return
    original = getattr(checkpoint, name)
    signature = inspect.signature(original)
    reader = threading.get_ident()

    def follow(*args: Any, **kwargs: Any) -> Iterator[None]:
        if threading.get_ident() != reader:
            yield from original(*args, **kwargs)
            return
        context_fn = signature.bind(*args, **kwargs).arguments.get("context_fn", checkpoint.noop_context_fn)
        # The original would keep the arguments for a backward pass that a recording does not run.
        start = recorder.step_count
        yield
        if flow.is_on and context_fn is checkpoint.noop_context_fn:
            recorder.mark_function(start, "checkpoint")

    setattr(checkpoint, name, follow)
    try:
        yield
    finally:
        setattr(checkpoint, name, original)
