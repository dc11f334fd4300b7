"""Graphs of models by name, kept between runs: what a library builds under a name does not change until it does.

Importing PyTorch and a library of models takes seconds; reading a kept graph takes milliseconds and imports neither.
Graphs of models that many ask for come with the package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dippm.frontends
import dippm.graph
from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision, whole_model_type
from dippm.datasets.graph_cache import GraphCache
from dippm.errors import UsageError
from dippm.frontends.cache_folder import FOLDER_VARIABLE, cache_folder
from dippm.frontends.inputs import InputShapes
from dippm.frontends.zoo import library_of
from dippm.graph import Graph
from dippm.graph.fingerprint import fingerprint

__all__ = [
    "FOLDER_VARIABLE",
    "PROOF_BATCH",
    "SHIPPED_FOLDER",
    "SHIPPED_NAMES",
    "SHIPPED_PROOF_BATCH",
    "read_kept",
    "ship_graph",
]

_logger = logging.getLogger(__name__)

#: Graphs that come with the package; ``python scripts/ship_named_graphs.py`` makes them anew.
SHIPPED_FOLDER = Path(__file__).with_name("named_graphs")
#: Models whose graphs come with the package, for inference and for training.
SHIPPED_NAMES = (
    *(f"timm:{name}" for name in (
        "convnext_tiny", "efficientnet_b0", "mobilenetv3_large_100", "resnet18", "resnet50",
        "swin_tiny_patch4_window7_224", "vit_base_patch16_224", "vit_small_patch16_224", "vit_tiny_patch16_224",
    )),
    *(f"torchvision:{name}" for name in (
        "densenet121", "mobilenet_v3_large", "resnet18", "resnet50", "vgg16", "vit_b_16",
    )),
)  # fmt: skip
_MOST_ENTRIES = 256
_DISTRIBUTIONS = ("torch", "torchvision")
_BUILT_IN_FORMAT = ("transformers", "diffusers")
_AS_PUBLISHED = "as published"
PROOF_BATCH = 64
"""A reader proves a graph at this batch or at the caller's, whichever is larger."""

SHIPPED_PROOF_BATCH = 4096
"""Batch at which the graphs that come with the package are proved."""


def read_kept(
    name: str,
    read: Callable[[], Graph],
    *,
    shapes: InputShapes,
    mode: Mode,
    batch_hint: int | None,
    precision: Precision | None = Precision.FP32,
    is_dequantised: bool = False,
) -> Graph:
    """The graph of a model by name: the kept one where there is one, else the one that is read, which is then kept.

    A kept graph holds for the versions of PyTorch, of the library and of the code that reads models, one that came with
    the package for the version of the library. Where the library is imported already, a program may have changed what
    it builds, and neither is used.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH`` or ``diffusers:CLASS``.
        read: Reads it.
        shapes: Shapes that the caller gave.
        mode: What it is read for.
        batch_hint: The batch to read it for where it cannot be read for every batch.
        precision: What it is read for; None for the type that the model is published in.
        is_dequantised: Whether it is read as it was before it was quantised.
    """
    folder = cache_folder("named-graphs")
    library = library_of(name)
    if library is None or library in sys.modules:
        return read()
    batch = batch_hint or 1
    if shapes == InputShapes() and batch <= SHIPPED_PROOF_BATCH:
        shipped = GraphCache(SHIPPED_FOLDER).load(
            _shipped_key(name, mode, _versions(library).get(library, "")), batch=batch
        )
        if shipped is not None:
            return replace(shipped.graph, proved_batch=SHIPPED_PROOF_BATCH)
    if folder is None:
        return read()
    # What other libraries build, every precision finds alike.
    stored = None
    if library in _BUILT_IN_FORMAT:
        stored = _AS_PUBLISHED if precision is None else whole_model_type(precision)
    described = (
        name,
        repr(shapes),
        mode.value,
        max(batch, PROOF_BATCH),
        stored,
        is_dequantised,
        batch_hint is None,
        _versions(library),
        _state_of_readers(),
    )
    key = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
    kept = GraphCache(folder)
    entry = kept.load(key, batch=batch)
    if entry is not None and entry.graph.goes_so_at(batch):
        return entry.graph
    graph = read()
    try:
        kept.save(key, graph, fingerprint=fingerprint(graph))
        _drop_oldest(folder)
    except (UsageError, OSError) as exc:
        # A home that cannot be written to is no reason to fail.
        _logger.debug("the graph of %s is not kept: %s", name, exc)
    return graph


def ship_graph(name: str, graph: Graph, *, mode: Mode, folder: Path = SHIPPED_FOLDER) -> None:
    """Put a graph among those that come with the package, for the version of its library that is installed."""
    library = library_of(name) or ""
    key = _shipped_key(name, mode, _versions(library).get(library, ""))
    GraphCache(folder).save(key, graph, fingerprint=fingerprint(graph))


def _shipped_key(name: str, mode: Mode, library_version: str) -> str:
    return hashlib.sha256(json.dumps((name, mode.value, library_version)).encode()).hexdigest()[:16]


def _versions(library: str) -> dict[str, str]:
    found = {}
    for distribution in dict.fromkeys((*_DISTRIBUTIONS, library)):
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            found[distribution] = ""
    return found


@cache
def _state_of_readers() -> str:
    """Sizes and times of the files that read models, so that a kept graph never outlives a change of them.

    The tables of checkpoints are among them.
    """
    digest = hashlib.sha256()
    for package in (dippm.frontends, dippm.graph):
        folder = Path(package.__path__[0])
        for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.toml"))):
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _drop_oldest(folder: Path) -> None:
    entries = sorted(folder.glob("??/*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in entries[_MOST_ENTRIES:]:
        path.unlink(missing_ok=True)
