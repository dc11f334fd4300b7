"""Checkpoints as hubs publish them: a ``config.json`` that names the model, beside weights that are not loaded.

A folder, or its ``config.json`` alone, is a model of transformers where it says ``model_type``, and one of timm where
it says ``architecture`` and ``pretrained_cfg``. Of the weights only the tables of contents are read, to say so where
they are not those of the model.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError
from dippm.frontends.quantised_weights import WeightFormat, parse_weight_format

__all__ = ["CONFIG_NAME", "StoredCheckpoint", "find_checkpoint", "is_checkpoint_config", "is_checkpoint_folder"]

#: Name of the file in a checkpoint's folder that names the model.
CONFIG_NAME = "config.json"
_STEP_MARK = "#"
_PREFIXES = {"transformers": "hf", "timm": "timm"}
# Those of models with 21,000 classes hold all their names.
_HEAD_BYTES = 64
_MARKS = (b"model_type", b"architecture")
_MOST_CONFIG_BYTES = 32 * 2**20
_MOST_HEADER_BYTES = 100 * 2**20
# Buffers and tied weights may lie among the weights, or be missing there.
_FEWEST_STORED, _MOST_STORED = 0.9, 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCheckpoint:
    """A model that its configuration describes.

    Args:
        path: As the caller gave it, without the step.
        library: Package that builds it: ``"transformers"`` or ``"timm"``.
        settings: The configuration.
        step: Step of generation that is asked for, as ``"decode=512"``; None for the whole model.
        stored_weights: Numbers in the safetensors files beside it; None where there are none.
    """

    path: Path
    library: str
    settings: Mapping[str, Any]
    step: str | None
    stored_weights: int | None

    @property
    def name(self) -> str:
        """The path with the step, as the caller wrote it."""
        return str(self.path) if self.step is None else f"{self.path}{_STEP_MARK}{self.step}"

    @property
    def content_name(self) -> str:
        """A model by name, as :func:`dippm.frontends.zoo.library_of` takes it, that stands for the content alone."""
        described = (self.settings, self.step, self.stored_weights)
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        return f"{_PREFIXES[self.library]}:{digest}"

    @property
    def weight_format(self) -> WeightFormat | None:
        """How its weights are stored, where they are quantised in a way that is known."""
        quantization = self.settings.get("quantization_config")
        return parse_weight_format(quantization) if isinstance(quantization, Mapping) else None

    def doubts(self, parameters: int) -> tuple[str, ...]:
        """What a prediction of the model as it is built cannot vouch for.

        Args:
            parameters: Numbers in the weights of the model that was built.
        """
        quantization = self.settings.get("quantization_config")
        if self.weight_format is not None:
            return (
                f"The checkpoint's weights are quantised ({self.weight_format.method}): they are counted as stored, in "
                f"{self.weight_format.bits:.3g} bits each, and read so by every product. No such model was measured.",
            )
        if isinstance(quantization, Mapping):
            method = quantization.get("quant_method", "a format of its own")
            return (
                f"The checkpoint's weights are published quantised ({method}). They are predicted as they were before "
                "that: the quantised model takes less memory, and less time to read them.",
            )
        stored = self.stored_weights
        if stored is None or _FEWEST_STORED * parameters <= stored <= _MOST_STORED * parameters:
            return ()
        return (
            f"The checkpoint's files hold {stored:,} weights, the model that its {CONFIG_NAME} describes has "
            f"{parameters:,}: they may be of another model, or of a part of it.",
        )


def find_checkpoint(model: Path) -> StoredCheckpoint | None:
    """The checkpoint that a path names, ``#prefill=N`` or ``#decode=N`` behind it for a step; None where it is none.

    Raises:
        ModelReadError: ``checkpoint.invalid`` where its configuration is no JSON object.
    """
    path, step = model, None
    try:
        if _STEP_MARK in model.name and not model.exists():
            name, _, step = model.name.rpartition(_STEP_MARK)
            path = model.with_name(name) if name else model.parent
        config = _find_config(path)
    except (OSError, ValueError):
        # Whoever looks for another kind of model in this path says what is wrong with it.
        return None
    if config is None:
        return None
    settings = _read(config)
    return StoredCheckpoint(
        path=path,
        library=_library_of(settings) or "",
        settings=settings,
        step=step,
        stored_weights=_count_weights(config.parent) if config.name == CONFIG_NAME else None,
    )


def _find_config(path: Path) -> Path | None:
    if path.is_dir():
        return path / CONFIG_NAME if is_checkpoint_folder(path) else None
    return path if path.is_file() and is_checkpoint_config(path) else None


def is_checkpoint_folder(folder: Path) -> bool:
    """Whether a folder is a checkpoint: its configuration names a model, and no ONNX file beside it is the model."""
    return is_checkpoint_config(folder / CONFIG_NAME) and not any(folder.glob("*.onnx"))


def is_checkpoint_config(path: Path) -> bool:
    """Whether a file is a configuration that names a model of transformers or timm."""
    try:
        with path.open("rb") as stream:
            # Files of models are large, and few of them are JSON.
            if not stream.read(_HEAD_BYTES).lstrip().startswith(b"{"):
                return False
        return _library_of(_read(path)) is not None
    except (OSError, ModelReadError):
        return False


def _library_of(settings: Mapping[str, Any]) -> str | None:
    if isinstance(settings.get("model_type"), str):
        return "transformers"
    is_timm = isinstance(settings.get("architecture"), str) and isinstance(settings.get("pretrained_cfg"), Mapping)
    return "timm" if is_timm else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_CONFIG_BYTES)
        # A program of Paddle is JSON as well, and longer.
        settings = json.loads(content) if any(mark in content for mark in _MARKS) else {}
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelReadError(f"'{path}' is no JSON that can be read: {exc}.", code="checkpoint.invalid") from exc
    if not isinstance(settings, Mapping):
        raise ModelReadError(f"'{path}' holds no JSON object.", code="checkpoint.invalid")
    return settings


def _count_weights(folder: Path) -> int | None:
    """Numbers in all safetensors files of a folder; None where there are none, or one of them cannot be read."""
    files = sorted(folder.glob("*.safetensors"))
    try:
        return sum(map(_count_in_file, files)) if files else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        return None


def _count_in_file(path: Path) -> int:
    """Numbers in a safetensors file, by its table of contents: eight bytes for its length, then JSON."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a table of contents of {length} bytes")
        contents = json.loads(stream.read(length))
    return sum(math.prod(map(int, entry["shape"])) for name, entry in contents.items() if name != "__metadata__")
