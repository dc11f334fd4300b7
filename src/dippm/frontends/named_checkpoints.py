"""Checkpoints that are known by name: of each its class, its sizes and how many weights it is published with."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from dippm.frontends.quantised_weights import WeightFormat, parse_weight_format
from dippm.graph import DType

__all__ = ["Checkpoint", "find_named", "known_names", "load_checkpoints", "published_format"]

_PREFIXES = ("hf", "diffusers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint as its architecture and size.

    Args:
        architecture: Class of the library.
        config: What its configuration has otherwise than the class's default.
        parameters: Trained weights that it is published with.
        dtype: The 16-bit format that they are published in, but for those that are quantised; None where they are of
            32 bits.
        quantization: How some of them are quantised, as ``quantization_config`` of its configuration says it; empty
            where none is.
    """

    architecture: str
    parameters: int
    dtype: DType | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weight_format(self) -> WeightFormat | None:
        """How its weights are quantised; None where they are not."""
        return parse_weight_format(self.quantization) if self.quantization else None


@cache
def load_checkpoints(prefix: str) -> Mapping[str, Checkpoint]:
    """The checkpoints of a library that are known by name.

    Args:
        prefix: What stands before the names: ``"hf"``, where they are ``OWNER/NAME``, or ``"diffusers"``, where the
            part of the pipeline follows, as ``OWNER/NAME/unet``.
    """
    table = tomllib.loads(Path(__file__).with_name(f"{prefix}_checkpoints.toml").read_text(encoding="utf-8"))
    return {name: _read_entry(entry, table) for name, entry in table.items()}


def find_named(prefix: str, name: str) -> Checkpoint | None:
    """A checkpoint by its full name or by what stands behind the owner's, whatever the case; None for any other name.

    Args:
        prefix: See :func:`load_checkpoints`.
        name: What stands behind the prefix.
    """
    lowered = name.lower()
    for known, checkpoint in load_checkpoints(prefix).items():
        if lowered in {known.lower(), _without_owner(known).lower()}:
            return checkpoint
    return None


def published_format(name: str) -> WeightFormat | None:
    """How the weights of a model by name are published quantised; None where they are not.

    Args:
        name: A model with what stands before it and behind it, such as ``hf:gpt-oss-20b#decode=512``.
    """
    prefix, _, model = name.partition(":")
    known = find_named(prefix, model.partition("#")[0]) if prefix in _PREFIXES else None
    return None if known is None else known.weight_format


def known_names(prefix: str) -> list[str]:
    """All names that :func:`find_named` knows, with the owner and without."""
    known = load_checkpoints(prefix)
    return [*known, *map(_without_owner, known)]


def _read_entry(entry: Mapping[str, Any], table: Mapping[str, Any]) -> Checkpoint:
    config = {**entry.get("config", {}), **dict.fromkeys(entry.get("absent", ()))}
    if "like" in entry:
        # It was trained on from another, with that one's class and as many weights.
        origin = _read_entry(table[entry["like"]], table)
        dtype = DType(entry["dtype"]) if "dtype" in entry else origin.dtype
        quantization = entry.get("quantization", origin.quantization)
        return replace(origin, config={**origin.config, **config}, dtype=dtype, quantization=quantization)
    return Checkpoint(
        architecture=entry["class"],
        parameters=entry["parameters"],
        dtype=DType(entry["dtype"]) if "dtype" in entry else None,
        config=config,
        quantization=entry.get("quantization", {}),
    )


def _without_owner(name: str) -> str:
    return name.partition("/")[2]
