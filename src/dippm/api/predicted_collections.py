"""What is predicted of a collection of models, as labels."""

from __future__ import annotations

import os
from collections.abc import Callable

from dippm.api.arguments import parse_conditions, parse_devices, parse_software
from dippm.api.datasets import cache_graphs, check_limit, parquet_path
from dippm.devices import DeviceSpec
from dippm.errors import UsageError

__all__ = ["predict_collection"]


def predict_collection(
    collection: str,
    path: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str],
    device: str | DeviceSpec,
    mode: str = "inference",
    precision: str = "fp32",
    layout: str = "nchw",
    runtime: str = "eager",
    optimizer: str | None = None,
    software: str | None = None,
    limit: int | None = None,
    jobs: int | None = None,
    seed: int = 0,
    on_graph: Callable[[int, int], None] | None = None,
    on_model: Callable[[int, int], None] | None = None,
) -> int:
    """Write what the shipped predictor says of a collection as labels, for :func:`dippm.train` to learn from first.

    Models that cannot be read or run, and batches that are more than the device holds, are left out.

    Args:
        collection: Name of a set of recipes; see :func:`list_recipes`.
        path: The Parquet file; it appears whole or not at all.
        cache: Folder of the graphs; models that it lacks are read.
        device: The device.
        mode: This and what follows up to ``software`` as for :func:`dippm.predict`.
        precision: Precision.
        layout: Layout.
        runtime: Runtime.
        optimizer: Optimizer of training.
        software: Releases of PyTorch and CUDA; those of today when left out.
        limit: At most so many recipes, from the start of the collection.
        jobs: Processes that read models; as many as there are processors when left out.
        seed: Seed of the recipes.
        on_graph: Called with the number of models read and their total.
        on_model: Called with the number of models predicted and their total.

    Returns:
        How many labels there are.

    Raises:
        UsageError: A name or option is wrong, the folder cannot be written to, or there is nothing to predict.
        UnsupportedError: The catalogue lacks the device, or nothing can run like that on it.
        MissingExtraError: A package is not installed.
        DippmError: The file cannot be written.
    """
    from dippm.datasets.graph_cache import GraphCache
    from dippm.datasets.recipes.collections import load_collection
    from dippm.datasets.store.parquet import export_parquet
    from dippm.training.predicted_labels import predict_labels

    target = parquet_path(path)
    conditions = parse_conditions(precision=precision, mode=mode, layout=layout, runtime=runtime, optimizer=optimizer)
    (spec,) = parse_devices(device, is_single=True)
    releases = parse_software(software, devices=[spec])
    recipes = load_collection(collection, seed)[: check_limit(limit)]
    # What cannot run at all is refused before any model is read.
    predicted = predict_labels(
        recipes,
        GraphCache(cache, mode=conditions.mode),
        device=spec,
        conditions=conditions,
        software=releases,
        on_progress=on_model,
    )
    failures = cache_graphs(
        collection, cache, mode=conditions.mode, limit=limit, jobs=jobs, seed=seed, on_progress=on_graph
    )
    labels = list(predicted)
    if not labels:
        reason = failures[0].reason if failures else f"none of its models runs on {spec.name} under these conditions."
        raise UsageError(f"Nothing of the collection '{collection}' can be predicted: {reason}", code="labels.none")
    return export_parquet(labels, target)
