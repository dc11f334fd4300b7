"""Python files of the user's own: run them, and say what fails in them and where."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Set
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from dippm.errors import MissingExtraError

__all__ = ["missing_extra", "place_of_error", "run_python", "tell_error"]

# What such files import, by the extra that brings it.
_EXTRAS = {
    "torch": "torch", "torchvision": "zoo", "timm": "zoo", "transformers": "zoo", "tensorflow": "tensorflow",
    "keras": "tensorflow", "paddle": "paddle",
}  # fmt: skip


def run_python(content: bytes, file: Path, *, name: str) -> ModuleType:
    """Run code that was read from a file, rather than what may by now lie in it.

    Args:
        content: The code.
        file: Where it was read; errors name it.
        name: What the module is called, in ``sys.modules`` too: what asks for the source of its classes looks there.

    Raises:
        ValueError: The file's name is none that Python runs.
        BaseException: Whatever the code raises.
    """
    found = spec_from_file_location(name, file)
    if found is None:
        raise ValueError(f"'{file}' is no Python file")
    module = module_from_spec(found)
    sys.modules[name] = module
    exec(compile(content, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the caller was asked to
    return module


def tell_error(exc: BaseException) -> str:
    """An error in one line."""
    return f"{type(exc).__name__}: {exc}".removesuffix(": ")


def place_of_error(exc: BaseException, files: Set[str]) -> str:
    """Where in some files an error came up, to be put behind its text; ``""`` where nothing tells.

    An error of syntax names its place itself.
    """
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(exc.__traceback__)
        if frame.f_code.co_filename in files
    ]
    return f" ({Path(frames[-1][0]).name}, line {frames[-1][1]})" if frames else ""


def missing_extra(exc: BaseException, purpose: str) -> MissingExtraError | None:
    """What to say where a framework was to be imported and is not installed; None for every other error."""
    if not isinstance(exc, ModuleNotFoundError) or exc.name not in _EXTRAS:
        return None
    return MissingExtraError(package=exc.name, extra=_EXTRAS[exc.name], purpose=purpose)
