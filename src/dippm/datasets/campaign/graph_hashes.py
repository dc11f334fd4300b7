"""Reads the graphs of measured models in a process of its own, while the device measures."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType

from dippm.datasets.recipes.recipe import Recipe

__all__ = ["GraphHash", "GraphHashes"]

_COMMAND = (sys.executable, "-m", "dippm.datasets.campaign.graph_process")
_LIMIT_S = 180.0
_CHUNK = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphHash:
    """What became of one model's graph.

    Args:
        model_key: The model.
        graph_hash: Fingerprint of its graph, ``""`` where it cannot be read.
        error: Why it cannot be read, else ``""``.
    """

    model_key: str
    graph_hash: str
    error: str = ""


class GraphHashes:
    """A queue of models and one process, niced, that reads their graphs one by one.

    Args:
        limit_s: A graph that takes longer is given up, and the process started anew.
    """

    def __init__(self, *, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._queue: deque[Recipe] = deque()
        self._known: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._current: Recipe | None = None
        self._sent_at = 0.0
        self._received = b""

    @property
    def pending(self) -> int:
        """Models whose graph has not been read yet."""
        return len(self._queue) + (self._current is not None)

    def add(self, recipe: Recipe) -> None:
        """Queue the model of a recipe, unless it was queued before."""
        if recipe.model_key not in self._known:
            self._known.add(recipe.model_key)
            self._queue.append(recipe)

    def advance(self, *, wait_s: float = 0.0) -> list[GraphHash]:
        """Give the process its next model where it has none, and collect what it has read.

        Args:
            wait_s: How long to wait for an answer where none is there yet.
        """
        self._send()
        done = self._receive(wait_s)
        self._send()
        return done

    def __enter__(self) -> GraphHashes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_process()

    def _send(self) -> None:
        if self._current is not None or not self._queue:
            return
        self._current = self._queue.popleft()
        self._sent_at = time.monotonic()
        if self._process is None:
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # What libraries say of a model is no message of the campaign.
                stderr=subprocess.DEVNULL,
            )
        stream = self._process.stdin
        # Where it has died, reading from it says so.
        with contextlib.suppress(BrokenPipeError):
            if stream is not None:
                stream.write(json.dumps(self._current.to_dict()).encode() + b"\n")
                stream.flush()

    def _receive(self, wait_s: float) -> list[GraphHash]:
        if self._current is None or self._process is None or self._process.stdout is None:
            return []
        stream = self._process.stdout
        is_ready, _, _ = select.select([stream], [], [], wait_s)
        if is_ready:
            chunk = os.read(stream.fileno(), _CHUNK)
            if not chunk:
                return [self._give_up("The process that read it died.")]
            self._received += chunk
        line, newline, rest = self._received.partition(b"\n")
        if newline:
            self._received = rest
            self._current = None
            return [GraphHash(**json.loads(line))]
        if time.monotonic() - self._sent_at > self._limit_s:
            return [self._give_up(f"It was not read within {self._limit_s:g} s.")]
        return []

    def _give_up(self, reason: str) -> GraphHash:
        model_key = "" if self._current is None else self._current.model_key
        self._current = None
        self._end_process()
        return GraphHash(model_key=model_key, graph_hash="", error=reason)

    def _end_process(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process, self._received = None, b""
