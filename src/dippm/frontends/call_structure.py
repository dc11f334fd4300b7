"""How the tensors that a model takes are nested in its arguments, and which arguments are no tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["CallStructure", "Fixed", "Group", "Leaf", "Part"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One tensor.

    Args:
        position: Its place among all tensors of the call.
    """

    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """An argument that is no tensor.

    Args:
        value: What the model is called with.
    """

    value: bool | int | float | str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A dict, list, tuple, named tuple or dataclass.

    Args:
        kind: Its class.
        names: Keys or fields of its parts; empty for a list and a plain tuple.
        parts: What is in it.
    """

    kind: type
    names: tuple[str, ...] = ()
    parts: tuple[Part, ...]


Part = Leaf | Fixed | Group


@dataclass(frozen=True, kw_only=True, slots=True)
class CallStructure:
    """All arguments of a call.

    Args:
        positional: Arguments by position.
        named: Arguments by name.
    """

    positional: tuple[Part, ...] = ()
    named: Mapping[str, Part] = dataclasses.field(default_factory=dict)

    def fill(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with tensors in their places.

        Args:
            tensors: All tensors of the call, in order.

        Returns:
            Arguments by position and by name.
        """
        return (
            tuple(_fill(part, tensors) for part in self.positional),
            {name: _fill(part, tensors) for name, part in self.named.items()},
        )


def _fill(part: Part, tensors: Sequence[Any]) -> Any:
    if isinstance(part, Leaf):
        return tensors[part.position]
    if isinstance(part, Fixed):
        return part.value
    values = [_fill(item, tensors) for item in part.parts]
    if not part.names:
        return part.kind(values)
    named = dict(zip(part.names, values, strict=True))
    return named if part.kind is dict else part.kind(**named)
