"""Models of transformers: by model type, by class, or by the name of a well-known checkpoint, whole or step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.checkpoint_folder import CONFIG_NAME, StoredCheckpoint
from dippm.frontends.inputs import InputShapes
from dippm.frontends.named_checkpoints import find_named, known_names
from dippm.frontends.transformers_inputs import default_inputs
from dippm.frontends.transformers_settings import refuse_unknown_settings
from dippm.frontends.zoo_building import (
    build_failed,
    default_dtype,
    harmless_settings,
    make_on,
    torch_type,
    unknown,
    unknown_stored,
    without_advice,
)
from dippm.graph import DType

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dippm.frontends.torch.generation import GenerationStep

__all__ = ["build_stored", "build_transformers", "doubts_of_stored"]

_STEP_MARK = "#"
# Those that hold weights while a model runs; others are of its files alone.
_TYPE_SETTINGS = ("dtype", "torch_dtype")
_TYPES_OF_WEIGHTS = ("float16", "bfloat16", "float32", "float64")


def build_transformers(
    transformers: ModuleType, model: str, device: str, options: Mapping[str, Any], *, stored: DType | None = None
) -> tuple[nn.Module, InputShapes]:
    """Build a model of transformers; see :func:`dippm.frontends.zoo.build`.

    Args:
        transformers: The library.
        model: As behind ``hf:``.
        device: A torch device.
        options: Entries of the configuration.
        stored: Type of the weights; None for PyTorch's own.
    """
    name = f"hf:{model}"
    architecture, mark, asked = model.partition(_STEP_MARK)
    checkpoint = find_named("hf", architecture)
    published: Mapping[str, Any] = {}
    if checkpoint is not None:
        architecture, published = checkpoint.architecture, checkpoint.config
    definition, config_class = _find_definition(transformers, architecture, is_decoder=bool(mark))
    with without_advice(transformers.logging):
        try:
            config = config_class(**{**published, **options})
        except Exception as exc:  # the library's own code, whose errors of validation have a class of their own
            raise build_failed(name, exc, options) from exc
    refuse_unknown_settings(name, config, options)
    return _build(
        transformers,
        definition,
        config,
        name=name,
        device=device,
        options=options,
        step=asked if mark else None,
        dtype=torch_type(stored),
    )


def build_stored(
    transformers: ModuleType, checkpoint: StoredCheckpoint, device: str, *, stored: DType | None = None
) -> tuple[nn.Module, InputShapes]:
    """Build the model that the configuration of a checkpoint describes, in the type that it names.

    No code beside the configuration is run.

    Args:
        transformers: The library.
        checkpoint: The checkpoint.
        device: A torch device.
        stored: Type of the weights; None for the one that the configuration names.
    """
    settings = _without_auto_types(harmless_settings(checkpoint.settings, name=checkpoint.name))
    model_type = settings["model_type"]
    architecture = _architecture_of(settings)
    is_foreign = bool(checkpoint.settings.get("auto_map"))
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if model_type not in mapping:
        if is_foreign:
            raise _foreign_code(checkpoint)
        raise unknown_stored(checkpoint.config_path, "model_type", model_type, transformers)
    with without_advice(transformers.logging):
        try:
            described = {**_with_backbone_config(settings), "architectures": [architecture] if architecture else None}
            config = mapping[model_type].from_dict(described)
            definition = _find_model_class(transformers, architecture, config)
            # What finds the class by itself asks the configuration, which may say what no weights can be made in.
            named = _dtype_of(config, otherwise=checkpoint.weight_dtype)
            config.dtype = dtype = torch_type(stored) or named
            if stored is not None:
                _store_parts_in(config, dtype)
        except Exception as exc:  # the library's own code, whose errors of validation have a class of their own
            raise build_failed(checkpoint.name, exc, None) from exc
    if definition is None and architecture and is_foreign:
        raise _foreign_code(checkpoint)
    is_decoder = checkpoint.asked is not None
    if definition is None or (is_decoder and architecture.endswith("Model")):
        definition = _automatic(transformers, type(config), is_decoder=is_decoder, name=checkpoint.name)
    return _build(
        transformers,
        definition,
        config,
        name=checkpoint.name,
        device=device,
        options=None,
        step=checkpoint.asked,
        dtype=dtype,
    )


def doubts_of_stored(checkpoint: StoredCheckpoint, module: Any) -> tuple[str, ...]:
    """What a user has to know of the module that was built for a checkpoint: that it is not the one that is named.

    Args:
        checkpoint: The checkpoint.
        module: What ``build_stored`` made of it.
    """
    architecture = _architecture_of(checkpoint.settings)
    if checkpoint.library != "transformers":
        return ()
    built = type(module if checkpoint.asked is None else module.model).__name__
    if architecture in {"", built}:
        return ()
    return (
        f"The checkpoint's {CONFIG_NAME} names {architecture}. Predicted is {built}, which transformers has for models "
        f"of type '{checkpoint.settings['model_type']}': where the two differ, as in their heads, it is of the latter.",
    )


def _without_auto_types(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that name no type for weights where they leave it to whoever loads them, at any depth."""
    return {
        name: _without_auto_types(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if not (name in _TYPE_SETTINGS and value == "auto")
    }


def _architecture_of(settings: Mapping[str, Any]) -> str:
    """The class that a configuration names; empty where it names none."""
    named = settings.get("architectures")
    first = named[0] if isinstance(named, list) and named else named
    return first if isinstance(first, str) else ""


def _find_model_class(transformers: ModuleType, architecture: str, config: Any) -> Callable[[Any], nn.Module] | None:
    """The class of a name, where it makes models of this configuration; the library has much else."""
    found: Any = getattr(transformers, architecture, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        return None
    config_class = getattr(found, "config_class", None)
    return found if isinstance(config_class, type) and isinstance(config, config_class) else None


def _with_backbone_config(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that describe a backbone of timm where they named it with arguments.

    Of such a name the library asks a hub first whether it is one of its own.
    """
    backbone, arguments = settings.get("backbone"), settings.get("backbone_kwargs")
    is_named = isinstance(backbone, str) and "/" not in backbone and settings.get("use_timm_backbone", True)
    if not is_named or not isinstance(arguments, Mapping) or not arguments or settings.get("backbone_config"):
        return settings
    channels = arguments.get("in_chans", settings.get("num_channels", 3))
    described = {"num_channels": channels, **arguments, "model_type": "timm_backbone", "backbone": backbone}
    rest = {name: value for name, value in settings.items() if name not in {"backbone", "backbone_kwargs"}}
    return {**rest, "backbone_config": described}


def _foreign_code(checkpoint: StoredCheckpoint) -> UnsupportedError:
    return UnsupportedError(
        f"The model of '{checkpoint.path}' is made by code that lies beside it, which dippm does not run.",
        code="checkpoint.foreign_code",
        cure="Build the module yourself, on PyTorch's meta device, and give it to dippm.predict.",
    )


def _dtype_of(config: Any, *, otherwise: str | None) -> torch.dtype | None:
    """The type that ``from_pretrained`` loads the weights in; None for PyTorch's own.

    Args:
        config: The configuration.
        otherwise: The type where it names none.
    """
    import torch

    known: dict[str, torch.dtype] = {dtype: getattr(torch, dtype) for dtype in _TYPES_OF_WEIGHTS}
    for part in (config, getattr(config, "text_config", None)):
        for name in _TYPE_SETTINGS:
            named = str(getattr(part, name, None)).removeprefix("torch.")
            if named in known:
                return known[named]
    return None if otherwise is None else known[otherwise]


def _store_parts_in(config: Any, dtype: torch.dtype | None) -> None:
    """Have every part of a model that has a configuration of its own made in a type, as ``from_pretrained`` does."""
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            part.dtype = dtype
            _store_parts_in(part, dtype)


def _build(
    transformers: ModuleType,
    definition: Callable[[Any], nn.Module],
    config: Any,
    *,
    name: str,
    device: str,
    options: Mapping[str, Any] | None,
    step: str | None,
    dtype: torch.dtype | None = None,
) -> tuple[nn.Module, InputShapes]:
    """Build the module of a configuration, at a step of generation where one is asked for.

    Args:
        transformers: The library.
        definition: Makes the module.
        config: The configuration.
        name: The model, for messages.
        device: A torch device.
        options: What the caller wants otherwise than the library has it; None for a configuration that says it all.
        step: As ``"decode=512"``; None for the whole model.
        dtype: Type of its weights; None for PyTorch's own.
    """
    with without_advice(transformers.logging), default_dtype(dtype):
        module = make_on(device, lambda: definition(config), name=name, options=options)
        if step is None:
            try:
                return module, InputShapes(named=default_inputs(module, config))
            except Exception as exc:  # a file may say anything where a size is expected
                raise build_failed(name, exc, options) from exc
        from dippm.frontends.torch.generation import GenerationModule

        which, tokens = _parse_step(step, name=name)
        at_step = GenerationModule(module, step=which, tokens=tokens)
    return at_step.eval(), at_step.default_input


def _find_definition(
    transformers: ModuleType, model: str, *, is_decoder: bool
) -> tuple[Callable[[Any], nn.Module], Callable[..., Any]]:
    """What makes the module of a configuration, and the configuration's class."""
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if model in mapping:
        return _automatic(transformers, mapping[model], is_decoder=is_decoder, name=f"hf:{model}"), mapping[model]
    definition = getattr(transformers, model, None) if model.isidentifier() and not model.islower() else None
    try:
        config_class = getattr(definition, "config_class", None)
    except ImportError as exc:  # what stands for a class whose packages are missing raises for whatever it is asked
        raise build_failed(f"hf:{model}", exc) from exc
    if definition is None or config_class is None:
        classes = [
            name for name in dir(transformers) if name[0].isupper() and ("For" in name or name.endswith("Model"))
        ]
        # Each checkpoint once, in the form that was asked for.
        checkpoints = [name for name in known_names("hf") if ("/" in name) is ("/" in model)]
        raise unknown("hf", model, [*mapping.keys(), *checkpoints, *classes])
    return definition, config_class


def _automatic(
    transformers: ModuleType, config_class: type[Any], *, is_decoder: bool, name: str
) -> Callable[[Any], nn.Module]:
    """What finds the class of a configuration by itself.

    Raises:
        UnsupportedError: ``generation.no_cache`` where a decoder is wanted, and the library has none.
    """
    if is_decoder and config_class not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedError(
            f"{name.partition(_STEP_MARK)[0]} has no cache of keys and values that transformers knows: of its type "
            f"'{config_class.model_type}' there is no model that writes text alone.",
            code="generation.no_cache",
            cure="Give a decoder, such as hf:LlamaForCausalLM; for a module of your own, give its cache as inputs.",
        )
    auto = transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModel
    return partial(auto.from_config, trust_remote_code=False)


def _parse_step(asked: str, *, name: str) -> tuple[GenerationStep, int]:
    from dippm.frontends.torch.generation import DEFAULT_TOKENS, GenerationStep

    step, equals, count = asked.partition("=")
    is_count = count.isascii() and count.isdigit() and len(count) < 10
    if step not in set(GenerationStep) or (equals and not is_count):
        raise UsageError(
            f"'{_STEP_MARK}{asked}' names no step of generation.",
            code="generation.step",
            cure=f"Write {name.partition(_STEP_MARK)[0]}#prefill=512 for the time to the first token of a prompt of "
            "512 tokens, or #decode=512 for the time of one more token after 512.",
        )
    return GenerationStep(step), int(count) if equals else DEFAULT_TOKENS
