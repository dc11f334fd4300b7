"""Models of diffusers: by class, by the name of a well-known checkpoint and its part, or by a part's configuration."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dippm.errors import UsageError
from dippm.frontends.checkpoint_folder import StoredCheckpoint
from dippm.frontends.diffusers_inputs import default_inputs, parse_image
from dippm.frontends.inputs import InputShapes
from dippm.frontends.named_checkpoints import find_named, known_names
from dippm.frontends.zoo_building import (
    build_failed,
    default_dtype,
    harmless_settings,
    make_on,
    option_unknown,
    torch_type,
    unknown,
    unknown_stored,
    without_advice,
)
from dippm.graph import DType

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["build_diffusers", "build_stored"]

_MARK = "#"
_NEAREST = 3
# Parts of the names of classes that are models.
_MODELS = ("Model", "Transformer", "Autoencoder", "UNet", "ControlNet")


def build_diffusers(
    diffusers: ModuleType, model: str, device: str, options: Mapping[str, Any], *, stored: DType | None = None
) -> tuple[nn.Module, InputShapes]:
    """Build a model of diffusers; see :func:`dippm.frontends.zoo.build`.

    Args:
        diffusers: The library.
        model: As behind ``diffusers:``: a class, or a checkpoint with the part of its pipeline, and ``#image=N`` for
            images of so many pixels a side.
        device: A torch device.
        options: Entries of the configuration.
        stored: Type of the weights; None for PyTorch's own.
    """
    name = f"diffusers:{model}"
    architecture, mark, asked = model.partition(_MARK)
    checkpoint = find_named("diffusers", architecture)
    published: Mapping[str, Any] = {}
    if checkpoint is not None:
        architecture, published = checkpoint.architecture, checkpoint.config
    definition = _find_definition(diffusers, architecture)
    known = inspect.signature(definition.__init__).parameters
    for option in options:
        if option not in known:
            raise option_unknown(name, option, difflib.get_close_matches(option, known, n=_NEAREST, cutoff=0.6))
    return _build(
        diffusers,
        definition,
        {**published, **options},
        name=name,
        device=device,
        options=options,
        asked=asked if mark else None,
        dtype=torch_type(stored),
    )


def build_stored(
    diffusers: ModuleType, checkpoint: StoredCheckpoint, device: str, *, stored: DType | None = None
) -> tuple[nn.Module, InputShapes]:
    """Build the model that the configuration of a part of a pipeline describes. No code beside it is run.

    Args:
        diffusers: The library.
        checkpoint: The checkpoint.
        device: A torch device.
        stored: Type of the weights; None for PyTorch's own, in which the library loads them whatever the files hold.
    """
    settings = harmless_settings(checkpoint.settings, name=checkpoint.name)
    architecture = settings["_class_name"]
    if architecture not in dir(diffusers):
        raise unknown_stored(checkpoint.config_path, "_class_name", architecture, diffusers)
    return _build(
        diffusers,
        _find_definition(diffusers, architecture),
        settings,
        name=checkpoint.name,
        device=device,
        options=None,
        asked=checkpoint.asked,
        dtype=torch_type(stored),
    )


def _find_definition(diffusers: ModuleType, architecture: str) -> Any:
    """The class of a name, where it makes models of a configuration; the library has much else.

    Raises:
        UnsupportedError: ``zoo.unknown``; ``zoo.build_failed`` where it cannot be imported.
    """
    try:
        found: Any = getattr(diffusers, architecture, None) if architecture.isidentifier() else None
    except (ImportError, RuntimeError) as exc:  # it imports a class when it is asked for it, with all that this needs
        raise build_failed(f"diffusers:{architecture}", exc) from exc
    if isinstance(found, type) and issubclass(found, diffusers.ModelMixin) and issubclass(found, diffusers.ConfigMixin):
        return found
    classes = [name for name in dir(diffusers.models) if any(word in name for word in _MODELS) and name != architecture]
    raise unknown("diffusers", architecture, [*known_names("diffusers"), *classes])


def _build(
    diffusers: ModuleType,
    definition: Any,
    settings: Mapping[str, Any],
    *,
    name: str,
    device: str,
    options: Mapping[str, Any] | None,
    asked: str | None,
    dtype: torch.dtype | None,
) -> tuple[nn.Module, InputShapes]:
    """Build the module of a configuration.

    Args:
        diffusers: The library.
        definition: The class.
        settings: The configuration.
        name: The model, for messages.
        device: A torch device.
        options: What the caller wants otherwise than the library has it; None for a configuration that says it all.
        asked: What stands behind the ``#``.
        dtype: Type of its weights; None for PyTorch's own.
    """
    image = None if asked is None else parse_image(asked, name=name)
    with without_advice(diffusers.utils.logging), default_dtype(dtype):
        module = make_on(device, lambda: definition.from_config(settings), name=name, options=options)
    has_fp32_parts = _keep_in_fp32(module)
    try:
        inputs = default_inputs(module, image=image)
        return module, _in_type(inputs, dtype) if has_fp32_parts and dtype is not None else inputs
    except UsageError:
        raise
    except Exception as exc:  # a file may say anything where a size is expected
        raise build_failed(name, exc, options) from exc


def _keep_in_fp32(module: Any) -> bool:
    """Give those weights FP32 that ``from_pretrained`` keeps in it whatever that of the others; whether any are."""
    kept = set(module._keep_in_fp32_modules or ())
    found = [weight for name, weight in module.named_parameters() if kept.intersection(name.split("."))]
    for weight in found:
        weight.data = weight.data.float()
    return bool(found)


def _in_type(inputs: InputShapes, dtype: torch.dtype) -> InputShapes:
    """Inputs in the type of the weights, where these have several and do not tell it."""
    from dippm.frontends.torch.dtypes import from_torch_dtype

    named = {
        name: replace(entry, dtype=from_torch_dtype(dtype)) if entry.dtype is None else entry
        for name, entry in (inputs.named or {}).items()
    }
    return replace(inputs, named=named)
