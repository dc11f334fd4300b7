"""What a function's own decorator asks of autocast, read from its source.

Without a GPU PyTorch switches off every autocast of one as it is made, and keeps no word of what was asked. A decorator
is made as its module is imported, before anything here can note it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

__all__ = ["enabled_by_decorator"]

_MOST_DECORATORS = 16


def enabled_by_decorator(function: Callable[..., Any]) -> bool | None:
    """Whether the decorator of autocast around a function switches it on; None where its source does not tell.

    Args:
        function: What was decorated, as its decorator was given it: other decorators may be around it already.
    """
    for depth in range(_MOST_DECORATORS):
        decorators = _decorators(function)
        wrapped = getattr(function, "__wrapped__", None)
        if decorators is None:
            return None
        if wrapped is None or any(map(_is_autocast, decorators)):
            # Each decorator that is around it already has wrapped it once.
            place = len(decorators) - 1 - depth
            return _asked(decorators[place]) if place >= 0 and _is_autocast(decorators[place]) else None
        function = wrapped
    return None


def _decorators(function: Callable[..., Any]) -> list[ast.expr] | None:
    """The decorators in a function's own source that wrap it, outermost first; None where there is none."""
    code = getattr(function, "__code__", None)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code))) if code is not None else None
    except (OSError, TypeError, SyntaxError):
        return None
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    # A decorator under another name, or one that is made elsewhere, may be any.
    return [each for each in tree.body[0].decorator_list if not _keeps_function(each)]


def _keeps_function(decorator: ast.expr) -> bool:
    """Whether it gives back what it is given, as ``functools.wraps`` does."""
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "wraps"


def _is_autocast(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).split(".")[-1] == "autocast"


def _asked(decorator: ast.expr) -> bool | None:
    """What a call says by a plain ``True`` or ``False``, or by saying nothing; None for anything else."""
    if not isinstance(decorator, ast.Call) or any(isinstance(each, ast.Starred) for each in decorator.args):
        return None
    if any(keyword.arg is None for keyword in decorator.keywords):
        return None
    named = [keyword.value for keyword in decorator.keywords if keyword.arg == "enabled"]
    # The first argument of torch.cuda.amp.autocast, the third of torch.autocast: a device and a format are no booleans.
    given = named or [each for each in decorator.args if not _is_device_or_format(each)]
    if not given:
        return True
    value = given[0].value if isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, bool) else None


def _is_device_or_format(argument: ast.expr) -> bool:
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return is_text or ast.unparse(argument).startswith("torch.")
