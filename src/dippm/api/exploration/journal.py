"""The folder of an exploration while it runs: what was asked for, and every outcome as soon as it is known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dippm.api.exploration.trials import Outcome
from dippm.errors import DippmError, UsageError

__all__ = ["Journal"]

_PLAN, _LINES = "plan.json", "journal.jsonl"


class Journal:
    """Outcomes by the key of their point, on disk; a process that ends at any moment loses the line under way at most.

    Args:
        folder: Where it lies; made where it is missing.
        plan: What decides the outcomes and their order, as plain values.
        resume: Whether to go on with what is there.

    Raises:
        UsageError: ``explore.unfinished`` where a journal is there and is not to be gone on with,
            ``explore.other_plan`` where it is of another plan, ``explore.unwritable``.
        DippmError: ``explore.damaged``.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], *, resume: bool) -> None:
        self._folder = folder
        self.known: dict[str, Outcome] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / _PLAN).exists():
                self._check_plan(plan, resume=resume)
                self._read()
            else:
                self._write_plan(plan)
            self._lines = (folder / _LINES).open("a", encoding="utf-8")
        except OSError as exc:
            raise _unwritable(folder, exc) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

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

    def _check_plan(self, plan: Mapping[str, Any], *, resume: bool) -> None:
        try:
            found = json.loads((self._folder / _PLAN).read_text(encoding="utf-8"))
            differing = [name for name in dict.fromkeys((*plan, *found)) if found.get(name) != plan.get(name)]
        except (ValueError, AttributeError, TypeError) as exc:
            raise self._damaged(_PLAN) from exc
        if not resume:
            raise UsageError(
                f"There is an exploration in '{self._folder}' already.",
                code="explore.unfinished",
                cure="Go on with it by resume, or give another folder.",
            )
        if differing:
            name = differing[0]
            raise UsageError(
                f"The exploration in '{self._folder}' is another: its {name} is {found.get(name)!r:.120}, "
                f"and now it is {plan.get(name)!r:.120}.",
                code="explore.other_plan",
                cure="Ask for the same, or give another folder.",
            )

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
        try:
            for line in content[:whole].splitlines():
                given = json.loads(line)
                self.known[str(given["point"])] = Outcome.from_dict(given)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise self._damaged(_LINES) from exc

    def _damaged(self, name: str) -> DippmError:
        return DippmError(
            f"'{self._folder / name}' is damaged.", code="explore.damaged", cure="Start anew in another folder."
        )


def _unwritable(folder: Path, exc: OSError) -> UsageError:
    return UsageError(f"'{folder}' cannot be written to: {exc.strerror or exc}.", code="explore.unwritable")
