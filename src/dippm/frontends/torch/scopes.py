"""Which module of a model is running."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["ScopeTracker"]


class ScopeTracker:
    """Follows the calls of a module's submodules while it is entered.

    Args:
        module: The root; a submodule's path is its name in ``module.named_modules()``.
    """

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(child): name for name, child in module.named_modules()}
        self._stack: list[str] = []
        self._handles: list[Any] = []

    def current(self) -> str:
        """Path of the innermost module that runs now, ``""`` for the root."""
        return self._stack[-1] if self._stack else ""

    def _enter_module(self, module: nn.Module, _arguments: Any) -> None:
        name = self._names.get(id(module))
        if name is not None:
            self._stack.append(name)

    def _leave_module(self, module: nn.Module, _arguments: Any, _result: Any) -> None:
        name = self._names.get(id(module))
        if name is not None and name in self._stack:
            # A module that left by an exception which its caller caught never reported it.
            while self._stack.pop() != name:
                pass

    def __enter__(self) -> ScopeTracker:
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
