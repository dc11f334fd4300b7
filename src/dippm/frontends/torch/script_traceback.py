"""What TorchScript's interpreter leaves of an exception: one text, with the places that the program went through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

import torch

__all__ = ["is_script_error", "script_message", "script_place"]

_HEAD = "TorchScript interpreter"
_ORIGINAL = "Traceback of TorchScript, original code"
# Where the program was scripted, as Python writes it; where it was traced, shorter.
_SCRIPTED = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_TRACED = re.compile(r"^(\S.*\.py|<.+>)\((\d+)\): \S+$", re.MULTILINE)
_TRACER = ("torch", "jit", "_trace.py")
_TORCH = Path(torch.__file__).parent


def is_script_error(error: BaseException) -> bool:
    """Whether an exception comes from TorchScript's interpreter, which drops the one that it began with."""
    return _HEAD in str(error).partition("\n")[0]


def script_place(error: BaseException) -> str:
    """Where in the model's own source an exception of TorchScript arose, as file:line.

    Returns:
        The innermost place that is not PyTorch's own; else the innermost of all. Where the archive does not say what
        source it was made of, the place is in the archive's code.
    """
    serialised, _, original = str(error).partition(_ORIGINAL)
    places = list(_places(original)) or list(_places(serialised))
    file, line = next((place for place in places if not _is_pytorch(place[0])), places[0] if places else ("", ""))
    return f"{file}:{line}" if file else "a place that TorchScript does not tell"


def script_message(error: BaseException) -> tuple[str, str]:
    """Kind and text of an exception of TorchScript, which stand in the last line of what it says."""
    kind, _, text = str(error).strip().splitlines()[-1].partition(":")
    return kind.removeprefix("builtins."), text.strip()


def _places(text: str) -> Iterator[tuple[str, str]]:
    """Files and lines, the innermost first: a trace lists them so, and calls what was scripted, which does not."""
    yield from reversed(_SCRIPTED.findall(text))
    for file, line in _TRACED.findall(text):
        if PureWindowsPath(file).parts[-3:] == _TRACER:
            return  # the rest called the tracer
        yield file, line


def _is_pytorch(file: str) -> bool:
    """Whether a file is one of PyTorch's, wherever that was installed when the program was saved."""
    parts = PureWindowsPath(file).parts  # which divides at the separators of every system
    return any(part == "torch" and _TORCH.joinpath(*parts[i + 1 :]).is_file() for i, part in enumerate(parts))
