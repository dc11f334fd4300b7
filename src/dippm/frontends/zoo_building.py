"""What all libraries of models have in common: what they may be told, building on a device, saying what went wrong."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from dippm.errors import UnsupportedError, UsageError, error_chain, quote
from dippm.graph import DType

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "META",
    "build_failed",
    "default_dtype",
    "harmless_settings",
    "make_on",
    "option_unknown",
    "torch_type",
    "unknown",
    "unknown_stored",
    "without_advice",
]

#: PyTorch's device for tensors that have shapes and no values.
META = "meta"

_LONGEST = 300
_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
# Where transformers finds code that is not its own.
_CODE_OF_OTHERS = frozenset({"_name_or_path", "auto_map", "custom_pipelines", "name_or_path"})
# Those of transformers want packages, or code of a hub, in place of PyTorch's own attention.
_IMPLEMENTATION = "_implementation"
_OWN_IMPLEMENTATIONS = ("eager", "sdpa")
# What is handed on to timm's constructor, and what that takes from elsewhere.
_ARGUMENTS_OF_TIMM = frozenset({"backbone_kwargs", "model_args"})
_WEIGHTS_OF_TIMM = frozenset({"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"})
_NAMES_OF_TIMM = frozenset({"architecture", "backbone"})
_WANTS_WEIGHTS = "use_pretrained_backbone"
# transformers makes a name for each.
_NUMBERS_OF_CLASSES = frozenset({"num_classes", "num_labels"})
_MOST_CLASSES = 1_000_000
_HUB_ERRORS = frozenset({"LocalEntryNotFoundError", "OfflineModeIsEnabled"})


def harmless_settings(settings: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """A configuration without what makes a library run code, open files or ask a hub; such may lie at any depth.

    Args:
        settings: The configuration, as JSON has it.
        name: The model, for messages.

    Raises:
        UnsupportedError: ``zoo.unknown`` where a model of timm is named by the place that it lies in;
            ``zoo.build_failed`` where the configuration is too deep, or has more than a million classes.
    """
    try:
        return _harmless_entries(settings, are_arguments=False)
    except RecursionError as exc:
        raise build_failed(name, exc, None) from exc


def _harmless_entries(settings: Mapping[str, Any], *, are_arguments: bool) -> dict[str, Any]:
    unwanted = _CODE_OF_OTHERS | _WEIGHTS_OF_TIMM if are_arguments else _CODE_OF_OTHERS
    entries = {}
    for name, value in settings.items():
        if name in unwanted or (_IMPLEMENTATION in name and value not in _OWN_IMPLEMENTATIONS):
            continue
        if name in _NAMES_OF_TIMM and isinstance(value, str) and ":" in value:
            raise UnsupportedError(
                f"'{value}' names a place to load a model of timm from, and no model.",
                code="zoo.unknown",
                cure="Give that folder, or its config.json alone.",
            )
        if name in _NUMBERS_OF_CLASSES and isinstance(value, int | float) and value > _MOST_CLASSES:
            raise UnsupportedError(
                f"The configuration's {name} is {value:,}, and more than {_MOST_CLASSES:,} are not built.",
                code="zoo.build_failed",
            )
        entries[name] = _harmless(value, are_arguments=are_arguments or name in _ARGUMENTS_OF_TIMM)
    if entries.keys() & {"backbone", _WANTS_WEIGHTS}:
        entries[_WANTS_WEIGHTS] = False
    return entries


def _harmless(value: Any, *, are_arguments: bool) -> Any:
    if isinstance(value, Mapping):
        return _harmless_entries(value, are_arguments=are_arguments)
    if isinstance(value, list):
        return [_harmless(item, are_arguments=are_arguments) for item in value]
    return value


def make_on(
    device: str, make: Callable[[], nn.Module], *, name: str, options: Mapping[str, Any] | None = _DEFAULTS
) -> nn.Module:
    """Build a module on a device; on the meta device, for real where its constructor needs values.

    What a file describes is never built for real without having been asked for: it may be of any size.

    Args:
        device: A torch device.
        make: Builds it.
        name: The model, for the message where it is not built.
        options: What the caller wants otherwise than the library has it, for that message; None for a model that a
            file describes.

    Raises:
        UnsupportedError: ``zoo.build_failed``.
    """
    import torch

    from dippm.frontends.torch.valueless import WithoutValues

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device(device), WithoutValues():
                module = make()
        except Exception as exc:  # the library's own code, which fails in any way on what a file may say
            if options is None or not isinstance(exc, RuntimeError):
                raise build_failed(name, exc, options) from exc
            try:
                module = make()
            except Exception as again:
                raise build_failed(name, again, options) from again
    # Some constructors make a table on the host whatever the device.
    return (module if device == META else module.to(device)).eval()


def torch_type(dtype: DType | None) -> torch.dtype | None:
    """The type as PyTorch has it; None for None."""
    from dippm.frontends.torch.dtypes import to_torch_dtype

    return None if dtype is None else to_torch_dtype(dtype)


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """What is made in here has this type where nothing says another, as ``from_pretrained`` makes it."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(before if dtype is None else dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def without_advice(log: Any) -> Iterator[None]:
    """Keep a library from printing advice to those who load weights; what of it matters here, an error says.

    Args:
        log: The module of transformers or diffusers that sets how much they print.
    """
    level = log.get_verbosity()
    log.set_verbosity(max(level, logging.ERROR))
    try:
        yield
    finally:
        log.set_verbosity(level)


def build_failed(name: str, error: Exception, options: Mapping[str, Any] | None = _DEFAULTS) -> UnsupportedError:
    """The error of a model that its library's constructor does not make.

    Args:
        name: The model.
        error: What the constructor raised.
        options: What the caller wants otherwise than the library has it; None for a model that a file describes.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, KeyError):
        lines = [f"there is no {lines[0]}" if error.args else "KeyError"]
    # A line that ends so says no more than where.
    cause = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    cause = re.sub(r"\s+", " ", cause)[:_LONGEST].rstrip(" .:")
    if any(type(link).__name__ in _HUB_ERRORS for link in error_chain(error)):
        # The library's advice is to let it ask.
        cause = "it asks a hub for a part of the model, and nothing is downloaded"
    given = ", ".join(f"{option}={value!r}" for option, value in (options or {}).items())
    origin = "from its configuration" if options is None else "from its defaults"
    return UnsupportedError(
        f"The library cannot build {name} {f'with {given[:_LONGEST]}' if given else origin}: {cause}.",
        code="zoo.build_failed",
        cure=_cure(name, error, has_options=bool(given), is_described=options is None),
    )


def _cure(name: str, error: Exception, *, has_options: bool, is_described: bool) -> str:
    if isinstance(error, ImportError):
        return "Install that package."
    if has_options:
        return "Change the options to what the library can build, or leave them out."
    if name.startswith("hf:") and not is_described:
        return (
            "Some classes have no sizes of their own that go together: give a checkpoint's folder or its config.json, "
            "or build the module yourself and give it to dippm.predict."
        )
    return "Build the module yourself and give it to dippm.predict, or give a file."


def unknown(prefix: str, model: str, names: Iterable[str]) -> UnsupportedError:
    """The error of a name that a library does not have, with the nearest that it has."""
    known = {str(name).lower(): str(name) for name in names}
    near = difflib.get_close_matches(model.lower(), known, n=5, cutoff=0.5)
    # An abbreviation, as sdxl is of stable-diffusion-xl-base-1.0/unet: its letters in order, from the first on.
    letters = re.compile(".*".join(map(re.escape, model.lower())))
    near = near or sorted(filter(letters.match, known), key=len)[:5]
    cures = [f"The nearest are {', '.join(f'{prefix}:{known[name]}' for name in near)}."] if near else []
    if "/" in model:
        cures.append("Of any other checkpoint give its folder, or its config.json alone.")
    return UnsupportedError(
        f"{prefix} has no model '{model}' ({len(known)} names are known).",
        code="zoo.unknown",
        cure=" ".join(cures) or None,
    )


def unknown_stored(config: Path, setting: str, name: str, library: ModuleType) -> UnsupportedError:
    """The error of a configuration that names a model which the installed library does not have.

    Args:
        config: The file of the configuration.
        setting: What names the model in it.
        name: The name there.
        library: The library.
    """
    return UnsupportedError(
        f"'{config}' names {setting} {quote(name)}, which {library.__name__} {library.__version__} does not have.",
        code="zoo.unknown",
        cure=f"Update {library.__name__}, give an ONNX file, or build the module yourself and give it to "
        "dippm.predict.",
    )


def option_unknown(name: str, option: str, near: Sequence[str]) -> UsageError:
    """The error of an option that a model's configuration does not have, with the nearest that it has."""
    return UsageError(
        f"The configuration of {name} has no setting '{option}'.",
        code="zoo.option_unknown",
        cure=f"The nearest: {', '.join(near)}." if near else "Leave it out.",
    )
