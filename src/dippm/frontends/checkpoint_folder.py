"""Checkpoints as hubs publish them: a ``config.json`` that names the model, beside weights that are not loaded.

A folder, or its ``config.json`` alone, is a model of transformers where it says ``model_type``, one of diffusers where
it says ``_class_name`` and ``_diffusers_version``, and one of timm where it says ``architecture`` and
``pretrained_cfg``. Of the weights only the tables of contents are read, to say so where they are not those of the
model. A pipeline of diffusers is a folder of such folders, and no model by itself.
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
from dippm.frontends.quantised_weights import WeightFormat, parse_weight_format, predicted_as_before

__all__ = [
    "CONFIG_NAME",
    "PIPELINE_NAME",
    "StoredCheckpoint",
    "StoredWeights",
    "find_checkpoint",
    "is_checkpoint_config",
    "is_checkpoint_folder",
    "list_parts",
]

#: Name of the file in a checkpoint's folder that names the model.
CONFIG_NAME = "config.json"
#: Name of the file in a folder of diffusers that lists the models of a pipeline.
PIPELINE_NAME = "model_index.json"
_MARK = "#"
_PREFIXES = {"transformers": "hf", "diffusers": "diffusers", "timm": "timm"}
# The files of the weights, or the index that names them, in the order in which they are looked for.
_OF_TRANSFORMERS = ("model.safetensors.index.json", "model.safetensors")
_WEIGHTS = {
    "transformers": _OF_TRANSFORMERS,
    "diffusers": (
        "diffusion_pytorch_model.safetensors.index.json",
        "diffusion_pytorch_model.safetensors",
        "diffusion_pytorch_model.safetensors.index.*.json",
        "diffusion_pytorch_model.*.safetensors",
    ),
    "timm": _OF_TRANSFORMERS,
}
_INDEX_SUFFIX = ".json"
_HEAD_BYTES = 64
_MARKS = (b"model_type", b"_class_name", b"architecture")
_PIPELINE = "Pipeline"
# Those of models with 21,000 classes hold all their names.
_MOST_CONFIG_BYTES = 32 * 2**20
_MOST_HEADER_BYTES = 100 * 2**20
# Buffers may lie among the weights, and tied ones may be missing there.
_FEWEST_STORED, _MOST_STORED = 0.9, 1.2
# A tied head may be stored a second time.
_HEAD = "lm_head.weight"
# What a configuration says that decides no size.
_NAMING_SETTINGS = frozenset({
    "model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path", "_class_name",
    "_diffusers_version",
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
        path: As the caller gave it, without what is asked for.
        library: Package that builds it: ``"transformers"``, ``"diffusers"`` or ``"timm"``.
        settings: The configuration.
        asked: What stands behind the ``#``: a step of generation, as ``"decode=512"``, or of a model of diffusers the
            side of its images, as ``"image=512"``; None for the whole model with its own inputs.
        weights: What the safetensors files beside it tell; None where there are none.
        has_gguf: Whether GGUF files lie beside it.
    """

    path: Path
    library: str
    settings: Mapping[str, Any]
    asked: str | None
    weights: StoredWeights | None
    has_gguf: bool

    @property
    def name(self) -> str:
        """The path with what is asked for, as the caller wrote it."""
        return str(self.path) if self.asked is None else f"{self.path}{_MARK}{self.asked}"

    @property
    def config_path(self) -> Path:
        """The file that describes it."""
        return self.path / CONFIG_NAME if self.path.is_dir() else self.path

    @property
    def content_name(self) -> str:
        """A model by name, as :func:`dippm.frontends.zoo.library_of` takes it, that stands for the content alone."""
        told = None if self.weights is None else (self.weights.count, self.weights.head_count, self.weights.dtype)
        described = (self.settings, self.asked, told, self.has_gguf)
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

    def doubts(self, parameters: int, *, is_dequantised: bool = False) -> tuple[str, ...]:
        """What a prediction of the model as it is built cannot vouch for, its quantised weights apart.

        Args:
            parameters: Numbers in the weights of the model that was built.
            is_dequantised: Whether it is asked for as it was before its weights were quantised.
        """
        quantization = self.settings.get("quantization_config")
        if self.weight_format is not None or (is_dequantised and isinstance(quantization, Mapping)):
            return ()
        if isinstance(quantization, Mapping):
            return (predicted_as_before(quantization.get("quant_method", "a format of its own")),)
        if self.has_gguf and self.weights is None:
            return (
                f"The folder holds GGUF files, which are not read: the model is what its {CONFIG_NAME} describes, "
                "before any quantisation.",
            )
        if self.settings.keys() <= _NAMING_SETTINGS:
            named = self.settings.get("_class_name") or self.settings["model_type"]
            return (f"The {CONFIG_NAME} gives no sizes: they are the library's own for {named}.",)
        if self.weights is None or self.weights.may_be_of(parameters):
            return ()
        return (
            f"The checkpoint's files hold {self.weights.count:,} weights, the model that its {CONFIG_NAME} describes "
            f"has {parameters:,}: they may be of another model, or of a part of it.",
        )


def find_checkpoint(model: Path) -> StoredCheckpoint | None:
    """The checkpoint that a path names, ``#prefill=N``, ``#decode=N`` or ``#image=N`` behind it; None where it is none.

    Raises:
        ModelReadError: ``checkpoint.invalid`` where its configuration is damaged.
    """
    path, asked = model, None
    try:
        if _MARK in model.name and not model.exists():
            name, _, asked = model.name.rpartition(_MARK)
            path = model.with_name(name) if name else model.parent
        config = path / CONFIG_NAME if path.is_dir() else path
        settings = None if _is_export(config.parent, path) else _read_settings(config)
    except (OSError, ValueError):
        # Whoever looks for another kind of model in this path says what is wrong with it.
        return None
    if settings is None:
        return None
    library = _library_of(settings) or ""
    is_beside = config.name == CONFIG_NAME
    return StoredCheckpoint(
        path=path,
        library=library,
        settings=settings,
        asked=asked,
        weights=_read_weights(config.parent, library=library) if is_beside else None,
        has_gguf=is_beside and any(config.parent.glob("*.gguf")),
    )


def is_checkpoint_folder(folder: Path) -> bool:
    """Whether a folder is a checkpoint: its configuration names a model, and no ONNX file beside it is the model."""
    return not _is_export(folder, folder) and is_checkpoint_config(folder / CONFIG_NAME)


def list_parts(pipeline: Path) -> list[str]:
    """Names of the folders in a folder that are checkpoints."""
    return sorted(part.name for part in pipeline.iterdir() if part.is_dir() and is_checkpoint_folder(part))


def is_checkpoint_config(path: Path) -> bool:
    """Whether a file is a configuration that names a model of a known library, damaged or not."""
    try:
        return _read_settings(path) is not None
    except ModelReadError:
        return True


def _is_export(folder: Path, path: Path) -> bool:
    return path == folder and any(folder.glob("*.onnx"))


def _read_settings(path: Path) -> Mapping[str, Any] | None:
    """The configuration in a file; None where it names no model of a known library.

    Raises:
        ModelReadError: ``checkpoint.invalid`` where it would, and is damaged.
    """
    try:
        if not path.is_file():  # opening a pipe waits for its writer
            return None
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
    return settings if isinstance(settings, Mapping) and _library_of(settings) is not None else None


def _library_of(settings: Mapping[str, Any]) -> str | None:
    """The library whose model a configuration names; None where it names none."""
    definition = settings.get("_class_name")
    if isinstance(definition, str) and isinstance(settings.get("_diffusers_version"), str):
        return None if definition.endswith(_PIPELINE) else "diffusers"
    if isinstance(settings.get("model_type"), str):
        return "transformers"
    is_of_timm = isinstance(settings.get("architecture"), str) and isinstance(settings.get("pretrained_cfg"), Mapping)
    return "timm" if is_of_timm else None


def _read_weights(folder: Path, *, library: str) -> StoredWeights | None:
    """What the safetensors files of a folder tell; None where there are none, or one of them cannot be read."""
    try:
        files = _find_weights(folder, library=library)
        counts: Counter[str] = Counter()
        head_count = 0
        for file in files:
            for name, (dtype, count) in _read_contents(file).items():
                counts[dtype] += count
                head_count += count if name.endswith(_HEAD) else 0
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        return None
    if not files:
        return None
    floating = {_DTYPES[dtype]: count for dtype, count in counts.items() if dtype in _DTYPES}
    return StoredWeights(
        count=counts.total(), head_count=head_count, dtype=max(floating, key=lambda name: floating[name], default=None)
    )


def _find_weights(folder: Path, *, library: str) -> list[Path]:
    """The safetensors files of one copy of a checkpoint's weights; empty where there are none.

    Of diffusers there may be several copies, or only one in FP16: that without a variant's name goes first.
    """
    for pattern in _WEIGHTS[library]:
        for found in sorted(folder.glob(pattern)):
            if found.suffix != _INDEX_SUFFIX:
                return [found]
            return sorted({folder / Path(name).name for name in json.loads(found.read_bytes())["weight_map"].values()})
    return []


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
