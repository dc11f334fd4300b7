"""How fast the hosts of an architecture's cards launch inference, against all others.

``python -m dippm.training.architecture_host --labels data/labels/h200/labels.parquet --cache graphs``, after all other
trainings, looks for the factor on the host's time (:attr:`~dippm.costs.rates.Rates.hosts`) with which half of the eager
calls in which the device waits are predicted too long and half too short, and writes its square root.

The root, because one machine tells what its card's hosts have in common, newer processors and builds of PyTorch, no
better than what is its own: each is taken for half of the logarithm. What another machine with such cards says of
it, on which it is not fitted, stands in docs/reports/published.md (bitsandbytes on an H100).
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import architecture_of
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import load_label_graph
from dippm.datasets.selection import is_steady
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.own_labels import choose_labels, score_label
from dippm.graph import Graph
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.architecture import HEIRS

__all__ = ["find_factor", "main", "waiting_rows"]

_LOG = logging.getLogger(__name__)

_LEAST_ROWS = 20
_ENDS = 0.25, 4.0
_STEPS = 8
_SHARE_OF_LOGARITHM = 0.5


def waiting_rows(labels: Sequence[Label], cache: GraphCache) -> list[tuple[Label, Graph]]:
    """Eager inference in which the device waits for the host, with the graphs that there are.

    Args:
        labels: Labels of one GPU.
        cache: Their graphs.
    """
    rows = []
    for label in choose_labels(labels):
        conditions = label.configuration.conditions
        is_eager = conditions.mode is Mode.INFERENCE and conditions.runtime is Runtime.EAGER
        if is_eager and not is_steady(label.measurement):
            cached = load_label_graph(label, cache)
            if cached is not None:
                rows.append((label, cached.graph))
    return rows


def find_factor(bias_of: Callable[[float], float]) -> float:
    """The factor at which a bias that grows with it is nearest to none.

    Args:
        bias_of: Tells the bias, of the logarithm, at a factor.
    """
    low, high = map(math.log, _ENDS)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if bias_of(math.exp(middle)) > 0.0 else (middle, high)
    return math.exp(0.5 * (low + high))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, and write the factor into the calibration of inference.

    Raises:
        UsageError: ``labels.few`` where too few rows wait for their host.
    """
    parser = argparse.ArgumentParser(description="Fit how fast the hosts of an architecture's cards launch inference.")
    parser.add_argument("--labels", type=Path, required=True, help="labels of one GPU of the architecture")
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of their graphs")
    parser.add_argument("--out", type=Path, default=ARTEFACT_PATH.parent, help="folder of the artefact to change")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    rows = waiting_rows(list(read_parquet(options.labels)), GraphCache(options.cache))
    if len(rows) < _LEAST_ROWS:
        raise UsageError(
            f"{len(rows)} eager calls in {options.labels} wait for their host; it takes {_LEAST_ROWS}.",
            code="labels.few",
            cure="Measure more models in the eager runtime, at small batches.",
        )
    shipped, training = Calibration.read(ARTEFACT_PATH), Calibration.read(TRAINING_ARTEFACT_PATH)
    networks, kernels = AdditivePredictor.load(), load_kernel_model()
    architecture = architecture_of(find_device(rows[0][0].measurement.device))

    def with_factor(factor: float) -> Calibration:
        hosts = {**shipped.rates.hosts, **dict.fromkeys((architecture, *HEIRS.get(architecture, ())), factor)}
        return replace(shipped, rates=replace(shipped.rates, hosts=hosts))

    def bias_of(factor: float) -> float:
        predictor = PhysicsPredictor(with_factor(factor), kernels, training=training, additive=networks)
        times = [score_label(predictor, graph, label).latency for label, graph in rows]
        bias = float(np.median([math.log(each.predicted / each.measured) for each in times if each is not None]))
        _LOG.info("hosts take %.3f of the time: half of %d calls are off by more than %+.3f", factor, len(rows), bias)
        return bias

    factor = find_factor(bias_of)
    written = round(factor**_SHARE_OF_LOGARITHM, 3)
    provenance = {
        "command": f"python -m dippm.training.architecture_host --labels {options.labels.as_posix()}",
        "data_sha256": hashlib.sha256(options.labels.read_bytes()).hexdigest(),
        "rows": len(rows),
        "factor of this machine": round(factor, 3),
    }
    held = with_factor(written)
    replace(held, provenance={**held.provenance, "hosts": provenance}).write(options.out / ARTEFACT_PATH.name)
    _LOG.info("%s: %.3f on this machine, %.3f written for %s", options.labels, factor, written, architecture)


if __name__ == "__main__":
    main()
