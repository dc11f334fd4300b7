"""What decorators of autocast say, read from the source of what they decorate."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.amp.autocast_mode import autocast

from dippm.frontends.torch.autocast_decorators import enabled_by_decorator

IS_ENABLED = True
SETTINGS = {"enabled": False}
KEPT = autocast("cpu", enabled=False)


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@autocast("cpu", enabled=False)
def off() -> None: ...


@torch.autocast("cpu", torch.bfloat16, False)
def off_by_place() -> None: ...


@_same
@torch.amp.autocast("cpu", dtype=torch.bfloat16)
def on_below_another() -> None: ...


@torch.autocast("cpu", enabled=True)
async def on_later() -> None: ...


@autocast("cpu", enabled=IS_ENABLED)
def by_a_name() -> None: ...


@autocast("cpu", **SETTINGS)
def by_settings() -> None: ...


@KEPT
def by_one_made_before() -> None: ...


@autocast("cpu")
@autocast("cpu", enabled=False)
def by_two() -> None: ...


@autocast("cpu")
@KEPT
def by_another_name_inside() -> None: ...


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    @autocast("cpu", enabled=False)
    @functools.wraps(function)
    def inner() -> Any:
        return function()

    return inner


@autocast("cpu", enabled=True)
@_outside
def by_a_decorator_of_its_own() -> None: ...


class Holds:
    """A method is read as a function is."""

    @autocast("cpu", enabled=False)
    def off(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (off, False),
        (off_by_place, False),
        (on_below_another, True),
        (on_later, True),
        (Holds.off, False),
        (by_a_name, None),
        (by_settings, None),
        (by_one_made_before, None),
        (by_two, False),
        (by_another_name_inside, None),
        (_same, None),
    ],
)
def test_what_a_plain_decorator_says_is_known(function: Callable[..., Any], expected: bool | None) -> None:
    assert enabled_by_decorator(inspect.unwrap(function)) is expected


def test_each_of_several_decorators_is_told_apart() -> None:
    """What a decorator was given is what ``__wrapped__`` names."""
    assert enabled_by_decorator(by_two.__wrapped__) is True
    assert enabled_by_decorator(by_another_name_inside.__wrapped__) is True
    # The outer one is around a function whose decorators are another's.
    outer = by_a_decorator_of_its_own
    assert enabled_by_decorator(outer.__wrapped__) is None
    assert enabled_by_decorator(outer.__wrapped__.__wrapped__) is False


def test_what_has_no_source_says_nothing() -> None:
    scope: dict[str, Any] = {}
    exec("def made(): pass", scope)  # noqa: S102
    for function in (scope["made"], len, functools.partial(off), lambda: None):
        assert enabled_by_decorator(function) is None
