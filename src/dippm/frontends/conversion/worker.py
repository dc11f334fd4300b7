"""The converter's side of a conversion: what a module that is run as a converter calls."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from dippm.errors import FULL_DISK_ERRORS, DippmError, MissingExtraError

__all__ = ["ConversionNotes", "ConversionRequest", "run_worker"]

_LONGEST_MESSAGE = 2000


@dataclass(kw_only=True, slots=True)
class ConversionNotes:
    """What a converter has to say of its result.

    Args:
        warnings: What the user is to be told, in words.
        used_hints: Whether the result depends on the request's hints.
    """

    warnings: list[str] = field(default_factory=list)
    used_hints: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionRequest:
    """What to convert.

    Args:
        source: The model: a file or a folder.
        output: An empty folder; ``model.onnx`` is to be written in it.
        options: What the frontend wants the converter to know.
        name: The model's name in messages.
        reply: Where this process answers.
        hints: What the caller knows, for a model that does not say it itself.
        notes: To be filled in by the converter.
    """

    source: Path
    output: Path
    options: Mapping[str, Any]
    name: str
    reply: Path
    hints: Mapping[str, Any] = field(default_factory=dict)
    notes: ConversionNotes = field(default_factory=ConversionNotes)

    @property
    def onnx_path(self) -> Path:
        """Where the result belongs."""
        return self.output / "model.onnx"

    def answer_if_crashed(self, error: DippmError) -> None:
        """Leave an answer that holds should a converter end this process.

        Args:
            error: What the caller is to be told then.
        """
        self.reply.write_text(json.dumps({"crash": _described(error)}), encoding="utf-8")


def run_worker(convert: Callable[[ConversionRequest], None]) -> NoReturn:
    """Answer the request that this process was started with, and end it.

    A :class:`~dippm.errors.DippmError` reaches the caller as it is, any other exception as one that names it.

    Args:
        convert: Writes ``request.onnx_path``.
    """
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    request = ConversionRequest(
        source=Path(given["source"]),
        output=Path(given["output"]),
        options=given.get("options", {}),
        name=given["name"],
        reply=Path(given["reply"]),
        hints=given.get("hints", {}),
    )
    start = time.perf_counter()
    reply: dict[str, object]
    try:
        convert(request)
        reply = {"converter_s": time.perf_counter() - start, **asdict(request.notes)}
    except MissingExtraError as exc:
        reply = {"missing": {"package": exc.package, "extra": exc.extra}}
    except DippmError as exc:
        reply = {"error": _described(exc)}
    except MemoryError:
        reply = {"memory": True}
    except Exception as exc:  # noqa: BLE001 - converters raise whatever they like on a file that they cannot read
        if isinstance(exc, OSError) and exc.errno in FULL_DISK_ERRORS:
            reply = {"space": True}
        else:
            reply = {"failure": f"{type(exc).__name__}: {exc}"[:_LONGEST_MESSAGE]}
    request.reply.write_text(json.dumps(reply), encoding="utf-8")
    # The answer is written; frameworks take half a second to put themselves away.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _described(error: DippmError) -> dict[str, str]:
    cure = error.cure or ""
    message = str(error).removesuffix(cure).rstrip()
    return {"kind": type(error).__name__, "code": error.code, "message": message, "cure": cure}
