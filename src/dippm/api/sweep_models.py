"""Which models a sweep is about: paths, names, folders of files, and lists of all these in a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from os import PathLike, fspath
from pathlib import Path

from dippm.errors import ModelReadError, UsageError
from dippm.frontends.checkpoint_folder import CONFIG_NAME, is_checkpoint_folder
from dippm.frontends.detect import detect_framework
from dippm.frontends.paddle.model_files import find_program
from dippm.frontends.zoo import is_zoo_name

__all__ = ["list_models"]

_LIST = "@"
_SAVED_MODEL = "saved_model.pb"
_COMMENT = "#"
# What is named so counts as a model, damaged or not: its row then says what is wrong with it.
_SUFFIXES = frozenset({
    ".onnx", ".pt", ".pth", ".pt2", ".ts", ".keras", ".h5", ".hdf5", ".tflite", ".pb", ".pdmodel", ".gz",
})  # fmt: skip
# What may be a model and often is none: the content decides.
_UNSURE_SUFFIXES = frozenset({".json", ".bin", ".zip"})


def list_models(given: object) -> list[str]:
    """Paths and names, one by one, in order.

    Args:
        given: A path or a name, or several; a folder stands for the model files in it and below it, sorted, unless it
            is a model itself; ``@FILE`` for the lines of a file, where empty ones and those that begin with ``#`` are
            left out.

    Raises:
        UsageError: ``sweep.models`` where there is none, one is no text, or a folder cannot be read; ``sweep.list``
            where a list cannot be read.
    """
    entries = [given] if isinstance(given, str | PathLike) or not isinstance(given, Iterable) else list(given)
    try:
        found = [model for entry in entries for model in _expand(entry)]
    except OSError as exc:
        raise UsageError(f"The folder '{exc.filename}' cannot be read: {exc.strerror}.", code="sweep.models") from exc
    if not found:
        raise UsageError(
            "There is no model to sweep over.",
            code="sweep.models",
            cure="Give model files, names, folders with model files, or @FILE.",
        )
    return found


def _expand(entry: object) -> Iterator[str]:
    if not isinstance(entry, str | PathLike) or not isinstance(fspath(entry), str):
        raise UsageError(
            f"A model of a sweep must be a path or a name. Got {type(entry).__name__} instead.",
            code="sweep.models",
            cure="Save it to a file first; dippm.save_graph does that for a graph.",
        )
    text = str(fspath(entry))
    if text.startswith(_LIST):
        for line in _read_lines(Path(text.removeprefix(_LIST))):
            yield from _expand_path(line)
    else:
        yield from _expand_path(text)


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        words = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        raise UsageError(
            f"The list of models '{path}' cannot be read: {words}.",
            code="sweep.list",
            cure="After @ stands a text file with one path or name a line.",
        ) from exc
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith(_COMMENT)]


def _expand_path(text: str) -> Iterator[str]:
    if is_zoo_name(text) or not os.path.isdir(text) or _is_model_folder(Path(text)):
        yield text
    else:
        yield from _walk(Path(text))


def _walk(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if _is_model_folder(path):
                yield str(path)
            else:
                yield from _walk(path)
        elif path.name == CONFIG_NAME:
            # This folder is no checkpoint, and the file describes the model beside it.
            continue
        elif path.suffix in _SUFFIXES or (path.suffix in _UNSURE_SUFFIXES and _is_model(path)):
            yield str(path)


def _is_model_folder(folder: Path) -> bool:
    """Whether a folder is one model, and not a place where models lie."""
    if (folder / _SAVED_MODEL).is_file() or is_checkpoint_folder(folder):
        return True
    try:
        program = find_program(folder)
    except ModelReadError:
        return False
    return all(path.suffix not in _SUFFIXES or path.stem == program.stem for path in folder.iterdir())


def _is_model(path: Path) -> bool:
    try:
        detect_framework(path)
    except ModelReadError:
        return False
    return True
