"""Lets models be imported and read without PyTorch's compiler, which takes longer to import than all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from importlib import import_module
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

__all__ = ["compiler_off", "compiler_postponed"]

_COMPILER = "torch._dynamo"
_FUNCTIONS = "torch._dynamo.utils"


@contextmanager
def compiler_postponed() -> Iterator[None]:
    """Import inside this what needs the compiler only when it runs; does nothing where the compiler is there already.

    torchvision imports one function from it, which one operator calls in a deterministic run on a GPU: a stand-in for
    its module has that function. timm marks functions as not to be compiled: they are marked when they are first
    called. Either then does what it would have done.
    """
    if _COMPILER in sys.modules:
        yield
        return
    disable = torch.compiler.disable
    stand_in = sys.modules[_FUNCTIONS] = _LateFunctions(_FUNCTIONS)
    torch.compiler.disable = partial(_disable_late, disable)
    try:
        yield
    finally:
        torch.compiler.disable = disable
        if sys.modules.get(_FUNCTIONS) is stand_in:
            del sys.modules[_FUNCTIONS]


@contextmanager
def compiler_off() -> Iterator[None]:
    """Have what is compiled run as it was written, in this thread, and compile it where it runs again later.

    A recording would be compiled itself otherwise, and count among the few programs that are kept for a function.
    """
    compiler = torch.compile
    reader = get_ident()
    is_off = [True]

    def compile_late(model: Any = None, **options: Any) -> Any:
        if get_ident() != reader or not callable(model) or isinstance(model, torch.nn.Module):
            return compiler(model, **options) if model is not None else partial(torch.compile, **options)
        compiled: list[Callable[..., Any]] = []

        @wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_off and get_ident() == reader:
                return model(*args, **kwargs)
            if not compiled:
                compiled.append(compiler(model, **options))
            return compiled[0](*args, **kwargs)

        return call

    torch.compile = compile_late
    try:
        with torch.compiler.set_stance("force_eager") if _COMPILER in sys.modules else nullcontext():
            yield
    finally:
        is_off.clear()
        torch.compile = compiler


def _disable_late(
    disable: Callable[..., Any], function: Any = None, recursive: bool = True, *, reason: str | None = None
) -> Any:
    """``torch.compiler.disable`` of a function, done at its first call; of anything else at once."""
    if not callable(function) or isinstance(function, type | torch.nn.Module):
        return disable(function, recursive, reason=reason)
    marked: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not marked:
            marked.append(disable(function, recursive, reason=reason))
        return marked[0](*args, **kwargs)

    return call


class _LateFunctions(ModuleType):
    """Stands where the compiler's functions are imported from, until anything but the one is asked for."""

    @staticmethod
    def is_compile_supported(device_type: str) -> object:
        """Ask the module itself."""
        return _import_functions().is_compile_supported(device_type)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import_functions(), name)


def _import_functions() -> ModuleType:
    if isinstance(sys.modules.get(_FUNCTIONS), _LateFunctions):
        del sys.modules[_FUNCTIONS]
    return import_module(_FUNCTIONS)
