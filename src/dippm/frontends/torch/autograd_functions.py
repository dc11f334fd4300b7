"""Functions of a model's own (``torch.autograd.Function``), and what it computes again for its backward pass.

A function's backward pass is run once right after its forward pass, on gradients that have a shape and no data, and
recorded apart. Where that fails, its operators have the gradients that they always have; all of them run again if it
keeps nothing but its arguments. So does what runs under ``torch.utils.checkpoint``, which is such a function where it
is reentrant.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx, FunctionMeta, _SingleLevelFunction
from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import BackwardHook

from dippm.frontends.torch.function_backward import FunctionCall, record_backward, take_arguments, view_arguments
from dippm.frontends.torch.gradient_flow import GradientFlow
from dippm.frontends.torch.recorder import Recorder

__all__ = ["gradients_followed"]

# What ``torch.utils.checkpoint.checkpoint`` calls without reentrance: the first since 2.15, the second before.
_CHECKPOINTS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


@contextmanager
def gradients_followed(recorder: Recorder) -> Iterator[None]:
    """In training, let the module see that gradients are wanted, and take note of what it does about them.

    Args:
        recorder: Where the operators are recorded; it has a flow of gradients where something is trained.
    """
    flow = recorder.flow
    if flow is None:
        yield
        return
    with (
        torch.enable_grad(),
        _functions_followed(recorder, flow),
        _checkpoints_followed(recorder, flow),
        _module_hooks_left_out(),
    ):
        yield


@contextmanager
def _functions_followed(recorder: Recorder, flow: GradientFlow) -> Iterator[None]:
    """Record the backward passes of functions, and mark what runs inside of those whose backward pass runs it again.

    What other threads run meanwhile is theirs.

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

    def needs(self: Any) -> tuple[bool, ...]:
        is_read = threading.get_ident() == reader and calls.is_inside
        return calls.needs if is_read else needed.__get__(self)

    context_class: Any = BackwardCFunction
    needed = context_class.needs_input_grad
    # ``Function.apply`` is C's own since 2.15 (github.com/pytorch/pytorch, pull request 190694), and models may have
    # taken it under another name before. It asks the class for what it calls, which goes by way of its metaclass.
    metaclass: Any = FunctionMeta
    metaclass.__getattribute__ = look_up
    context_class.needs_input_grad = property(needs)
    FunctionCtx.save_for_backward = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        del metaclass.__getattribute__
        del context_class.needs_input_grad
        FunctionCtx.save_for_backward = save  # type: ignore[method-assign]


@contextmanager
def _module_hooks_left_out() -> Iterator[None]:
    """Leave out what is to be done with the gradients of whole modules: it is hung on nodes that a recording lacks.

    What other threads run meanwhile is theirs.
    """
    hang: Callable[..., Any] = BackwardHook._apply_on_tensors
    reader = threading.get_ident()

    def pass_on(self: Any, fn: Any, args: Any) -> Any:
        return (args, None) if threading.get_ident() == reader else hang(self, fn, args)

    BackwardHook._apply_on_tensors = pass_on  # type: ignore[method-assign]
    try:
        yield
    finally:
        BackwardHook._apply_on_tensors = hang  # type: ignore[method-assign]


class _Calls:
    """The calls of functions that are under way, by what ``Function.apply`` asks their classes for, in turn.

    That is ``_backward_cls``, whose instance is the call's context, then ``forward``, then ``setup_context`` where a
    class has one of its own.
    """

    def __init__(self, recorder: Recorder, flow: GradientFlow) -> None:
        self._recorder, self._flow = recorder, flow
        self._inside: list[FunctionCall] = []
        self._next: tuple[str, FunctionCall] | None = None

    @property
    def is_inside(self) -> bool:
        """Whether a function runs."""
        return bool(self._inside)

    @property
    def needs(self) -> tuple[bool, ...]:
        """Which arguments of the innermost function need a gradient."""
        return self._inside[-1].needs

    def note(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Take note of what the innermost function keeps."""
        self._inside[-1].saved.extend(tensors)

    def look_up(self, cls: Any, name: str, value: Any) -> Any:
        """What a class gives for a name: in the middle of a call a function that follows it."""
        if name == "_backward_cls":
            self._next = "forward", FunctionCall(cls=cls, start=self._recorder.step_count, is_on=self._flow.is_on)
        elif self._next is not None and name == self._next[0] and cls is self._next[1].cls:
            (_, call), self._next = self._next, None
            return partial(self._run, call, name, value)
        return value

    def _run(self, call: FunctionCall, name: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        has_context = type.__getattribute__(call.cls, "setup_context") is not _SingleLevelFunction.setup_context
        if name == "forward":
            take_arguments(self._recorder, self._flow, call, (*given[0 if has_context else 1 :], *named.values()))
        if name != "forward" or not has_context:
            call.context = given[0]
        self._inside.append(call)
        try:
            with self._flow.inside_function(is_on=call.is_on):
                result = function(*given, **named)
                if name == "forward" and call.is_on:
                    result = view_arguments(self._recorder, call, result)
        finally:
            self._inside.pop()
        if name == "forward" and has_context:
            self._next = "setup_context", call
        elif not self._record_backward(call, given[2] if has_context else result):
            self._mark(call, given[1] if has_context else (*given[1:], *named.values()))
        return result

    def _record_backward(self, call: FunctionCall, result: Any) -> bool:
        """Record the backward pass of a function that has run; whether there is one and it could be."""
        # What runs around it may have a gradient of its own.
        is_inner = any(other.cls is not CheckpointFunction for other in self._inside)
        if is_inner or call.cls is CheckpointFunction:
            return False
        self._inside.append(call)
        try:
            return record_backward(self._recorder, self._flow, call, result)
        finally:
            self._inside.pop()

    def _mark(self, call: FunctionCall, arguments: Sequence[Any]) -> None:
        known = set(map(id, arguments))
        if call.is_on and call.saved and all(tensor is None or id(tensor) in known for tensor in call.saved):
            self._recorder.mark_function(call.start, call.cls.__name__)


@contextmanager
def _checkpoints_followed(recorder: Recorder, flow: GradientFlow) -> Iterator[None]:
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
