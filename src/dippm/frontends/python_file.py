"""Models that a Python file defines: ``net.py:Net`` names a class of it, a function that gives a model, or a model."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dippm.errors import DippmError, ModelReadError, UsageError
from dippm.frontends.python_code import missing_extra, place_of_error, run_python, tell_error

__all__ = ["build_from_python", "find_python_model", "is_python_file", "refuse_without_name"]

_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)", re.DOTALL)
_MOST_NAMES = 8


def is_python_file(path: Path) -> bool:
    """Whether a path is of a Python file, without the name of a model in it."""
    return path.suffix == ".py" and path.is_file()


def find_python_model(path: Path) -> tuple[Path, str] | None:
    """The file and the name of ``net.py:Net``; None for any other path, and for a file that is called so."""
    found = _NAMED.fullmatch(str(path))
    if found is None or path.exists():
        return None
    return Path(found["file"]), found["name"]


def _names_in(file: Path) -> list[str]:
    """The classes and functions of a Python file that may give a model, which is not run for that."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [each.name for each in tree.body if isinstance(each, kinds) and not each.name.startswith("_")]


def build_from_python(file: Path, name: str, *, trust: bool) -> object:
    """Run a Python file and build the model that it has under a name.

    Files beside it can be imported. What it builds is built as it says, with random weights as a rule.

    Args:
        file: The file.
        name: A class or a function, called without arguments, or a model; dots lead into classes and objects.
        trust: Whether its code may run.

    Raises:
        ModelReadError: ``model.missing`` or ``model.unreadable``; ``python.failed`` where the code fails.
        UsageError: ``python.refused`` without trust; ``python.name`` where the file has no such name.
        MissingExtraError: The file imports a framework that is not installed.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError as exc:
        raise ModelReadError(f"There is no file '{file}'.", code="model.missing", cure="Check the path.") from exc
    except OSError as exc:
        raise ModelReadError(f"'{file}' cannot be read: {exc.strerror or exc}.", code="model.unreadable") from exc
    if not trust:
        raise UsageError(
            f"'{file}' is Python: building {name} runs its code.",
            code="python.refused",
            cure="If you trust the file, allow it with trust=True (--trust-pickle).",
        )
    with _importing_beside(file):
        try:
            module = run_python(content, file, name=f"dippm_model_{file.stem}")
        except DippmError:
            raise
        except (Exception, SystemExit) as exc:  # the code is the user's
            raise missing_extra(exc, f"run '{file}'") or _failure(f"'{file}' fails when it is run", exc, file) from exc
        found = _look_up(module, name, file)
        if not callable(found) or _is_model(found):
            return found
        try:
            return found()
        except DippmError:
            raise
        except (Exception, SystemExit) as exc:  # as above
            raise missing_extra(exc, f"build {name} of '{file}'") or _failure(
                f"{name}() of '{file}' fails", exc, file
            ) from exc


def refuse_without_name(path: Path) -> UsageError:
    """What to say of a Python file without the name of a model."""
    names = _names_in(path)
    return UsageError(
        f"'{path}' is Python, and which of its models is meant is not said.",
        code="python.name",
        cure=f"Name a class or a function behind it, as in {path.name}:{names[0] if names else 'Net'}"
        + (f"; it has {_listed(names)}." if names else "."),
    )


def _look_up(module: Any, name: str, file: Path) -> Any:
    found = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            names = _names_in(file)
            raise UsageError(
                f"'{file}' has no {name}.",
                code="python.name",
                cure=f"It has {_listed(names)}." if names else "Name a class or a function that stands in it.",
            ) from exc
    return found


def _is_model(value: object) -> bool:
    """Whether it is a module already, which can be called too, and not its class."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _failure(what: str, exc: BaseException, file: Path) -> ModelReadError:
    return ModelReadError(f"{what}: {tell_error(exc)}{place_of_error(exc, {str(file)})}", code="python.failed")


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _importing_beside(file: Path) -> Iterator[None]:
    """Let code import what lies beside its file, as it does where Python runs the file itself."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
