"""Models by name: ``timm:resnet50``, ``torchvision:vgg16``, ``hf:bert``. Nothing is downloaded.

Models are built from their library's own definition, with the library's default configuration; on PyTorch's ``meta``
device, where nothing else is asked for, a model of any size takes no memory. Importing this module imports none of the
libraries.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dippm.errors import MissingExtraError, UnsupportedError
from dippm.frontends.collection_pause import collection_paused
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.process_lock import PROCESS_LOCK
from dippm.graph import DType

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "is_zoo_name", "library_of"]

_META = "meta"
_SEQUENCE_LENGTH = 128
_AUDIO_SAMPLES = 16000  # one second
_VIDEO_FRAMES = 16


def is_zoo_name(name: str) -> bool:
    """Whether a model is named by a library's prefix rather than by a path."""
    return name.partition(":")[0] in _BUILDERS and ":" in name


def library_of(name: str) -> str | None:
    """The package that builds a model by name, such as ``"timm"``; None for a path."""
    return _PACKAGES.get(name.partition(":")[0]) if is_zoo_name(name) else None


def build(
    name: str, *, device: str = _META, options: Mapping[str, object] | None = None
) -> tuple[nn.Module, InputShapes]:
    """Build a model of a library without its trained weights.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, or ``hf:ARCH`` where ARCH is a model type of transformers
            (``bert``, ``gpt2``, ``llama``) or one of its classes (``BertForMaskedLM``).
        device: A torch device. On ``meta`` the weights have shapes and no values; on any other they are random and
            are made there from the start.
        options: What is not to be as the library has it by default: keyword arguments of timm's or torchvision's
            constructor, or entries of transformers' configuration.

    Returns:
        The module, its parameters on the device, and the input shapes that its library takes by default: the image
        size of its training recipe, 128 tokens for language models.

    Raises:
        UnsupportedError: ``zoo.unknown`` where the library has no such model, with the nearest names;
            ``zoo.build_failed`` where the library cannot build it from its defaults and the options.
        MissingExtraError: where the library or PyTorch is not installed.
    """
    prefix, _, model = name.partition(":")
    builder = _BUILDERS.get(prefix)
    if builder is None or not model:
        raise UnsupportedError(
            f"'{name}' names no model of a known library.",
            code="zoo.unknown",
            cure=f"Write it as one of {', '.join(f'{known}:NAME' for known in _BUILDERS)}.",
        )
    package = _PACKAGES[prefix]
    for needed in ("torch", package):
        if find_spec(needed) is None:
            raise MissingExtraError(package=needed, extra="zoo", purpose=f"build {name}")
    with PROCESS_LOCK, collection_paused(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dippm.frontends.torch.late_compiler import compiler_postponed

        if find_spec("torchvision") is not None:
            from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

            import_torchvision_ops()
        with compiler_postponed():
            library = import_module(package)
        return builder(library, model, device, dict(options or {}))


def _build_timm(timm: ModuleType, model: str, device: str, options: Mapping[str, Any]) -> tuple[nn.Module, InputShapes]:
    if not timm.is_model(model):
        raise _unknown("timm", model, timm.list_models())
    module: Any = _make_on(device, lambda: timm.create_model(model, pretrained=False, **options), name=f"timm:{model}")
    size = tuple(int(extent) for extent in module.default_cfg["input_size"])
    return module, InputShapes(positional=(InputEntry(shape=size),))


def _build_torchvision(
    torchvision: ModuleType, model: str, device: str, options: Mapping[str, Any]
) -> tuple[nn.Module, InputShapes]:
    models = torchvision.models
    names = models.list_models()
    if model.lower() not in names:
        raise _unknown("torchvision", model, names)
    model = model.lower()
    definition = models.get_model_builder(model)
    given: dict[str, Any] = {"weights": None, **options}
    known = inspect.signature(inspect.unwrap(definition)).parameters
    if "weights_backbone" in known:
        given["weights_backbone"] = None
    module = _make_on(device, lambda: models.get_model(model, **given), name=f"torchvision:{model}")
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


def _build_hf(
    transformers: ModuleType, model: str, device: str, options: Mapping[str, Any]
) -> tuple[nn.Module, InputShapes]:
    name = f"hf:{model}"
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if model in mapping:
        config = _make_config(mapping[model], options, name=name)
        module = _make_on(device, lambda: transformers.AutoModel.from_config(config), name=name)
    else:
        definition = getattr(transformers, model, None) if model.isidentifier() and model[0].isupper() else None
        config_class = getattr(definition, "config_class", None)
        if definition is None or config_class is None:
            raise _unknown("hf", model, mapping.keys())
        config = _make_config(config_class, options, name=name)
        module = _make_on(device, lambda: definition(config), name=name)
    return module, InputShapes(named=_hf_inputs(module, config))


def _make_config(config_class: Callable[..., Any], options: Mapping[str, Any], *, name: str) -> Any:
    try:
        return config_class(**options)
    except (TypeError, ValueError, AttributeError, OSError) as exc:
        raise _build_failed(name, exc) from exc


def _hf_inputs(module: Any, config: Any) -> Mapping[str, InputEntry]:
    """Inputs of a transformers model by the names of its forward."""
    parameters = inspect.signature(module.forward).parameters
    main = str(getattr(module, "main_input_name", "input_ids"))
    text = getattr(config, "text_config", None) or config
    longest = int(getattr(text, "max_position_embeddings", None) or 0)
    length = min(_SEQUENCE_LENGTH, longest) if longest > 0 else _SEQUENCE_LENGTH
    tokens = InputEntry(shape=(length,), dtype=DType.INT64)
    vision = getattr(config, "vision_config", None) or config
    has_vision = getattr(vision, "image_size", None) is not None
    entries: dict[str, InputEntry] = {}
    if main == "input_features" and "input_features" in parameters:
        bins = getattr(config, "num_mel_bins", None) or 80
        entries[main] = InputEntry(shape=(int(bins), 2 * int(getattr(config, "max_source_positions", None) or 1500)))
    elif main == "input_values" and "input_values" in parameters:
        entries[main] = InputEntry(shape=(_AUDIO_SAMPLES,))
    elif main == "pixel_values" or (has_vision and "input_ids" not in parameters):
        entries["pixel_values"] = _image(vision)
    else:
        entries["input_ids"] = tokens
        if has_vision and "pixel_values" in parameters:
            entries["pixel_values"] = _image(vision)
    if "input_ids" in parameters and "pixel_values" in entries:
        entries["input_ids"] = tokens
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        entries["decoder_input_ids"] = tokens
    return entries


def _image(config: Any) -> InputEntry:
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return InputEntry(shape=(int(getattr(config, "num_channels", None) or 3), int(height), int(width)))


def _make_on(device: str, make: Callable[[], nn.Module], *, name: str) -> nn.Module:
    """Build a module on a device; on the meta device, for real where its constructor needs values."""
    import torch

    from dippm.frontends.torch.valueless import WithoutValues

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device(device), WithoutValues():
                module = make()
        except (RuntimeError, NotImplementedError):
            try:
                module = make()
            except (RuntimeError, ValueError, TypeError, OSError) as exc:
                raise _build_failed(name, exc) from exc
        except (ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, AssertionError) as exc:
            raise _build_failed(name, exc) from exc
    # Some constructors make a table on the host whatever the device.
    return (module if device == _META else module.to(device)).eval()


def _build_failed(name: str, error: Exception) -> UnsupportedError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UnsupportedError(
        f"The library cannot build {name} from its defaults: {lines[0][:300]}",
        code="zoo.build_failed",
        cure="Build the module yourself and give it to dippm.predict, or give a file.",
    )


def _unknown(prefix: str, model: str, names: Iterable[str]) -> UnsupportedError:
    known = {str(name).lower(): str(name) for name in names}
    near = difflib.get_close_matches(model.lower(), known, n=5, cutoff=0.5)
    return UnsupportedError(
        f"{prefix} has no model '{model}' ({len(known)} names are known).",
        code="zoo.unknown",
        cure=f"The nearest are {', '.join(f'{prefix}:{known[name]}' for name in near)}." if near else None,
    )


_BUILDERS: Mapping[str, Callable[[ModuleType, str, str, Mapping[str, Any]], tuple[Any, InputShapes]]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
    "hf": _build_hf,
}
_PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
