"""A model configuration by name and arguments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType

__all__ = ["Recipe"]

Argument = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
_KEY_DIGITS = 16
# Models that are asked for by name have as their family the file of timm that they are in, of which these hold what
# drawn ones have under another name.
_LINEAGES = {
    "metaformer": "poolformer",
    "mobilenetv3": "mobilenet",
    "swin_transformer": "swin",
    "vision_transformer": "vit",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One model at one batch size, so described that anyone can rebuild it.

    Args:
        collection: The set that it belongs to, such as ``"dippm-zoo"``.
        family: Family within the set, such as ``"resnet"``; what stratified orders and splits of a set go by.
        architecture: What builds it: a name that :mod:`dippm.datasets.recipes.building` knows.
        arguments: Keyword arguments of the builder.
        inputs: Shapes of the inputs per sample, by position or by name.
        batch: Samples per call.
    """

    collection: str
    family: str
    architecture: str
    arguments: Mapping[str, Argument] = field(default_factory=dict, hash=False)
    inputs: InputShapes = field(hash=False)
    batch: int

    @property
    def lineage(self) -> str:
        """The family under one name in all sets: what trainings on several sets leave out by."""
        return _LINEAGES.get(self.family, self.family)

    @property
    def model_key(self) -> str:
        """Equal for recipes that differ only in their batch or in the set that they belong to: 16 hex digits."""
        return self._digest(with_batch=False)

    @property
    def key(self) -> str:
        """Names the recipe: 16 hex digits over all that decides what is run."""
        return self._digest(with_batch=True)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; :meth:`from_dict` reads them back."""
        named = self.inputs.named
        return {
            "collection": self.collection,
            "family": self.family,
            "architecture": self.architecture,
            "arguments": {name: list(v) if isinstance(v, tuple) else v for name, v in sorted(self.arguments.items())},
            "inputs": [_entry_to_list(entry) for entry in self.inputs.positional]
            if named is None
            else {name: _entry_to_list(entry) for name, entry in named.items()},
            "batch": self.batch,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Recipe:
        """Read what :meth:`to_dict` wrote.

        Raises:
            UsageError: ``recipe.invalid`` where a field is missing or of the wrong kind.
        """
        try:
            inputs, arguments = values["inputs"], values["arguments"]
            if not isinstance(arguments, Mapping):
                raise TypeError("arguments")
            return cls(
                collection=str(values["collection"]),
                family=str(values["family"]),
                architecture=str(values["architecture"]),
                arguments={str(name): tuple(v) if isinstance(v, list) else v for name, v in arguments.items()},
                inputs=InputShapes(named={str(name): _entry_from_list(entry) for name, entry in inputs.items()})
                if isinstance(inputs, Mapping)
                else InputShapes(positional=tuple(_entry_from_list(entry) for entry in inputs)),  # type: ignore[attr-defined]
                batch=int(values["batch"]),  # type: ignore[call-overload]
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise UsageError(f"This is not a recipe: {exc!r} in {values!r:.300}.", code="recipe.invalid") from exc

    def _digest(self, *, with_batch: bool) -> str:
        values = self.to_dict()
        del values["collection"], values["family"]
        if not with_batch:
            del values["batch"]
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def _entry_to_list(entry: InputEntry) -> list[object]:
    return [list(entry.shape), None if entry.dtype is None else entry.dtype.value]


def _entry_from_list(values: Any) -> InputEntry:
    shape, dtype = values
    return InputEntry(shape=tuple(int(size) for size in shape), dtype=None if dtype is None else DType(dtype))
