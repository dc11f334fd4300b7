"""Models by name or by a checkpoint's configuration.

The names are ``timm:resnet50``, ``torchvision:vgg16``, ``hf:bert``, ``diffusers:UNet2DModel``. Nothing is downloaded.

Models are built from their library's own definition, with the library's default configuration; on PyTorch's ``meta``
device, where nothing else is asked for, a model of any size takes no memory. Importing this module imports none of the
libraries.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dippm.costs.precision import Precision, whole_model_type
from dippm.errors import MissingExtraError, UnsupportedError, UsageError
from dippm.frontends.checkpoint_folder import StoredCheckpoint
from dippm.frontends.diffusers_zoo import build_diffusers
from dippm.frontends.diffusers_zoo import build_stored as build_stored_diffusers
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.named_checkpoints import find_named
from dippm.frontends.process_lock import PROCESS_LOCK
from dippm.frontends.transformers_zoo import build_stored as build_stored_transformers
from dippm.frontends.transformers_zoo import build_transformers, doubts_of_stored
from dippm.frontends.zoo_building import META, build_failed, harmless_settings, make_on, unknown, unknown_stored
from dippm.graph import DType
from dippm.processes.collection_pause import collection_paused

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "build_stored", "doubts_of_stored", "is_zoo_name", "library_of"]

_VIDEO_FRAMES = 16
_OFFLINE = "HF_HUB_OFFLINE"


def is_zoo_name(name: str) -> bool:
    """Whether a model is named by a library's prefix rather than by a path."""
    return name.partition(":")[0] in _PACKAGES and ":" in name


def library_of(name: str) -> str | None:
    """The package that builds a model by name, such as ``"timm"``; None for a path."""
    return _PACKAGES.get(name.partition(":")[0]) if is_zoo_name(name) else None


def build(
    name: str,
    *,
    device: str = META,
    options: Mapping[str, object] | None = None,
    precision: Precision | None = Precision.FP32,
) -> tuple[nn.Module, InputShapes]:
    """Build a model of a library without its trained weights.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH`` where ARCH is a model type of transformers (``bert``,
            ``gpt2``, ``llama``) or one of its classes (``BertForMaskedLM``), or ``diffusers:CLASS``; of the last two
            libraries also checkpoints that are known by name.
        device: A torch device. On ``meta`` the weights have shapes and no values; on any other they are random and
            are made there from the start.
        options: What is not to be as the library has it by default: keyword arguments of timm's or torchvision's
            constructor, or entries of the configuration of transformers or diffusers.
        precision: What it will run in. Where that is a format of 16 bits, a model of transformers or diffusers is given
            it: its code computes parts in FP32 all the same, which only then can be told from the others. None gives a
            checkpoint of transformers that is known by name the type that it is published in.

    Returns:
        The module, its parameters on the device, and the input shapes that its library takes by default: the image
        size of its training recipe, 128 tokens for language models; empty where those of a class of diffusers are not
        known.

    Raises:
        UsageError: ``zoo.option_unknown`` where the configuration of a model has no such entry;
            ``generation.step`` and ``zoo.image_invalid`` where what stands behind the ``#`` cannot be had.
        UnsupportedError: ``zoo.unknown`` where the library has no such model, with the nearest names;
            ``zoo.build_failed`` where the library cannot build it from its defaults and the options.
        MissingExtraError: where the library or PyTorch is not installed.
    """
    prefix, _, model = name.partition(":")
    if prefix not in _PACKAGES or not model:
        raise UnsupportedError(
            f"'{name}' names no model of a known library.",
            code="zoo.unknown",
            cure=f"Write it as one of {', '.join(f'{known}:NAME' for known in _PACKAGES)}.",
        )
    plain, mark, _ = model.partition("#")
    if mark and prefix in _IMAGE_MODELS:
        raise UsageError(
            f"'{name}' is a model of {prefix}, and takes nothing behind a '#'.",
            code="generation.step",
            cure=f"Write {prefix}:{plain}; steps of generation are of hf: models, images of diffusers: ones.",
        )
    with _imported(_PACKAGES[prefix], purpose=f"build {name}") as library:
        if prefix in _TYPED_BUILDERS:
            typed = _TYPED_BUILDERS[prefix]
            checkpoint = find_named(prefix, plain) if precision is None else None
            stored = _type_given(precision) if checkpoint is None else checkpoint.dtype
            return typed(library, model, device, dict(options or {}), stored=stored)
        return _BUILDERS[prefix](library, model, device, dict(options or {}))


def build_stored(
    checkpoint: StoredCheckpoint, *, device: str = META, precision: Precision | None = None
) -> tuple[nn.Module, InputShapes]:
    """Build the model that the configuration of a checkpoint describes, without its trained weights.

    Args:
        checkpoint: The checkpoint.
        device: As in :func:`build`.
        precision: As in :func:`build`.

    Returns:
        As :func:`build`; the parameters are of the type that the configuration names, where the precision says none.

    Raises:
        UnsupportedError: ``zoo.unknown``, ``zoo.build_failed``, or ``checkpoint.foreign_code`` where the model needs
            code that lies beside it.
        UsageError: ``generation.step`` or ``zoo.image_invalid`` where what stands behind the ``#`` cannot be had.
        MissingExtraError: where the library or PyTorch is not installed.
    """
    with _imported(checkpoint.library, purpose=f"build the model of {checkpoint.name}") as library:
        if checkpoint.library == "transformers":
            return build_stored_transformers(library, checkpoint, device, stored=_type_given(precision))
        if checkpoint.library == "diffusers":
            return build_stored_diffusers(library, checkpoint, device, stored=_type_given(precision))
        return _build_stored_timm(library, checkpoint, device)


def _type_given(precision: Precision | None) -> DType | None:
    """The 16-bit format that a precision gives the weights of a model; None where it gives none."""
    return None if precision is None else whole_model_type(precision)


@contextmanager
def _imported(package: str, *, purpose: str) -> Iterator[ModuleType]:
    """A library, imported with what it needs; models are built in here.

    Raises:
        MissingExtraError: where the library or PyTorch is not installed.
    """
    for needed in ("torch", package):
        if find_spec(needed) is None:
            raise MissingExtraError(package=needed, extra="zoo", purpose=purpose)
    with PROCESS_LOCK, collection_paused(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dippm.frontends.torch.late_compiler import compiler_postponed

        if find_spec("torchvision") is not None:
            from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

            import_torchvision_ops()
        with compiler_postponed():
            library = import_module(package)
        with _no_hub():
            yield library


@contextmanager
def _no_hub() -> Iterator[None]:
    """Keep a library from asking a hub for anything."""
    constants = sys.modules.get("huggingface_hub.constants")
    before = getattr(constants, _OFFLINE, None)
    if constants is None or before is None:
        yield
        return
    setattr(constants, _OFFLINE, True)
    try:
        yield
    finally:
        setattr(constants, _OFFLINE, before)


def _build_timm(timm: ModuleType, model: str, device: str, options: Mapping[str, Any]) -> tuple[nn.Module, InputShapes]:
    if not timm.is_model(model):
        raise unknown("timm", model, timm.list_models())
    module: Any = make_on(
        device, lambda: timm.create_model(model, pretrained=False, **options), name=f"timm:{model}", options=options
    )
    return module, _one_image(module.default_cfg["input_size"])


def _build_stored_timm(timm: ModuleType, checkpoint: StoredCheckpoint, device: str) -> tuple[nn.Module, InputShapes]:
    settings = harmless_settings(checkpoint.settings, name=checkpoint.name)
    model = settings["architecture"].partition(".")[0]
    if checkpoint.asked is not None:
        raise UsageError(
            f"'{checkpoint.path}' is a model of timm, which has no steps of generation.", code="generation.step"
        )
    if not timm.is_model(model):
        raise unknown_stored(checkpoint.config_path, "architecture", model, timm)
    own = settings.get("model_args") or {}
    if not isinstance(own, Mapping):
        raise build_failed(checkpoint.name, TypeError(f"model_args must be an object. Got {own!r} instead"), None)
    given = {"num_classes": settings.get("num_classes"), **own}
    arguments = {name: value for name, value in given.items() if value is not None}
    module: Any = make_on(
        device, lambda: timm.create_model(model, pretrained=False, **arguments), name=checkpoint.name, options=None
    )
    size = settings["pretrained_cfg"].get("input_size") or module.default_cfg["input_size"]
    if not _is_image_size(size):
        cause = ValueError(f"input_size must be channels, height and width, as [3, 224, 224]. Got {size!r} instead")
        raise build_failed(checkpoint.name, cause, None)
    return module, _one_image(size)


def _is_image_size(size: Any) -> bool:
    return (
        isinstance(size, list | tuple)
        and len(size) == 3
        and all(isinstance(extent, int) and not isinstance(extent, bool) and extent > 0 for extent in size)
    )


def _one_image(size: Sequence[int]) -> InputShapes:
    return InputShapes(positional=(InputEntry(shape=tuple(int(extent) for extent in size)),))


def _build_torchvision(
    torchvision: ModuleType, model: str, device: str, options: Mapping[str, Any]
) -> tuple[nn.Module, InputShapes]:
    models = torchvision.models
    names = models.list_models()
    if model.lower() not in names:
        raise unknown("torchvision", model, names)
    model = model.lower()
    definition = models.get_model_builder(model)
    given: dict[str, Any] = {"weights": None, **options}
    known = inspect.signature(inspect.unwrap(definition)).parameters
    if "weights_backbone" in known:
        given["weights_backbone"] = None
    module = make_on(device, lambda: models.get_model(model, **given), name=f"torchvision:{model}", options=options)
    package = definition.__module__
    size = _torchvision_size(models, model)
    if ".video" in package:
        entries = [InputEntry(shape=(3, _VIDEO_FRAMES, size, size))]
    elif ".optical_flow" in package:
        entries = [InputEntry(shape=(3, 520, 960))] * 2
    elif ".detection" in package:
        entries = [InputEntry(shape=(3, 800, 800))]
    elif ".segmentation" in package:
        entries = [InputEntry(shape=(3, 520, 520))]
    else:
        entries = [InputEntry(shape=(3, size, size))]
    return module, InputShapes(positional=tuple(entries))


def _torchvision_size(models: ModuleType, model: str) -> int:
    """Side of the image that a model's published weights were evaluated with."""
    weights = list(models.get_model_weights(model))
    crop = getattr(weights[-1].transforms(), "crop_size", None) if weights else None
    sizes = [crop] if isinstance(crop, int) else list(crop or ())
    return int(sizes[-1]) if sizes else 224


_BUILDERS: Mapping[str, Callable[[ModuleType, str, str, Mapping[str, Any]], tuple[Any, InputShapes]]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
}
# These build a model in the format that it will run in.
_TYPED_BUILDERS: Mapping[str, Callable[..., tuple[Any, InputShapes]]] = {
    "hf": build_transformers,
    "diffusers": build_diffusers,
}
# Libraries whose names say all of a model.
_IMAGE_MODELS = ("timm", "torchvision")
_PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers", "diffusers": "diffusers"}
