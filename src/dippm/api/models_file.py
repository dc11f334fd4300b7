"""A file of models to pack: TOML with one table ``[[model]]`` for each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path

from dippm.api.models_to_pack import ModelToPack
from dippm.errors import UsageError
from dippm.frontends.zoo import is_zoo_name

__all__ = ["load_models_file"]

_KEYS = tuple(each.name for each in fields(ModelToPack))
_TEXTS = ("model", "name", "framework", "precision", "mode", "optimizer", "weights", "layout", "runtime", "software")
_MOST_BYTES = 4_000_000


def load_models_file(path: str | PathLike[str]) -> list[ModelToPack]:
    """Read the models of a TOML file.

    Args:
        path: The file, with a table ``[[model]]`` for each model; its keys are the fields of :class:`ModelToPack`, of
            which ``model`` must be there. A path to a model counts from the folder of the file.

    Raises:
        UsageError: ``models_file.unreadable``, ``models_file.syntax``, ``models_file.key`` or ``models_file.value``.
    """
    where = f"File of models '{Path(path)}'"
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise UsageError(f"{where} is larger than 4 MB.", code="models_file.unreadable")
        document = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as exc:
        raise UsageError(f"{where} cannot be read: {exc.strerror}.", code="models_file.unreadable") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{where} is not valid TOML: {exc}.",
            code="models_file.syntax",
            cure='Write [[model]] and below it lines such as model = "timm:resnet50" and batch = 8.',
        ) from exc
    tables = document.pop("model", None)
    if document or not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        found = ", ".join([*document, *(["model"] if tables is not None else [])]) or "nothing"
        raise UsageError(
            f"{where} must hold tables [[model]] and nothing else. Got {found} instead.", code="models_file.key"
        )
    return [
        _read_table(f"{where}, model {number}", table, Path(path).parent)
        for number, table in enumerate(tables, start=1)
    ]


def _read_table(where: str, table: Mapping[str, object], folder: Path) -> ModelToPack:
    unknown = [key for key in table if key not in _KEYS]
    if unknown or "model" not in table:
        raise UsageError(
            f"{where} {'has unknown keys: ' + ', '.join(unknown) if unknown else 'does not say which model it is'}.",
            code="models_file.key",
            cure=f"Known are {', '.join(_KEYS)}; model must be there.",
        )
    for key in _TEXTS:
        if key in table and not isinstance(table[key], str):
            raise UsageError(f"{where}: {key} must be a text. Got {table[key]!r} instead.", code="models_file.value")
    if not isinstance(table.get("checkpointing", False), bool):
        raise UsageError(
            f"{where}: checkpointing must be true or false. Got {table['checkpointing']!r} instead.",
            code="models_file.value",
        )
    model = str(table["model"])
    # A name or an absolute path stays what it is.
    source = model if is_zoo_name(model) else str(folder / model)
    return ModelToPack(**{**table, "model": source})  # type: ignore[arg-type]  # the verb checks the rest
