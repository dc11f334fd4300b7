"""From a model file of another framework to an ONNX file without weights, by the framework's own converter."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError
from dippm.frontends.cache_folder import cache_folder
from dippm.frontends.conversion.cache import CacheEntry, ConversionCache, write_entry
from dippm.frontends.conversion.converter_process import run_converter
from dippm.frontends.conversion.limits import ConversionLimits

__all__ = ["ConvertedModel", "convert"]

_logger = logging.getLogger(__name__)

_FORMAT = 1  # goes up when the same converter's output is to be kept in another way
_CACHE_PART = "conversions"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertedModel:
    """An ONNX model that a converter wrote.

    Args:
        path: The file, without its large weights: their shapes and types are there, their values are not. It lies in
            the cache, or, where nothing is kept, in a temporary folder that lives as long as this object.
        converter_s: Seconds that the converter itself took, now or when the result was made.
        was_cached: Whether the result was there already.
    """

    path: Path
    converter_s: float
    was_cached: bool
    _holder: _TemporaryFolder | None = field(default=None, repr=False, compare=False)


def convert(
    *,
    framework: str,
    worker: str,
    source: Path,
    files: Sequence[Path],
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
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
        packages: Distributions whose versions the result depends on.
        limits: What the other process may take.

    Raises:
        ModelReadError: The files cannot be read, or the converter fails on them: ``model.unreadable``,
            ``conversion.failed``, ``conversion.crashed``.
        UnsupportedError: It takes more than the limits: ``conversion.timeout``, ``conversion.memory``,
            ``conversion.too_large``.
        DippmError: Whatever the worker raises.
    """
    name = str(source) if name is None else name
    options = dict(options or {})
    folder = cache_folder(_CACHE_PART)
    kept = None if folder is None else ConversionCache(folder)
    key = ""
    if kept is not None:
        key = _key(worker, files, options, packages, root=source if source.is_dir() else source.parent, name=name)
        entry = kept.load(key)
        if entry is not None:
            return ConvertedModel(path=entry.path, converter_s=entry.converter_s, was_cached=True)
    work = _TemporaryFolder()
    try:
        path, converter_s = run_converter(
            framework=framework,
            worker=worker,
            source=source,
            name=name,
            folder=work.path,
            options=options,
            limits=limits,
        )
        model = _without_weights(path, framework=framework, name=name)
    finally:
        work.remove()
    entry, holder = _keep(kept, key, model, converter_s)
    return ConvertedModel(path=entry.path, converter_s=converter_s, was_cached=False, _holder=holder)


def _keep(
    kept: ConversionCache | None, key: str, model: bytes, converter_s: float
) -> tuple[CacheEntry, _TemporaryFolder | None]:
    if kept is not None:
        try:
            return kept.save(key, model, converter_s=converter_s), None
        except OSError as exc:
            # A home that cannot be written to is no reason to fail.
            _logger.debug("a conversion is not kept: %s", exc)
    holder = _TemporaryFolder()
    return write_entry(holder.path, model, converter_s=converter_s), holder


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


def _key(
    worker: str, files: Sequence[Path], options: Mapping[str, Any], packages: Sequence[str], *, root: Path, name: str
) -> str:
    described: dict[str, Any] = {
        "format": _FORMAT,
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
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache
def _state_of_code(worker: str) -> str:
    """A hash of the worker's code, so that no result outlives a change of what made it."""
    spec = find_spec(worker)
    if spec is None or spec.origin is None:
        return ""
    module = Path(spec.origin)
    digest = hashlib.sha256()
    for path in sorted(module.parent.glob("*.py")) if "." in worker else [module]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _TemporaryFolder:
    """A folder that goes with this object, silently: nobody closes a model."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="dippm-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
