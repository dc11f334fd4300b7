"""The folder of an exploration while it runs: what was asked for, and every outcome as soon as it is known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dippm.api.exploration.trials import Outcome
from dippm.api.folder_lock import lock_folder
from dippm.errors import DippmError, UsageError

__all__ = ["Journal"]

_PLAN, _LINES, _FRONT = "plan.json", "journal.jsonl", "front.json"
# What a run leaves that was stopped before its plan was written.
_BARE = {"lock", f"{_PLAN}.part"}


class Journal:
    """Outcomes by the key of their point, on disk; a process that ends at any moment loses the line under way at most.

    One run at a time writes to it. Lines that cannot be read are left out, and their points predicted again.

    Args:
        folder: Where it lies; made where it is missing.
        plan: What decides the outcomes and their order, as plain values. Of those that are there it may differ in one
            thing: more trials may be asked for, of which those that are known are the first.
        resume: Whether to go on with what is there.
        space_file: The file of the space, for messages.

    Raises:
        UsageError: ``explore.unfinished`` or ``explore.finished`` where a journal is there and is not to be gone on
            with, ``explore.other_plan`` where it is of another plan, ``explore.running`` where another run writes to
            it, ``explore.foreign_folder`` where the folder holds other files and no exploration,
            ``explore.unwritable``.
        DippmError: ``explore.damaged`` where the plan cannot be read.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], *, resume: bool, space_file: Path | None = None) -> None:
        self._folder, self._space_file = folder, space_file
        self.known: dict[str, Outcome] = {}
        self._left_out = 0
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._refuse_foreign()
                self._lock(opened)
                if (folder / _PLAN).exists():
                    self._check_plan(plan, resume=resume)
                    self._read()
                else:
                    self._write_plan(plan)
                self._lines = opened.enter_context((folder / _LINES).open("a", encoding="utf-8"))
            except OSError as exc:
                raise _unwritable(folder, exc) from exc
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be gone on with."""
        if not self._left_out:
            return ()
        return (f"Lines of '{_LINES}' that are damaged and were left out: {self._left_out}.",)

    def keep(self, key: str, outcome: Outcome) -> None:
        """Write an outcome down.

        Raises:
            UsageError: ``explore.unwritable``, such as where the disk is full.
        """
        try:
            self._lines.write(json.dumps({"point": key, **outcome.to_dict()}) + "\n")
            self._lines.flush()
        except OSError as exc:
            raise _unwritable(self._folder, exc) from exc
        self.known[key] = outcome

    def _refuse_foreign(self) -> None:
        """Refuse a folder that is used for something else; files that are hidden do not count."""
        names = sorted(path.name for path in self._folder.iterdir() if not path.name.startswith("."))
        others = [name for name in names if name not in _BARE]
        if others and _PLAN not in names:
            raise UsageError(
                f"'{self._folder}' holds no exploration, but other files such as '{others[0]}'.",
                code="explore.foreign_folder",
                cure="Give a new folder, or an empty one.",
            )

    def _lock(self, opened: ExitStack) -> None:
        try:
            opened.enter_context(lock_folder(self._folder))
        except BlockingIOError as exc:
            raise UsageError(
                f"Another run is at work on the exploration in '{self._folder}'.",
                code="explore.running",
                cure="Wait until it ends.",
            ) from exc

    def _check_plan(self, plan: Mapping[str, Any], *, resume: bool) -> None:
        try:
            found = json.loads((self._folder / _PLAN).read_text(encoding="utf-8"))
            differing = list(_differences(found, plan))
        except (ValueError, AttributeError, TypeError) as exc:
            raise DippmError(
                f"'{self._folder / _PLAN}' is damaged.", code="explore.damaged", cure="Start anew in another folder."
            ) from exc
        if not resume:
            is_finished = (self._folder / _FRONT).exists()
            raise UsageError(
                f"There is {'a finished' if is_finished else 'an unfinished'} exploration in '{self._folder}' already.",
                code="explore.finished" if is_finished else "explore.unfinished",
                cure="Give another folder, or go on with it: --resume (in Python resume=True)"
                + (" and more trials." if is_finished else "."),
            )
        for name, before, now in differing:
            if name == "trials" and isinstance(before, int) and before < now:
                continue
            raise UsageError(
                f"The exploration in '{self._folder}' is another: {self._tell(name, before, now)}.",
                code="explore.other_plan",
                cure="Ask for the same, or give another folder.",
            )
        if differing:
            self._write_plan(plan)

    def _tell(self, name: str, before: object, now: object) -> str:
        """What differs, for people: hashes say nothing to them."""
        if name == "space":
            return f"the file '{self._space_file}' has changed since" if self._space_file else "its space has changed"
        if name == "device_sha256":
            return "the figures of its device have changed since"
        if name == "trials":
            return f"it has {before} trials, and now {now} are asked for"
        return f"its {name} is {before!r:.120}, and now it is {now!r:.120}"

    def _write_plan(self, plan: Mapping[str, Any]) -> None:
        unfinished = self._folder / f"{_PLAN}.part"
        with unfinished.open("w", encoding="utf-8") as target:
            target.write(json.dumps(plan, indent=1) + "\n")
            target.flush()
            os.fsync(target.fileno())
        unfinished.replace(self._folder / _PLAN)

    def _read(self) -> None:
        path = self._folder / _LINES
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            # The last line was cut off with the process that wrote it.
            os.truncate(path, whole)
        for line in content[:whole].split(b"\n")[:-1]:
            try:
                given = json.loads(line)
                self.known[str(given["point"])] = Outcome.from_dict(given)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self._left_out += 1


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, former and present value of what differs, parts of a mapping each by itself."""
    for name in dict.fromkeys((*now, *before)):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from ((f"{name}.{part}", *values) for part, *values in _differences(old, new))
        elif old != new:
            yield name, old, new


def _unwritable(folder: Path, exc: OSError) -> UsageError:
    return UsageError(f"'{folder}' cannot be written to: {exc.strerror or exc}.", code="explore.unwritable")
