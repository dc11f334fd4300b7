"""A campaign of layers: convolutions of models, each by itself, traced on a device.

A layer takes some milliseconds to measure, where a model takes a second and has few layers that no other has. What is
measured is listed before, where no device is needed::

    python -m dippm.datasets.campaign.layers list --cache GRAPHS --first dippm-zoo=1270 --models 1000 --out layers.gz
    python -m dippm.datasets.campaign.layers measure layers.gz --out FOLDER --budget 540
    python -m dippm.datasets.campaign.layers collect layers.gz --rows FOLDER/*.gz --labels labels.parquet
        --traces traces.parquet

*Listed* are the layers of models of both collections of images, in their stratified order: in amp at the batch of the
recipe and at another one, and of every few models in other precisions and in NHWC. Each layer comes once, with the
first model that has it.

*Measured* they are in that order until the budget ends, a few hundred at a time: each runs once, and when all have,
once more under PyTorch's profiler.

*Collected* they are traces like those of models, each by the text of its layer in place of a label's key, and a label
for each model in each condition, of the source ``dippm-layers``, which has the time of these layers' kernels and no
latency. Lines that were cut off are passed over.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import math
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from dippm.costs.conditions import Conditions, Layout
from dippm.costs.precision import Precision
from dippm.datasets.campaign.passed_over import add_first_option
from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.graph_layers import list_layers
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.datasets.store.traces import write_traces
from dippm.measuring.configuration import Configuration
from dippm.measuring.layer import Layer
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.measuring.operator_run import KernelRun, OperatorRun

__all__ = ["LAYERS_SOURCE", "list_plans", "main"]

_LOG = logging.getLogger(__name__)

LAYERS_SOURCE = "dippm-layers"
"""Source of labels of which some layers alone were measured, each by itself."""

_COLLECTIONS = ("dippm-zoo", "timm-named")
_AMP = Conditions(precision=Precision.AMP)
# Conditions besides, each for one model in so many.
_SHARES = (
    (4, Conditions(precision=Precision.FP32)),
    (4, replace(_AMP, layout=Layout.NHWC)),
    (8, Conditions(precision=Precision.FP16)),
    (8, Conditions(precision=Precision.TF32)),
    (8, Conditions(precision=Precision.AMP_BF16)),
    (16, Conditions(precision=Precision.BF16)),
    (16, Conditions(precision=Precision.FP32_STRICT)),
)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_AT_ONCE = 512
_LINES_IN_A_FILE = 20_000
# Beyond these a layer is passed over: it would take the time of many, or more room than there is.
_MOST_MACS = 3e11
_MOST_ELEMENTS = 10**9


def list_plans(first: dict[str, int], models: int) -> Iterator[tuple[Recipe, Conditions]]:
    """Models with the batches and conditions whose layers are to be measured, in order.

    Args:
        first: Recipes to pass over, by collection.
        models: How many recipes to take of each collection.
    """
    drawn = (islice(load_collection(name), first.get(name, 0), first.get(name, 0) + models) for name in _COLLECTIONS)
    for number, recipe in enumerate(filter(None, chain.from_iterable(zip_longest(*drawn)))):
        digest = zlib.crc32(recipe.key.encode())
        other = _BATCHES[digest % len(_BATCHES)]
        yield recipe, _AMP
        if other != recipe.batch:
            yield replace(recipe, batch=other), _AMP
        for place, (every, conditions) in enumerate(_SHARES):
            if (number + place) % every == 0:
                yield recipe, conditions


def _list(options: argparse.Namespace) -> None:
    cache = GraphCache(options.cache)
    plans = list(list_plans(dict(options.first), options.models))
    for failure in build_graphs([recipe for recipe, _ in plans], cache, jobs=options.jobs):
        _LOG.warning("left out %s: %s", failure.recipe.architecture, failure.reason)
    listed: set[Layer] = set()
    with gzip.open(options.out, "wt", encoding="utf-8") as stream:
        for recipe, conditions in plans:
            cached = cache.load(recipe.model_key, batch=recipe.batch)
            if cached is None:
                continue
            found = dict.fromkeys(each.layer for each in list_layers(cached.graph, recipe.batch, conditions))
            layers = [layer for layer in found if layer not in listed and _is_in_reach(layer)]
            listed.update(layers)
            if layers:
                of_model = [
                    recipe.to_dict(),
                    conditions.precision,
                    conditions.layout,
                    [each.to_text() for each in layers],
                ]
                stream.write(json.dumps(of_model, separators=(",", ":")) + "\n")
    _LOG.info("%d layers", len(listed))


def _is_in_reach(layer: Layer) -> bool:
    batch, channels, height, width = layer.image
    pixels = batch * height * width / math.prod(layer.stride)
    macs = pixels * layer.channels * channels / layer.groups * math.prod(layer.kernel)
    return macs <= _MOST_MACS and max(batch * channels * height * width, pixels * layer.channels) <= _MOST_ELEMENTS


def _measure(options: argparse.Namespace) -> None:
    from dippm.measuring.bench import Bench
    from dippm.measuring.layer_bench import LayerBench

    deadline_s = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    layers = [layer for _, _, layers in _read_listed(options.listed) for layer in layers]
    device = Bench(options.device)
    described = {"device": device.device_name, **asdict(device.software)}
    bench = LayerBench(options.device)
    for start in range(0, len(layers), _LINES_IN_A_FILE):
        path = options.out / f"layers-{start // _LINES_IN_A_FILE:02}.jsonl.gz"
        with gzip.open(path, "xt", encoding="utf-8", compresslevel=5) as stream:  # no row is written over
            stream.write(json.dumps(described | {"measured_at": _now()}) + "\n")
            names: dict[str, int] = {}
            part = layers[start : start + _LINES_IN_A_FILE]
            for done in range(0, len(part), _AT_ONCE):
                if time.monotonic() > deadline_s:
                    return
                some = part[done : done + _AT_ONCE]
                for layer, runs in zip(some, bench.trace(some), strict=True):
                    known = len(names)
                    values = None if runs is None else [_to_list(run, names) for run in runs]
                    new = list(islice(names, known, None))
                    stream.write(json.dumps([layer.to_text(), new, values], separators=(",", ":")) + "\n")
                stream.flush()
                _LOG.info("%d layers, %.0f s left", start + done + len(some), deadline_s - time.monotonic())


def _to_list(run: OperatorRun, names: dict[str, int]) -> list[Any]:
    """An operator in few letters: names of kernels, which are long, are numbered as they come."""

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    kernels = [
        [number(k.name), number(k.launched_by), round(k.start_us, 3), round(k.duration_us, 3)] for k in run.kernels
    ]
    return [run.name, kernels]


def _collect(options: argparse.Namespace) -> None:
    found: dict[str, list[OperatorRun]] = {}
    measured: dict[str, Any] = {}
    for path in options.rows:
        names: list[str] = []
        for line in _read_lines(path):
            values = json.loads(line)
            if isinstance(values, dict):
                measured = measured or values
                continue
            text, new, operators = values
            names += new
            if operators is not None:
                found[text] = [_run(operator, names) for operator in operators]
    if not found:
        raise SystemExit("These rows hold no layer that was measured.")
    software = SoftwareStack(**{field.name: measured[field.name] for field in fields(SoftwareStack)})
    labels = []
    for recipe, conditions, layers in _read_listed(options.listed):
        runs = [run for layer in layers for run in found.get(layer.to_text(), ())]
        if runs:
            measurement = Measurement(
                outcome=Outcome.OK,
                device=measured["device"],
                measured_at=measured["measured_at"],
                device_time_ms=sum(run.duration_us for run in runs) / 1e3,
                software=software,
            )
            configuration = Configuration(batch=recipe.batch, conditions=conditions)
            labels.append(
                Label(recipe=recipe, configuration=configuration, measurement=measurement, source=LAYERS_SOURCE)
            )
    export_parquet(labels, options.labels)
    kernels = write_traces(options.traces, found.items())
    _LOG.info("%d layers of %d models, %d kernels", len(found), len(labels), kernels)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_listed(path: Path) -> Iterator[tuple[Recipe, Conditions, list[Layer]]]:
    for line in _read_lines(path):
        recipe, precision, layout, layers = json.loads(line)
        conditions = Conditions.parse(precision=precision, layout=layout)
        yield Recipe.from_dict(recipe), conditions, [Layer.from_text(text) for text in layers]


def _run(values: Any, names: Sequence[str]) -> OperatorRun:
    name, kernels = values
    return OperatorRun(
        name=name,
        input_shapes=(),
        scalars=(),
        is_backward=False,
        kernels=tuple(
            KernelRun(name=names[kernel], launched_by=names[by], start_us=start_us, duration_us=duration_us)
            for kernel, by, start_us, duration_us in kernels
        ),
    )


def _read_lines(path: Path) -> Iterator[str]:
    """Whole lines of a compressed file, which may have been cut off."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        try:
            yield from (line[:-1] for line in stream if line.endswith("\n"))
        except EOFError:
            _LOG.warning("%s was cut off", path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: list layers, measure them, collect what was measured."""
    parser = argparse.ArgumentParser(description="Measure layers of models on a CUDA device.")
    steps = parser.add_subparsers(required=True)
    listing = steps.add_parser("list", help="list what to measure")
    listing.set_defaults(run=_list)
    listing.add_argument("--cache", type=Path, required=True, help="folder of graphs; those it lacks are read")
    add_first_option(listing, _COLLECTIONS)
    listing.add_argument("--models", type=int, required=True, help="recipes of each collection")
    listing.add_argument("--jobs", type=int, default=1, help="processes that read models")
    listing.add_argument("--out", type=Path, required=True, help="compressed lines, one for each model")
    measuring = steps.add_parser("measure", help="measure until the budget ends")
    measuring.set_defaults(run=_measure)
    measuring.add_argument("listed", type=Path, help="what was listed")
    measuring.add_argument("--out", type=Path, required=True, help="folder of the rows; it holds none yet")
    measuring.add_argument("--budget", type=float, required=True, help="time to end within, s")
    measuring.add_argument("--device", default="cuda")
    collecting = steps.add_parser("collect", help="make Parquet files of rows")
    collecting.set_defaults(run=_collect)
    collecting.add_argument("listed", type=Path, help="what was listed")
    collecting.add_argument("--rows", type=Path, nargs="+", required=True, help="what was measured")
    collecting.add_argument("--labels", type=Path, required=True, help="Parquet file of labels")
    collecting.add_argument("--traces", type=Path, required=True, help="Parquet file of traces")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options.run(options)


if __name__ == "__main__":
    main()
