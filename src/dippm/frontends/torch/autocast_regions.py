"""Regions in which a model switches autocast on or off itself, while it is read.

PyTorch switches it for devices that may be missing where a model is read, and for the device that tensors are said to
be on: neither says what happens on the GPU of a prediction. So the regions of a model that is read are noted instead of
entered; those of other threads are left alone.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from dippm.costs.autocast import DEFAULT_FORMAT, LOWERS_TO, UNCAST
from dippm.frontends.torch.autocast_decorators import enabled_by_decorator
from dippm.frontends.torch.dtypes import from_torch_dtype
from dippm.graph import Attribute

__all__ = ["AutocastRegions", "region"]

_ASKED = "_dippm_asked"
_LOCK = threading.Lock()
_OF_THREAD = threading.local()
_readers = 0
_originals: dict[str, Any] = {}


# What autocast lowers to; with FP32 it keeps products in that, as where it is off.
_LOWERED = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Region:
    """A region: whether autocast is on in it, None where nobody knows, the format it names, and what entered it."""

    is_enabled: bool | None
    dtype: torch.dtype | None
    entered: object


class AutocastRegions:
    """The regions that a model is in, innermost last.

    Args:
        assumptions: Where to report what cannot be told.
    """

    def __init__(self, assumptions: list[str]) -> None:
        self._assumptions = assumptions
        self._stack: list[_Region] = []

    @property
    def marks(self) -> Mapping[str, Attribute]:
        """Attributes that say what the model wants of autocast where it is now; none where it leaves it to the run."""
        if not self._stack or self._stack[-1].is_enabled is None:
            return {}
        dtype = self._stack[-1].dtype
        if not self._stack[-1].is_enabled or not (dtype is None or dtype in _LOWERED):
            return {UNCAST: True}
        return {LOWERS_TO: DEFAULT_FORMAT if dtype is None else from_torch_dtype(dtype).value}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the regions that this thread enters."""
        before = getattr(_OF_THREAD, "regions", None)
        _OF_THREAD.regions = self
        _begin()
        try:
            yield
        finally:
            _end()
            _OF_THREAD.regions = before

    def enter(self, entered: object, *, is_enabled: bool | None, dtype: torch.dtype | None = None) -> None:
        """Enter a region.

        Args:
            entered: What is entered, to be left again.
            is_enabled: Whether autocast is on in it; None where nobody knows.
            dtype: The format that it names; None for that of the region around it, even where autocast is off there.
        """
        if is_enabled is None:
            self._assumptions.append(
                "Parts of the model have an autocast of their own, and without a GPU nobody can tell whether it is on "
                "or off: they are predicted in the precision that is asked for."
            )
        elif is_enabled and not (dtype is None or dtype in _LOWERED | {torch.float32}):
            self._assumptions.append(
                f"The model asks autocast for {str(dtype).removeprefix('torch.')}, which PyTorch has none for: such "
                "parts are predicted without autocast."
            )
        around = self._stack[-1].dtype if self._stack else None
        self._stack.append(_Region(is_enabled=is_enabled, dtype=around if dtype is None else dtype, entered=entered))

    def leave(self, entered: object) -> bool:
        """Leave what was entered last of a kind; whether it was entered here at all."""
        for place in reversed(range(len(self._stack))):
            if self._stack[place].entered is entered:
                del self._stack[place]
                return True
        return False

    def doubt(self, *, is_enabled: bool) -> None:
        """Report that a program may say something else of autocast than the model does.

        Args:
            is_enabled: Whether the program says that it is on.
        """
        self._assumptions.append(
            "The program switches autocast to BF16 on for parts of it, which are predicted so. It was exported without "
            "a GPU: there PyTorch writes the same of parts for which the model names no format, and which a GPU runs "
            "in FP16. Export it on a GPU, or give the module."
            if is_enabled
            else "The program switches autocast for GPUs off for parts of it, which are predicted so. It was exported "
            "without a GPU: there PyTorch writes the same of parts for which the model switches autocast on. Export it "
            "on a GPU, or give the module."
        )


@contextmanager
def region(*, is_enabled: bool, dtype: torch.dtype | None, is_doubtful: bool) -> Iterator[None]:
    """A region of the model that this thread reads, as a program says it.

    Args:
        is_enabled: Whether autocast is on in it.
        dtype: The format that it names, if any.
        is_doubtful: Whether the model may say something else.
    """
    regions = _regions()
    if regions is None:
        yield
        return
    if is_doubtful:
        regions.doubt(is_enabled=is_enabled)
    own = object()
    regions.enter(own, is_enabled=is_enabled, dtype=dtype)
    try:
        yield
    finally:
        regions.leave(own)


def _begin() -> None:
    global _readers
    with _LOCK:
        _readers += 1
        if _readers == 1:
            for name, wrap in (("__init__", _wrap_init), ("__enter__", _wrap_enter), ("__exit__", _wrap_exit)):
                _originals[name] = getattr(autocast, name)
                setattr(autocast, name, wrap(_originals[name]))


def _end() -> None:
    global _readers
    with _LOCK:
        _readers -= 1
        if _readers == 0:
            for name, original in _originals.items():
                setattr(autocast, name, original)


def _regions() -> AutocastRegions | None:
    return getattr(_OF_THREAD, "regions", None)


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        # Asking for a GPU that is not here is nothing to warn of where a model is read. Else it is as it was asked for:
        # somebody may keep it, and enter it when nobody reads.
        is_missing = _regions() is not None and device_type == "cuda" and not torch.cuda.is_available()
        original(self, device_type, dtype=dtype, enabled=enabled and not is_missing, cache_enabled=cache_enabled)
        setattr(self, _ASKED, (enabled, dtype))

    return init


def _wrap_enter(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def enter(self: Any) -> Any:
        regions = _regions()
        if regions is None:
            return original(self)
        is_enabled, dtype = getattr(self, _ASKED, None) or _made_before(self, sys._getframe(1))
        regions.enter(self, is_enabled=is_enabled, dtype=dtype)
        return self

    return enter


def _made_before(made: Any, caller: FrameType) -> tuple[bool | None, torch.dtype]:
    """What one asks for that was made before the model was read; caller is what enters it."""
    # Without a GPU PyTorch has switched off all that are of one.
    if made._enabled or made.device != "cuda" or torch.cuda.is_available():
        return made._enabled, made.fast_dtype
    while caller.f_code.co_name == "__enter__" and caller.f_back is not None:
        caller = caller.f_back  # that of a class of its own, as of torch.cuda.amp.autocast
    function = caller.f_locals.get("func") if caller.f_code.co_name == "decorate_autocast" else None
    return None if function is None else enabled_by_decorator(function), made.fast_dtype


def _wrap_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def leave(self: Any, *raised: Any) -> Any:
        regions = _regions()
        if regions is not None and regions.leave(self):
            return None
        # What a generator entered while it was read may be left later, by whoever ends it.
        return original(self, *raised) if hasattr(self, "prev") else None

    return leave
