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
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError
from dippm.frontends.quantised_weights import WeightFormat, parse_weight_format

__all__ = [
    "CONFIG_NAME",
    "StoredCheckpoint",
    "StoredWeights",
    "find_checkpoint",
    "is_checkpoint_config",
    "is_checkpoint_folder",
]

#: Name of the file in a checkpoint's folder that names the model.
CONFIG_NAME = "config.json"
_WEIGHTS_NAME, _INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
_STEP_MARK = "#"
_PREFIXES = {"transformers": "hf", "timm": "timm"}
_HEAD_BYTES = 64
_MARKS = (b"model_type", b"architecture")
# Those of models with 21,000 classes hold all their names.
_MOST_CONFIG_BYTES = 32 * 2**20
_MOST_HEADER_BYTES = 100 * 2**20
# Buffers may lie among the weights, and tied ones may be missing there.
_FEWEST_STORED, _MOST_STORED = 0.9, 1.2
# A tied head may be stored a second time.
_HEAD = "lm_head.weight"
# What a configuration says that decides no size.
_NAMING_SETTINGS = frozenset({
    "model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path",
})  # fmt: skip
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# What a quantised model computes in where nobody says.
_DTYPE_OF_METHOD = {"mxfp4": "bfloat16", "fp8": "bfloat16", "awq": "float16", "gptq": "float16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeights:
    """What the tables of contents of a checkpoint's safetensors files tell.

    Args:
        count: Numbers in all tensors.
        head_count: Those in an output layer of its own.
        dtype: Floating type of most of them, such as ``"bfloat16"``; None where there is none.
    """

    count: int
    head_count: int
    dtype: str | None

    def may_be_of(self, parameters: int) -> bool:
        """Whether they may be the weights of a model of so many, its output layer tied to its embedding or not."""
        counts = (self.count, self.count - self.head_count)
        return any(_FEWEST_STORED * parameters <= count <= _MOST_STORED * parameters for count in counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCheckpoint:
    """A model that its configuration describes.

    Args:
        path: As the caller gave it, without the step.
        library: Package that builds it: ``"transformers"`` or ``"timm"``.
        settings: The configuration.
        step: Step of generation that is asked for, as ``"decode=512"``; None for the whole model.
        weights: What the safetensors files beside it tell; None where there are none.
        has_gguf: Whether GGUF files lie beside it.
    """

    path: Path
    library: str
    settings: Mapping[str, Any]
    step: str | None
    weights: StoredWeights | None
    has_gguf: bool

    @property
    def name(self) -> str:
        """The path with the step, as the caller wrote it."""
        return str(self.path) if self.step is None else f"{self.path}{_STEP_MARK}{self.step}"

    @property
    def content_name(self) -> str:
        """A model by name, as :func:`dippm.frontends.zoo.library_of` takes it, that stands for the content alone."""
        told = None if self.weights is None else (self.weights.count, self.weights.head_count, self.weights.dtype)
        described = (self.settings, self.step, told, self.has_gguf)
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        return f"{_PREFIXES[self.library]}:{digest}"

    @property
    def weight_dtype(self) -> str | None:
        """Type of the weights where the configuration names none: that of those stored, else what its method wants."""
        if self.weights is not None and self.weights.dtype is not None:
            return self.weights.dtype
        quantization = self.settings.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        return _DTYPE_OF_METHOD.get(str(method))

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
        stored = self.weight_format
        if stored is not None:
            return (
                f"The checkpoint's weights are quantised ({stored.method}): they are counted as stored, in "
                f"{stored.bits:.3g} bits each, and read so by every product. No such model was measured.",
            )
        if isinstance(quantization, Mapping):
            method = quantization.get("quant_method", "a format of its own")
            return (
                f"The checkpoint's weights are published quantised ({method}). They are predicted as they were before "
                "that: the quantised model takes less memory, and less time to read them.",
            )
        if self.has_gguf and self.weights is None:
            return (
                f"The folder holds GGUF files, which are not read: the model is what its {CONFIG_NAME} describes, "
                "before any quantisation.",
            )
        if self.settings.keys() <= _NAMING_SETTINGS:
            return (f"The {CONFIG_NAME} gives no sizes: they are the library's own for {self.settings['model_type']}.",)
        if self.weights is None or self.weights.may_be_of(parameters):
            return ()
        return (
            f"The checkpoint's files hold {self.weights.count:,} weights, the model that its {CONFIG_NAME} describes "
            f"has {parameters:,}: they may be of another model, or of a part of it.",
        )


def find_checkpoint(model: Path) -> StoredCheckpoint | None:
    """The checkpoint that a path names, ``#prefill=N`` or ``#decode=N`` behind it for a step; None where it is none.

    Raises:
        ModelReadError: ``checkpoint.invalid`` where its configuration is damaged.
    """
    path, step = model, None
    try:
        if _STEP_MARK in model.name and not model.exists():
            name, _, step = model.name.rpartition(_STEP_MARK)
            path = model.with_name(name) if name else model.parent
        config = path / CONFIG_NAME if path.is_dir() else path
        settings = None if _is_export(config.parent, path) else _read_settings(config)
    except (OSError, ValueError):
        # Whoever looks for another kind of model in this path says what is wrong with it.
        return None
    if settings is None:
        return None
    is_beside = config.name == CONFIG_NAME
    return StoredCheckpoint(
        path=path,
        library="transformers" if isinstance(settings.get("model_type"), str) else "timm",
        settings=settings,
        step=step,
        weights=_read_weights(config.parent) if is_beside else None,
        has_gguf=is_beside and any(config.parent.glob("*.gguf")),
    )


def is_checkpoint_folder(folder: Path) -> bool:
    """Whether a folder is a checkpoint: its configuration names a model, and no ONNX file beside it is the model."""
    return not _is_export(folder, folder) and is_checkpoint_config(folder / CONFIG_NAME)


def is_checkpoint_config(path: Path) -> bool:
    """Whether a file is a configuration that names a model of transformers or timm, damaged or not."""
    try:
        return _read_settings(path) is not None
    except ModelReadError:
        return True


def _is_export(folder: Path, path: Path) -> bool:
    return path == folder and any(folder.glob("*.onnx"))


def _read_settings(path: Path) -> Mapping[str, Any] | None:
    """The configuration in a file; None where it names no model of transformers or timm.

    Raises:
        ModelReadError: ``checkpoint.invalid`` where it would, and is damaged.
    """
    try:
        with path.open("rb") as stream:
            # Files of models are large, and few of them are JSON.
            head = stream.read(_HEAD_BYTES)
            if not head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
                return None
            content = head + stream.read(_MOST_CONFIG_BYTES)
        # A program of Paddle is JSON as well, and longer.
        if not any(mark in content for mark in _MARKS):
            return None
        settings = json.loads(content.decode("utf-8-sig"))
    except OSError:
        return None
    except (ValueError, RecursionError) as exc:
        if path.name != CONFIG_NAME:
            return None
        raise ModelReadError(
            f"'{path}' is no JSON that can be read: {exc}.", code="checkpoint.invalid", cure="Copy the file again."
        ) from exc
    return settings if isinstance(settings, Mapping) and _names_model(settings) else None


def _names_model(settings: Mapping[str, Any]) -> bool:
    if isinstance(settings.get("model_type"), str):
        return True
    return isinstance(settings.get("architecture"), str) and isinstance(settings.get("pretrained_cfg"), Mapping)


def _read_weights(folder: Path) -> StoredWeights | None:
    """What the safetensors files of a folder tell; None where there are none, or one of them cannot be read."""
    try:
        index = folder / _INDEX_NAME
        names = [_WEIGHTS_NAME]
        if index.is_file():
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = [folder / Path(name).name for name in names]
        if not all(file.is_file() for file in files):
            return None
        counts: Counter[str] = Counter()
        head_count = 0
        for file in files:
            for name, (dtype, count) in _read_contents(file).items():
                counts[dtype] += count
                head_count += count if name.endswith(_HEAD) else 0
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        return None
    floating = {_DTYPES[dtype]: count for dtype, count in counts.items() if dtype in _DTYPES}
    return StoredWeights(
        count=counts.total(), head_count=head_count, dtype=max(floating, key=lambda name: floating[name], default=None)
    )


def _read_contents(path: Path) -> dict[str, tuple[str, int]]:
    """Type and size of every tensor in a safetensors file, by its header: eight bytes for its length, then JSON."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a table of contents of {length} bytes")
        contents = json.loads(stream.read(length))
    return {
        str(name): (str(entry["dtype"]), math.prod(map(int, entry["shape"])))
        for name, entry in contents.items()
        if name != "__metadata__"
    }
