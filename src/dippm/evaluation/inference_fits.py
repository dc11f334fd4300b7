"""How far the memory of an inference may be off: what published batches that did and did not fit leave open.

    python -m dippm.evaluation.inference_fits --cache GRAPHS

The borders of all published inference tables choose the spreads of the shipped interval. How well a choice holds for
models that it has not seen, the halves of the models say: what each would choose by itself, and how often the other
contradicts that. Of each border the batch that failed bounds the interval's upper end from below, and the batch that
fitted its lower end from above, after what a process may hold beside tensors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dippm.costs.context import context_mb
from dippm.costs.live_tensors import live_memory
from dippm.costs.precision import Precision
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.location import data_folder
from dippm.datasets.software_graphs import as_measured
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.border_pairs import Border, inference_borders, needed_mb
from dippm.evaluation.training_fits import software_of_border, split_pairs
from dippm.predictors.calibration import Calibration
from dippm.units import BYTES_PER_MIB

__all__ = ["OpenRoom", "choose_spreads", "main", "open_rooms"]

# Each end of the interval may contradict one statement in twenty, rounded to two digits.
_COVERAGE = 0.95
_SMALLEST_MB = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRoom:
    """What a border leaves open.

    Args:
        more: Logarithm of the factor by which what is uncertain of the batch that failed must be larger than predicted
            not to fit for sure; negative where it does not fit as it is predicted.
        less: The same of the batch that fitted, by how much smaller it must be to fit; negative where it fits.
    """

    more: float
    less: float


def open_rooms(
    borders: Sequence[Border], cache: GraphCache, *, margin_low_mb: float, margin_high_mb: float
) -> list[OpenRoom]:
    """Replay both batches of every border whose larger batch no kernel refuses.

    Args:
        borders: Borders of inference tables, those of one model next to each other.
        cache: Graphs by recipe; it holds those of the borders.
        margin_low_mb: By how much less than estimated a process may hold beside tensors, MiB.
        margin_high_mb: By how much more.

    Raises:
        UsageError: ``graph_cache.missing`` where a graph is not in the cache.
    """
    result = []
    timelines: dict[tuple[str, str], MemoryTimeline] = {}
    needs: dict[tuple[int, int], float] = {}
    for border in borders:
        if border.is_refused:
            continue
        label = border.label
        key = label.recipe.model_key, label.measurement.software.framework
        if key not in timelines:
            if key[0] not in {model for model, _ in timelines}:
                timelines, needs = {}, {}
            timelines[key] = _timeline(border, cache)
        timeline = timelines[key]
        software, device = software_of_border(border), find_device(label.measurement.device)
        capacity = device.capacity_mb - context_mb(device, software)
        certain = float(live_memory(timeline, 1).weight_bytes[0]) / BYTES_PER_MIB
        logarithms = []
        for batch, margin in ((label.recipe.batch, -margin_low_mb), (border.failed_batch, margin_high_mb)):
            place = id(timeline), batch
            if place not in needs:
                needs[place] = needed_mb(timeline, batch)
            room = max(capacity - margin - certain, _SMALLEST_MB)
            logarithms.append(math.log(room / max(needs[place] - certain, _SMALLEST_MB)))
        result.append(OpenRoom(more=logarithms[1], less=-logarithms[0]))
    return result


def choose_spreads(rooms: Sequence[OpenRoom]) -> tuple[float, float]:
    """The least spreads upwards and downwards that contradict at most one failure, and one fit, in twenty.

    Raises:
        UsageError: ``labels.none`` where there are no borders.
    """
    if not rooms:
        raise UsageError("There are no borders to choose spreads on.", code="labels.none")
    place = min(math.ceil(_COVERAGE * len(rooms)), len(rooms)) - 1
    more, less = (sorted(values)[place] for values in ([r.more for r in rooms], [r.less for r in rooms]))
    return round(max(more, 0.0), 2), round(max(less, 0.0), 2)


def _timeline(border: Border, cache: GraphCache) -> MemoryTimeline:
    cached = cache.load(border.label.recipe.model_key, batch=border.label.recipe.batch)
    if cached is None:
        raise UsageError(f"The graph of {border.model} is not in the cache.", code="graph_cache.missing")
    graph, keeps_casts = as_measured(cached.graph, border.label), software_of_border(border).keeps_casts
    return MemoryTimeline.from_workload(Workload.from_graph(graph, Precision.AMP, keeps_casts=keeps_casts))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the spreads."""
    parser = argparse.ArgumentParser(description="Spreads of the memory of inference, from published borders.")
    parser.add_argument("--cache", type=Path, required=True, help="folder of graphs, see dippm.datasets.graph_cache")
    parser.add_argument("--seed", type=int, default=0, help="decides on the halves of the models")
    options = parser.parse_args(arguments)
    shipped, cache = Calibration.read(), GraphCache(options.cache)
    rooms = [
        open_rooms(half, cache, margin_low_mb=shipped.context_margin_mb, margin_high_mb=shipped.context_margin_high_mb)
        for half in split_pairs(inference_borders(data_folder() / "timm", cache), seed=options.seed)
    ]
    chosen = [_describe(own, other) for own, other in zip(rooms, reversed(rooms), strict=True)]
    sys.stdout.write(json.dumps({**_describe([*rooms[0], *rooms[1]], []), "halves": chosen}, indent=1) + "\n")


def _describe(rooms: Sequence[OpenRoom], others: Sequence[OpenRoom]) -> dict[str, float]:
    """Spreads chosen on some borders, and what others say of them."""
    more, less = choose_spreads(rooms)
    described = {"borders": len(rooms), "memory_spread": more, "memory_spread_low": less}
    if others:
        for name, values, spread in (
            ("failures", [room.more for room in others], more),
            ("fits", [room.less for room in others], less),
        ):
            contradicted = sum(value > spread for value in values)
            described[f"other_{name}_contradicted_percent"] = round(100.0 * contradicted / len(values), 1)
    return described


if __name__ == "__main__":
    main()
