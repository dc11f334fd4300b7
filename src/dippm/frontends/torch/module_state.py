"""Leaves a module as it was found, and tells whether a forward pass changed it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import _lru_cache_wrapper
from operator import is_
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from dippm.errors import UsageError

__all__ = ["ModuleState"]

_CONTAINERS = (dict, list, set)
_METHODS = (classmethod, staticmethod, MethodType)
# Hooks are given to a module from outside; copying those of every module takes longer than all the rest.
_HOOKS = frozenset(name for name in nn.Module().__dict__ if "hook" in name)
# A forward pass may add some of these, and note in the module that it did. New ones stand last.
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class ModuleState:
    """What a module and its submodules hold, one level deep into their dicts, lists and sets.

    Modules cache tensors in themselves (position tables, masks), or in functions whose results ``functools.lru_cache``
    remembers. Those of a recording have no data and must not stay; between two recordings they may, because a second
    call finds the caches of the first.

    Args:
        module: The root of the modules to watch.
    """

    def __init__(self, module: nn.Module) -> None:
        self._root = module
        self._modules = list(module.modules())
        self._is_training = [bool(getattr(child, "training", False)) for child in self._modules]
        self._hook_counts = [_count_hooks(child) for child in self._modules]
        self._saved = self._capture()
        self._remembering = list(_remembering_functions(self._modules))
        self._misses = self._count_misses()

    def evaluate(self) -> None:
        """Put all modules in evaluation mode."""
        for child, was_training in zip(self._modules, self._is_training, strict=True):
            if was_training:
                child.training = False

    def train(self) -> None:
        """Put the module in training mode by its own ``train``, which may keep some of its layers out of it.

        Raises:
            UsageError: ``torch.train_failed`` where that raises.
        """
        try:
            self._root.train()
        except Exception as exc:
            raise UsageError(
                f"{type(self._root).__name__}.train() fails: {type(exc).__name__}: {exc}.",
                code="torch.train_failed",
                cure="A module that can be trained must take train(); give one that does.",
            ) from exc

    def fingerprint(self) -> list[int]:
        """Identities of all that the modules hold; equal as long as nothing is stored in them."""
        found: list[int] = []
        for child, _, _ in self._saved:
            found += map(id, child.__dict__.values())
            for value in _containers(child.__dict__):
                found += map(id, value.values() if isinstance(value, dict) else value)
        return found + self._count_misses()

    def restore(self) -> None:
        """Give the modules back all that they held at first, and nothing else."""
        for child, state, contents in self._saved:
            child.__dict__.clear()
            child.__dict__.update(state)
            for container, content in contents:
                if _is_same(container, content):
                    continue
                container.clear()
                if isinstance(container, list):
                    container.extend(content)
                else:
                    container.update(content)
        for child, counts in zip(self._modules, self._hook_counts, strict=True):
            if _count_hooks(child) != counts:
                for name, count in zip(_FORWARD_HOOKS, counts, strict=True):
                    hooks = getattr(child, name)
                    while len(hooks) > count:
                        hooks.popitem()
        for function, before, after in zip(self._remembering, self._misses, self._count_misses(), strict=True):
            if before != after:  # it has no way to forget the new results alone
                function.cache_clear()
        for child, was_training in zip(self._modules, self._is_training, strict=True):
            if bool(getattr(child, "training", False)) != was_training:
                child.training = was_training

    def _count_misses(self) -> list[int]:
        return [function.cache_info().misses for function in self._remembering]

    def _capture(self) -> list[tuple[nn.Module, dict[str, Any], list[tuple[Any, Any]]]]:
        return [
            (child, dict(child.__dict__), [(value, _plain_copy(value)) for value in _containers(child.__dict__)])
            for child in self._modules
            if not isinstance(child, torch.jit.ScriptModule)
        ]


def _remembering_functions(modules: Sequence[nn.Module]) -> Iterator[_lru_cache_wrapper[Any]]:
    """The functions that remember results, of the modules' classes or beside these in their source files."""
    classes = {base for kind in set(map(type, modules)) for base in kind.__mro__ if not _is_torch(base.__module__)}
    files = [vars(sys.modules[name]) for name in {kind.__module__ for kind in classes} if name in sys.modules]
    values = (value for names in (*map(vars, classes), *files) for value in list(names.values()))
    yield from {id(found): found for value in values for found in _remembering_parts(value)}.values()


def _remembering_parts(value: Any) -> Iterator[_lru_cache_wrapper[Any]]:
    """What remembers results of a function: itself, or what a wrapper around it holds."""
    # By its type alone: what stands for a package that is not installed may raise whatever else it is asked for.
    function = value.__func__ if issubclass(type(value), _METHODS) else value
    kind = type(function)
    if issubclass(kind, _lru_cache_wrapper):
        yield function
    elif issubclass(kind, FunctionType) and hasattr(function, "__wrapped__"):
        for cell in function.__closure__ or ():
            held = _held_in(cell)
            if isinstance(held, _lru_cache_wrapper):
                yield held


def _held_in(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] in {"builtins", "torch"}


def _count_hooks(module: nn.Module) -> tuple[int, ...]:
    return tuple(len(getattr(module, name, ())) for name in _FORWARD_HOOKS)


def _containers(state: dict[str, Any]) -> list[Any]:
    return [value for name, value in state.items() if isinstance(value, _CONTAINERS) and name not in _HOOKS]


def _plain_copy(container: Any) -> Any:
    """What a container holds, in one of Python's own: a class of the model's may do anything when it is copied."""
    return next(kind(container) for kind in _CONTAINERS if isinstance(container, kind))


def _is_same(container: Any, content: Any) -> bool:
    """Whether a container holds the very objects of its copy; some of those that do take no changes at all."""
    held, kept = (_members(each) for each in (container, content))
    return len(held) == len(kept) and all(map(is_, held, kept))


def _members(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)
