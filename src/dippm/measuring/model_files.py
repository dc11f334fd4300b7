"""Models to measure by name or by file."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import ModelReadError, UnsupportedError, UsageError
from dippm.frontends import zoo
from dippm.frontends.checkpoint_folder import StoredCheckpoint, find_checkpoint
from dippm.frontends.detect import Framework, detect_framework
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.named_checkpoints import published_format
from dippm.measuring.export_trust import loading_runs_code

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CheckpointSource", "FileSource", "ZooSource", "find_source"]

_KEY_DIGITS = 16
_ONNX_SUFFIX = ".onnx"
_UNMEASURED = {
    Framework.TENSORFLOW: "a model of TensorFlow or Keras",
    Framework.PADDLE: "a model of Paddle",
    Framework.DIPPM: "a graph without its weights",
}


def find_source(model: str, inputs: InputShapes, *, trust: bool = False) -> ZooSource | CheckpointSource | FileSource:
    """A model to measure, as people name it.

    Args:
        model: ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH``, ``diffusers:CLASS`` or a path.
        inputs: Shapes of one sample; empty to take the library's or the file's own.
        trust: See :class:`FileSource`.

    Raises:
        UnsupportedError: ``measure.quantised`` for a quantised checkpoint; ``measure.unsupported`` for files that are
            predicted alone, such as those of TensorFlow, Keras and Paddle.
    """
    if zoo.is_zoo_name(model):
        if published_format(model) is not None:
            raise _quantised(model)
        return ZooSource(model, inputs)
    checkpoint = find_checkpoint(Path(model))
    if checkpoint is not None and "quantization_config" in checkpoint.settings:
        raise _quantised(checkpoint.name)
    if checkpoint is not None:
        return CheckpointSource(checkpoint, inputs)
    _refuse_unmeasured(Path(model))
    return FileSource(model, inputs, trust=trust)


def _quantised(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"The weights of '{name}' are quantised, and what is measured is a model with random weights of its plain "
        "types.",
        code="measure.quantised",
        cure="Measure the model that it was quantised from.",
    )


def _refuse_unmeasured(path: Path) -> None:
    """Refuse what can be told to be of another framework; what else is wrong with a file its reading says."""
    with suppress(ModelReadError):
        kind = _UNMEASURED.get(detect_framework(path))
        if kind is not None:
            raise UnsupportedError(
                f"'{path}' is {kind}, which is predicted and cannot be measured.",
                code="measure.unsupported",
                cure="Measure the model as ONNX, or as a file of PyTorch's.",
            )


@dataclass(frozen=True, slots=True)
class ZooSource:
    """A model of a library, built with random weights.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH`` or ``diffusers:CLASS``.
        inputs: Shapes of one sample; empty to take the library's.
    """

    name: str
    inputs: InputShapes = field(default_factory=InputShapes)

    @property
    def model_key(self) -> str:
        """Name and inputs in 16 hex digits."""
        return _digest(self.name, self.inputs)

    def build(self, device: str) -> tuple[nn.Module, InputShapes]:
        """Build it; see :func:`dippm.frontends.zoo.build`."""
        module, default = zoo.build(self.name, device=device)
        return module, default if self.inputs.is_empty else self.inputs


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The model that the configuration of a checkpoint describes, built with random weights.

    Args:
        checkpoint: The checkpoint.
        inputs: Shapes of one sample; empty to take the library's.
    """

    checkpoint: StoredCheckpoint
    inputs: InputShapes = field(default_factory=InputShapes)

    @property
    def name(self) -> str:
        """The path, with the step of generation where one is asked for."""
        return self.checkpoint.name

    @property
    def model_key(self) -> str:
        """Content of the configuration and inputs in 16 hex digits."""
        return _digest(self.checkpoint.content_name, self.inputs)

    def build(self, device: str) -> tuple[nn.Module, InputShapes]:
        """Build it; see :func:`dippm.frontends.zoo.build_stored`."""
        module, default = zoo.build_stored(self.checkpoint, device=device)
        return module, default if self.inputs.is_empty else self.inputs


@dataclass(frozen=True, slots=True)
class FileSource:
    """A model in a file: ONNX (run by onnxruntime), TorchScript, ``torch.export`` or a pickled module.

    Args:
        path: The file.
        inputs: Shapes of one sample; empty to take the file's own, which TorchScript and pickles do not have.
        trust: Whether a pickled module may be loaded, or a ``torch.export`` archive of which PyTorch would unpickle
            more than tensors, which runs code that the file chooses.
    """

    path: str | Path
    inputs: InputShapes = field(default_factory=InputShapes)
    trust: bool = False

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def model_key(self) -> str:
        """Path, time of change and inputs in 16 hex digits."""
        path = Path(self.path).resolve()
        changed = path.stat().st_mtime_ns if path.exists() else 0
        return _digest(f"{path}@{changed}", self.inputs)

    @property
    def onnx_path(self) -> Path | None:
        """The path, where it is an ONNX file."""
        path = Path(self.path)
        return path if path.suffix.lower() == _ONNX_SUFFIX else None

    def build(self, device: str) -> tuple[nn.Module, InputShapes]:
        """Load it.

        Raises:
            ModelReadError: ``model.not_found``; ``torch.pickle_refused`` for a file that needs trust;
                ``torch.not_recognised`` for any other kind of file.
            UnsupportedError: ``engine.unsupported`` for ONNX, which PyTorch does not run.
            UsageError: ``input.shape_needed``.
        """
        if self.onnx_path is not None:
            raise UnsupportedError(
                f"PyTorch does not run the ONNX file '{self.path}'.",
                code="engine.unsupported",
                cure="Measure it with the engine onnxruntime.",
            )
        from dippm.frontends.torch.exported_file import is_exported_archive
        from dippm.frontends.torch.script_file import is_script_archive

        try:
            with zipfile.ZipFile(self.path) as archive:
                names = archive.namelist()
                is_refused = is_exported_archive(names) and not self.trust and loading_runs_code(archive)
        except zipfile.BadZipFile:
            names, is_refused = [], False
        except OSError as exc:
            raise ModelReadError(
                f"'{self.path}' cannot be opened: {exc.strerror or exc}.",
                code="model.not_found",
                cure="Check the path.",
            ) from exc
        if is_refused:
            raise ModelReadError(
                f"PyTorch's loader would unpickle parts of '{self.path}', which runs code that the file chooses.",
                code="torch.pickle_refused",
                cure="If you trust where it comes from, allow it with trust=True; predicting needs no trust.",
            )
        if is_exported_archive(names):
            return self._build_exported(device)
        if is_script_archive(names):
            return self._build_script(device)
        from dippm.frontends.torch.torch_file import load_pickled

        module = load_pickled(Path(self.path), trust=self.trust)
        self._need_inputs("A pickled module")
        return module.to(device).eval(), self.inputs

    def _need_inputs(self, kind: str) -> None:
        if self.inputs.is_empty:
            raise UsageError(
                f"The input shapes of '{self.path}' are needed: {kind} does not say them.",
                code="input.shape_needed",
                cure="Give one sample's, as 3,224,224.",
            )

    def _build_script(self, device: str) -> tuple[nn.Module, InputShapes]:
        import torch

        self._need_inputs("TorchScript")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit.*")
            module: nn.Module = torch.jit.load(str(self.path), map_location=device)  # type: ignore[no-untyped-call]
        return module.eval(), self.inputs

    def _build_exported(self, device: str) -> tuple[nn.Module, InputShapes]:
        import torch
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(torch.export.load(str(self.path)), device)
        module = program.module(check_guards=False)
        for part in module.modules():  # an exported module refuses eval(): its mode was fixed in the export
            part.training = False
        return module, self.inputs if not self.inputs.is_empty else _exported_inputs(program, self.path)


def _exported_inputs(program: Any, path: str | Path) -> InputShapes:
    from dippm.frontends.torch.dtypes import from_torch_dtype

    if program.example_inputs is None:
        raise UsageError(
            f"The input shapes of '{path}' are needed: it was saved without example inputs.", code="input.shape_needed"
        )
    args, kwargs = program.example_inputs

    def entry(tensor: Any) -> InputEntry:
        return InputEntry(shape=tuple(tensor.shape[1:]), dtype=from_torch_dtype(tensor.dtype))

    if kwargs and not args:
        return InputShapes(named={name: entry(tensor) for name, tensor in kwargs.items()})
    return InputShapes(positional=tuple(entry(tensor) for tensor in args))


def _digest(name: str, inputs: InputShapes) -> str:
    return hashlib.sha256(f"{name} {inputs!r}".encode()).hexdigest()[:_KEY_DIGITS]
