"""From a model file of another framework to an ONNX model without weights, by the framework's own converter."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError
from dippm.frontends.cache_folder import cache_folder
from dippm.frontends.conversion.cache import CacheEntry, ConversionCache
from dippm.frontends.conversion.converter_process import run_converter
from dippm.frontends.conversion.limits import ConversionLimits

__all__ = ["ConvertedModel", "convert"]

_logger = logging.getLogger(__name__)

_CACHE_PART = "conversions"
# What takes the weights out of a converter's file.
_SKELETON = "onnx/skeleton.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertedModel:
    """An ONNX model that a converter wrote.

    Args:
        model: The ONNX file's bytes, without its large weights: their shapes and types are there, their values are not.
        converter_s: Seconds that the converter itself took, now or when the result was made.
        was_cached: Whether the result was there already.
        warnings: What the converter says of it, in words for the user.
    """

    model: bytes
    converter_s: float
    was_cached: bool
    warnings: tuple[str, ...] = ()


def convert(
    *,
    framework: str,
    worker: str,
    source: Path,
    files: Sequence[Path],
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    hints: Mapping[str, Any] | None = None,
    packages: Sequence[str] = (),
    limits: ConversionLimits = ConversionLimits(),  # noqa: B008 - it is frozen
) -> ConvertedModel:
    """Convert a model to ONNX in another process, or take what an earlier conversion of the same content left.

    The other process has no package index, no proxy to a network, no card, a home of its own, little environment and
    the limits; it and all that it starts are ended when this function ends, whichever way. It is no sandbox.

    Args:
        framework: The model's framework, for messages, such as ``"TensorFlow"``.
        worker: Module that is run there as ``__main__`` and converts; it calls
            :func:`dippm.frontends.conversion.worker.run_worker`.
        source: The model, a file or a folder.
        files: All files that the result depends on.
        name: The model's name in messages; None for its path.
        options: What the worker is to know, as JSON has it; the result depends on them.
        hints: What the worker may use where the model does not say it itself, as JSON has it. A result that was made
            without them is kept for all of them.
        packages: Distributions whose versions the result depends on.
        limits: What the other process may take.

    Raises:
        ModelReadError: The files cannot be read, or the converter fails on them: ``model.unreadable``,
            ``conversion.failed``, ``conversion.crashed``.
        UnsupportedError: It takes more than the limits: ``conversion.timeout``, ``conversion.memory``,
            ``conversion.no_space``, ``conversion.too_large``.
        DippmError: Whatever the worker raises.
    """
    name = str(source) if name is None else name
    options = dict(options or {})
    folder = cache_folder(_CACHE_PART)
    kept = None if folder is None else ConversionCache(folder)
    root = source if source.is_dir() else source.parent
    hints = dict(hints or {})
    keys_now = partial(_keys, worker, files, options, hints, packages, root=root, name=name)
    keys: tuple[str, str] = ("", "")
    if kept is not None:
        keys = keys_now()
        entry = kept.load(keys[0]) or kept.load(keys[1])
        if entry is not None:
            return ConvertedModel(
                model=entry.model, converter_s=entry.converter_s, was_cached=True, warnings=entry.warnings
            )
    with tempfile.TemporaryDirectory(prefix="dippm-", ignore_cleanup_errors=True) as work:
        result = run_converter(
            framework=framework,
            worker=worker,
            source=source,
            name=name,
            folder=Path(work),
            options=options,
            hints=hints,
            limits=limits,
        )
        model = _without_weights(result.path, framework=framework, name=name)
    if kept is not None:
        try:
            # The model may have been exported anew while the converter ran: nobody knows which one it read.
            if keys_now() == keys:
                entry = CacheEntry(model=model, converter_s=result.converter_s, warnings=result.warnings)
                kept.save(keys[1] if result.used_hints else keys[0], entry)
        except (OSError, ModelReadError) as exc:
            # A home that cannot be written to is no reason to fail.
            _logger.debug("a conversion is not kept: %s", exc)
    return ConvertedModel(model=model, converter_s=result.converter_s, was_cached=False, warnings=result.warnings)


def _without_weights(path: Path, *, framework: str, name: str) -> bytes:
    # The converter's process imports this package, and no reader of models.
    from dippm.frontends.onnx.skeleton import extract_skeleton

    if path.stat().st_size == 0:
        raise ModelReadError(
            f"The converter of {framework} wrote an empty file for '{name}'.", code="conversion.failed"
        )
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return extract_skeleton(view)


def _keys(
    worker: str,
    files: Sequence[Path],
    options: Mapping[str, Any],
    hints: Mapping[str, Any],
    packages: Sequence[str],
    *,
    root: Path,
    name: str,
) -> tuple[str, str]:
    """The keys of a result that depends on no hints, and of one that depends on these."""
    described: dict[str, Any] = {
        "worker": worker,
        "code": _state_of_code(worker),
        "options": options,
        "versions": {package: _version(package) for package in ("dippm", *packages)},
        "files": [],
    }
    for path in files:
        relative = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        try:
            with path.open("rb") as stream:
                described["files"].append((relative, hashlib.file_digest(stream, "sha256").hexdigest()))
        except OSError as exc:
            raise ModelReadError(f"'{name}' cannot be read: {exc}.", code="model.unreadable") from exc
    plain, hinted = (
        hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()[:32]
        for each in (described, {**described, "hints": hints})
    )
    return plain, hinted


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache
def _state_of_code(worker: str) -> str:
    """A hash of the code that a result comes through, so that none outlives a change of it."""
    own = Path(__file__).parent
    paths = [*own.glob("*.py"), own.parent / _SKELETON]
    spec = find_spec(worker)
    if spec is not None and spec.origin is not None:
        module = Path(spec.origin)
        paths += module.parent.glob("*.py") if "." in worker else [module]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()
