"""Regions in which a model switches autocast on or off itself, while it is read.

PyTorch switches it for devices that may be missing where a model is read, and for the device that tensors are said to
be on: neither says what happens on the GPU of a prediction. So the regions of a model that is read are noted instead of
entered; those of other threads are left alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

__all__ = ["AutocastRegions", "region"]

_ASKED = "_dippm_asked_enabled"
_LOCK = threading.Lock()
_OF_THREAD = threading.local()
_readers = 0
_originals: dict[str, Any] = {}


class AutocastRegions:
    """The regions that a model is in, innermost last.

    Args:
        assumptions: Where to report what cannot be told, or is not followed.
    """

    def __init__(self, assumptions: list[str]) -> None:
        self._assumptions = assumptions
        self._stack: list[bool | None] = []

    @property
    def is_off(self) -> bool:
        """Whether the model has switched autocast off where it is now."""
        return bool(self._stack) and self._stack[-1] is False

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

    def enter(self, *, is_enabled: bool | None) -> None:
        """Enter a region.

        Args:
            is_enabled: Whether autocast is on in it; None where nobody knows.
        """
        if is_enabled is not False:
            self._assumptions.append(
                "The model switches autocast on for parts of it: they are predicted in the precision that is asked "
                "for, as all others are."
                if is_enabled
                else "Some functions of the model have an autocast of their own, and without a GPU nobody can tell "
                "whether it is on or off: they are predicted in the precision that is asked for."
            )
        self._stack.append(is_enabled)

    def leave(self) -> None:
        """Leave the innermost region."""
        self._stack.pop()


@contextmanager
def region(*, is_enabled: bool) -> Iterator[None]:
    """A region of the model that this thread reads, as a program says it.

    Args:
        is_enabled: Whether autocast is on in it.
    """
    regions = _regions()
    if regions is None:
        yield
        return
    regions.enter(is_enabled=is_enabled)
    try:
        yield
    finally:
        regions.leave()


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
        setattr(self, _ASKED, enabled)

    return init


def _wrap_enter(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def enter(self: Any) -> Any:
        regions = _regions()
        if regions is None:
            return original(self)
        asked = getattr(self, _ASKED, None)
        # Made before it was read: without a GPU PyTorch has switched off all that are of one.
        is_known = self._enabled or self.device != "cuda" or torch.cuda.is_available()
        regions.enter(is_enabled=(self._enabled if is_known else None) if asked is None else asked)
        return self

    return enter


def _wrap_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def leave(self: Any, *raised: Any) -> Any:
        regions = _regions()
        if regions is None:
            return original(self, *raised)
        regions.leave()
        return None

    return leave
