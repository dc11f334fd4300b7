"""The model of a point that an exploration found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dippm.api.exploration.space import BuiltModel, Space, load_space
from dippm.errors import UsageError

__all__ = ["rebuild"]


def rebuild(
    front: str | os.PathLike[str], number: int, *, space: str | os.PathLike[str] | Space | None = None
) -> BuiltModel:
    """Build a model of a front again.

    A Python space runs only where its content is what the front names. The front names the file too: of one that is not
    your own, look at that file first, or give the space.

    Args:
        front: The ``front.json`` of an exploration, or its folder.
        number: Number of the point, from 1, as tables show it.
        space: The space; None takes the file that was explored, whose code is run where it is Python.

    Raises:
        UsageError: ``explore.no_front`` where the file is not there or no such, ``explore.no_point``,
            ``explore.no_space``, or ``explore.space_changed`` where the file is not what was explored.
        DippmError: The space cannot be read or its model not be built.
    """
    path = Path(front)
    path = path / "front.json" if path.is_dir() else path
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        origin, points = given["space"], given["front"]
        choices = [dict(point["choices"]) for point in points]
    except OSError as exc:
        raise UsageError(f"'{path}' cannot be read: {exc.strerror or exc}.", code="explore.no_front") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"'{path}' is no front of an exploration.", code="explore.no_front") from exc
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(choices):
        raise UsageError(
            f"The front in '{path}' has points 1 to {len(choices)}. Got {number!r} instead.", code="explore.no_point"
        )
    found = _open_space(origin, space)
    return found.build_model(found.check(choices[number - 1]))


def _open_space(origin: Mapping[str, Any], space: str | os.PathLike[str] | Space | None) -> Space:
    if isinstance(space, Space):
        return space
    if origin.get("path") is not None:
        return load_space(str(origin["path"]) if space is None else space, sha256=str(origin.get("sha256")))
    if space is None:
        raise UsageError(
            "The space was made in Python.", code="explore.no_space", cure="Give it, or the file that it is in now."
        )
    return load_space(space)
