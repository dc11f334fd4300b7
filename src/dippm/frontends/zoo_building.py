"""What all libraries of models have in common: building on a device, and saying what went wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dippm.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["META", "build_failed", "make_on", "unknown"]

#: PyTorch's device for tensors that have shapes and no values.
META = "meta"

_LONGEST = 300
_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


def make_on(
    device: str, make: Callable[[], nn.Module], *, name: str, options: Mapping[str, Any] | None = _DEFAULTS
) -> nn.Module:
    """Build a module on a device; on the meta device, for real where its constructor needs values.

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
        except (RuntimeError, NotImplementedError):
            try:
                module = make()
            except (RuntimeError, ValueError, TypeError, OSError) as exc:
                raise build_failed(name, exc, options) from exc
        except (ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, AssertionError) as exc:
            raise build_failed(name, exc, options) from exc
    # Some constructors make a table on the host whatever the device.
    return (module if device == META else module.to(device)).eval()


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
    given = ", ".join(f"{option}={value!r}" for option, value in (options or {}).items())
    origin = "from its configuration" if options is None else "from its defaults"
    return UnsupportedError(
        f"The library cannot build {name} {f'with {given[:_LONGEST]}' if given else origin}: {cause}.",
        code="zoo.build_failed",
        cure="Change the options to what the library can build, or leave them out."
        if given
        else "Build the module yourself and give it to dippm.predict, or give a file.",
    )


def unknown(prefix: str, model: str, names: Iterable[str]) -> UnsupportedError:
    """The error of a name that a library does not have, with the nearest that it has."""
    known = {str(name).lower(): str(name) for name in names}
    near = difflib.get_close_matches(model.lower(), known, n=5, cutoff=0.5)
    cures = [f"The nearest are {', '.join(f'{prefix}:{known[name]}' for name in near)}."] if near else []
    if "/" in model:
        cures.append("Of any other checkpoint give its folder, or its config.json alone.")
    return UnsupportedError(
        f"{prefix} has no model '{model}' ({len(known)} names are known).",
        code="zoo.unknown",
        cure=" ".join(cures) or None,
    )
