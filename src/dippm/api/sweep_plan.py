"""What a sweep is going to do, written down so that another run can go on with it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dippm.api.deciding_versions import find_versions
from dippm.api.sweep_rows import SweepTask
from dippm.api.sweep_settings import SweepSettings
from dippm.frontends.python_file import find_python_model
from dippm.frontends.zoo import is_zoo_name

__all__ = ["SweepPlan"]

# What a row holds; another one for other columns.
_FORMAT = 2
# Rows that are in memory at once: those of a task, and those of a part.
_ROWS_PER_TASK = 4096
_ROWS_PER_PART = 8192
_TASKS_PER_PART = 128
# What builds models by name decides what is read.
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "diffusers")
_DIFFERENCES_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """Models in order, and how their rows are cut into tasks and parts.

    Both follow from the models and the settings alone, so that the table is the same however the work is done.

    Args:
        models: Paths and names.
        settings: What each is asked.
        content: What rows follow from: settings, versions, and the state of each file.
    """

    models: tuple[str, ...]
    settings: SweepSettings
    content: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, models: Sequence[str], settings: SweepSettings) -> SweepPlan:
        """Plan a sweep, and look at the files as they are now."""
        content = {
            "format": _FORMAT,
            "versions": find_versions(_LIBRARIES if any(map(is_zoo_name, models)) else ()),
            "settings": settings.describe(),
            "models": [[model, *_state_of(model)] for model in models],
        }
        return cls(models=tuple(models), settings=settings, content=content)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.models) * self._stretches

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-self.tasks // self._tasks_per_part)

    @property
    def rows_per_task(self) -> int:
        """Rows of a task of which nothing is refused."""
        return min(len(self.settings.batches), self._batches_per_task) * len(self.settings.devices)

    def part_of(self, task: int) -> int:
        """The part that a task's rows go to."""
        return task // self._tasks_per_part

    def model_of(self, task: int) -> int:
        """The place of a task's model."""
        return task // self._stretches

    def tasks_of(self, part: int) -> range:
        """Places of a part's tasks."""
        return range(part * self._tasks_per_part, min((part + 1) * self._tasks_per_part, self.tasks))

    def task(self, index: int) -> SweepTask:
        """A task by its place."""
        model, stretch = divmod(index, self._stretches)
        size = self._batches_per_task
        return SweepTask(
            index=index,
            model=self.models[model],
            batches=self.settings.batches[stretch * size : (stretch + 1) * size],
        )

    def to_text(self) -> str:
        """The plan as a file holds it, in ASCII: names of files may have bytes that are no text."""
        return json.dumps(self.content, separators=(",", ":"))

    def to_hash(self) -> str:
        """What tells this plan from another one."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()[:16]

    def to_summary(self) -> str:
        """Settings and versions, as the table holds them."""
        return json.dumps({name: self.content[name] for name in ("format", "versions", "settings")})

    def differences(self, text: str) -> list[str]:
        """How the plan of a file differs from this one, in words; empty where it does not."""
        try:
            before = json.loads(text)
            if before == json.loads(self.to_text()):
                return []
            if before["format"] != _FORMAT:
                return ["a dippm began it whose tables have other columns"]
            found = list(_compare("", before, self.content))
        except (ValueError, TypeError, KeyError, AttributeError):
            found = ["its plan cannot be read"]
        more = len(found) - _DIFFERENCES_SHOWN
        return found[:_DIFFERENCES_SHOWN] + ([f"{more} more"] if more > 0 else [])

    @property
    def _batches_per_task(self) -> int:
        return max(1, _ROWS_PER_TASK // len(self.settings.devices))

    @property
    def _stretches(self) -> int:
        """Tasks per model."""
        return -(-len(self.settings.batches) // self._batches_per_task)

    @property
    def _tasks_per_part(self) -> int:
        return max(1, min(_ROWS_PER_PART // self.rows_per_task, _TASKS_PER_PART))


def _state_of(model: str) -> list[object]:
    """Size and time of a model's file, a hash of those of its folder's files, or zeros for what is neither here."""
    nothing: list[object] = [0, 0]
    if is_zoo_name(model):
        return nothing
    named = find_python_model(Path(model))
    try:
        state = os.stat(model if named is None else named[0])
        if stat.S_ISDIR(state.st_mode):
            return [_hash_states(Path(model))]
    except (OSError, ValueError):
        return nothing
    return [state.st_size, state.st_mtime_ns]


def _hash_states(folder: Path) -> str:
    """Names, sizes and times of a folder's files, short."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state = path.stat()
            digest.update(f"{os.fspath(path)!a} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _compare(where: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*before, *now]):
            inner = f"{where}.{name}" if where else name
            if name == "models":
                yield from _compare_models(before[name], now[name])
            else:
                yield from _compare(inner, before.get(name), now.get(name))
    elif before != now:
        yield f"{where} was {_shorten(before)} and is {_shorten(now)}"


def _compare_models(before: list[list[Any]], now: list[list[Any]]) -> Iterator[str]:
    if len(before) != len(now):
        yield f"there were {len(before):,} models and are {len(now):,}"
        return
    for (old, *old_state), (new, *new_state) in zip(before, now, strict=True):
        if old != new:
            yield f"where '{old}' stood '{new}' stands"
        elif old_state != new_state:
            yield f"'{new}' has changed"


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
