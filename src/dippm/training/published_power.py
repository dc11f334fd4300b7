"""Fit the power model on what boards drew in training and in inference.

``python -m dippm.training.published_power --labels data/labels/h200/labels.parquet data/labels/h100/labels.parquet
--cache graphs`` changes the power model, its spread and what is said of its labels in the artefacts that
:mod:`dippm.training.physics` and :mod:`dippm.training.physics_training` have written. It comes last of all fits: it
takes from the predictor for which part of a call each kernel runs, and the rates of work from the measured time.

- Training: mean power of BERT and ResNet-50 at the board's own limit, of Zeus' traces (A40, V100, P100, Quadro RTX
  6000). The idle share is that of their runs whose device mostly waited.
- Inference: the rows of ``data/published`` that state energy (A100 in two forms, GTX 1080 Ti), and labels of our own
  whose calls never wait for the host and scatter by less than 3 % (H100, H200). Boards of the latter's architecture
  have coefficients of their own besides, with the idle share that was measured beside the labels.

Four energies are fitted as :mod:`dippm.training.power_fit` does. For the spread, all boards of a chip process are left
out together: it is the 90 % quantile of the errors on those of the process that is met worst. Boards left out one by
one would promise too much: some are forms of one chip, or chips of one process, and a chip that nobody measured has no
such sibling. The boards of the labels alone have a spread of their own at inference, by families that are left out of
the fit on them; run :mod:`dippm.training.left_out_energy` after this for the one where kernels keep the board busy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.costs.energy import chip_process
from dippm.costs.rates import architecture_of
from dippm.costs.software import Software
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import build_label_graphs, load_label_graph
from dippm.datasets.location import data_folder
from dippm.datasets.power import BusyRun, read_busy_runs
from dippm.datasets.published import digest_published
from dippm.datasets.selection import is_steady
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.own_labels import choose_labels
from dippm.evaluation.published import read_graphs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_power_runs
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.open_model import open_model
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.architecture import HEIRS
from dippm.training.power_fit import (
    PowerPoint,
    describe_power,
    fit_corrected_power,
    fit_power,
    leave_groups_out,
    log_power_errors,
    spread_of,
)

__all__ = [
    "family_of",
    "idle_share",
    "main",
    "part_of",
    "read_own_points",
    "read_points_of_devices",
    "shared_architecture",
]

_LOG = logging.getLogger(__name__)
_POWER_TABLE = "power.csv"
# Of Zeus' models those that any graph is known of, and what they were trained on.
_TRAINED = {
    "ResNet50": ("torchvision:resnet50", (3, 224, 224), Optimizer.MOMENTUM),
    "BERT-base-uncased": ("hf:BertForQuestionAnswering", {"input_ids": ((384,), "int64")}, Optimizer.ADAMW),
}
# Of the time of the traces; they do not say.
_TRAINED_WITH = "torch 1.9"
_LABELS_SEPARATOR = "; "
_POWER_OF = "power of "
_POWER_LABELS = (
    f"{_POWER_OF}training on A40, V100, P100, Quadro RTX 6000 and of inference on A100, GTX 1080 Ti, H100, H200"
)
_PARTS = 10
# Share of the time by which captured calls scatter where something else held the device, as 24 of 179 do: power is the
# energy of hundreds of calls by the time of a dozen, and these are no sample of those.
_DISTURBED = 0.03


def read_own_points(labels: Sequence[Label], cache: GraphCache, predictor: PhysicsPredictor) -> list[PowerPoint]:
    """Energies of calls that never waited for the host, of our own labels.

    Args:
        labels: All labels of one device.
        cache: Their graphs; what it lacks is built.
        predictor: Tells what a call asks of the board.
    """
    chosen = [
        label
        for label in choose_labels(labels)
        if label.measurement.energy_j is not None
        and label.configuration.conditions.mode is Mode.INFERENCE
        and _tells_its_power(label)
    ]
    for failure in build_label_graphs(chosen, cache, jobs=1):
        _LOG.warning("left out %s: %s", failure.recipe.architecture, failure.reason)
    points = []
    for label in chosen:
        cached, measurement = load_label_graph(label, cache), label.measurement
        if cached is None:
            continue
        device, latency_ms = find_device(measurement.device), measurement.latency_ms or math.nan
        load = predictor.load_of(
            as_measured(cached.graph, label),
            batch=label.recipe.batch,
            device=device,
            conditions=_without_host(label.configuration.conditions),
            software=software_of(measurement.software.framework),
        )
        power_w = 1e3 * (measurement.energy_j or math.nan) / latency_ms
        points.append(
            PowerPoint(
                device=device,
                load=load,
                latency_ms=latency_ms,
                power_share=power_w / device.board_power_w,
                model=label.recipe.model_key,
                family=label.recipe.lineage,
                key=label.key,
            )
        )
    return points


def read_points_of_devices(labels: Sequence[Label], cache: GraphCache, predictor: PhysicsPredictor) -> list[PowerPoint]:
    """What :func:`read_own_points` gives for each device in turn; arguments as of that."""
    devices = sorted({label.measurement.device for label in labels})
    return [
        point
        for device in devices
        for point in read_own_points([each for each in labels if each.measurement.device == device], cache, predictor)
    ]


def _without_host(conditions: Conditions) -> Conditions:
    """Eager calls that never wait for the host run as captured ones do, whatever host is predicted."""
    is_eager = conditions.runtime is Runtime.EAGER
    return replace(conditions, runtime=Runtime.CUDA_GRAPH) if is_eager else conditions


def _tells_its_power(label: Label) -> bool:
    """Whether a call never waits for the host, and took as long when it was timed as while its energy was counted."""
    measurement = label.measurement
    if label.configuration.conditions.runtime is Runtime.CUDA_GRAPH:
        scatter_ms = measurement.latency_std_ms
        return scatter_ms is not None and scatter_ms < _DISTURBED * (measurement.latency_ms or math.inf)
    return bool(is_steady(measurement))


def idle_share(labels: Sequence[Label]) -> float:
    """Mean of what boards drew before their labels were taken, over their limits.

    Args:
        labels: Labels, some of which tell it.
    """
    shares = [
        label.measurement.idle_power_w / find_device(label.measurement.device).board_power_w
        for label in labels
        if label.measurement.idle_power_w
    ]
    return round(float(np.mean(shares)), 4)


def shared_architecture(points: Sequence[PowerPoint]) -> str:
    """The one architecture that all boards of some points are of.

    Args:
        points: The points.

    Raises:
        UsageError: ``labels.none`` without points, ``labels.ambiguous`` where there are several architectures.
    """
    names = sorted({architecture_of(point.device) for point in points})
    if not names:
        raise UsageError("No label has an energy of a call that does not wait for the host.", code="labels.none")
    if len(names) > 1:
        raise UsageError(
            f"The labels are of compute capability {', '.join(names)}: a fit is of one.", code="labels.ambiguous"
        )
    return names[0]


def _board_of(point: PowerPoint) -> str:
    return point.device.name


def _process_of(point: PowerPoint) -> str:
    return chip_process(point.device).name


def family_of(point: PowerPoint) -> str:
    """The family that a point is left out with."""
    return point.family


def part_of(point: PowerPoint) -> str:
    """The tenth of all models that a point is left out with."""
    return str(zlib.crc32(point.model.encode()) % _PARTS)


def _trained_points(runs: Sequence[BusyRun], predictor: PhysicsPredictor) -> list[PowerPoint]:
    graphs = {
        name: open_model(model, input=parse_input_shapes(shape), mode=Mode.TRAINING)
        for name, (model, shape, _) in _TRAINED.items()
    }
    points = []
    for run in runs:
        if run.model not in graphs:
            continue
        device, optimizer = find_device(run.device), _TRAINED[run.model][2]
        load = predictor.load_of(
            graphs[run.model],
            batch=run.batch,
            device=device,
            conditions=Conditions(mode=Mode.TRAINING, optimizer=optimizer),
            software=Software.parse(_TRAINED_WITH),
        )
        share = run.power_w / run.power_limit_w
        points.append(
            PowerPoint(device=device, load=load, latency_ms=run.step_time_ms, power_share=share, is_of_epoch=True)
        )
    return points


def _published_points(folder: Path, predictor: PhysicsPredictor) -> list[PowerPoint]:
    runs, _ = read_power_runs(folder)
    graphs = read_graphs(runs, folder)
    points = []
    for run in runs:
        latency_ms, energy_j = run.row.latency_ms, run.row.energy_j
        if latency_ms is None or energy_j is None:
            continue
        load = predictor.load_of(
            graphs[run.graph_key],
            batch=run.row.batch,
            device=run.device,
            conditions=run.conditions,
            software=run.software,
        )
        share = energy_j / latency_ms * 1e3 / run.device.board_power_w
        points.append(PowerPoint(device=run.device, load=load, latency_ms=latency_ms, power_share=share))
    return points


def _with_power_labels(labels: str) -> str:
    """What an artefact says of its labels, with those of power in the place of what it said of power before."""
    others = [part for part in labels.split(_LABELS_SEPARATOR) if not part.startswith(_POWER_OF)]
    return _LABELS_SEPARATOR.join([*others, _POWER_LABELS])


def _digest(folder: Path, traces: Path, labels: Sequence[Path]) -> str:
    digest = hashlib.sha256(digest_published(folder).encode())
    for path in (folder / _POWER_TABLE, *sorted(traces.glob("*.csv")), *labels):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, and write the power model into the artefacts."""
    parser = argparse.ArgumentParser(description="Fit the power model on published measurements and on our own.")
    parser.add_argument("--folder", type=Path, default=PUBLISHED_FOLDER)
    parser.add_argument("--labels", type=Path, nargs="+", required=True, help="labels of one architecture's GPUs")
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of their graphs")
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefacts to change")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    traces, predictor = data_folder() / "power", PhysicsPredictor.load()
    runs = read_busy_runs(traces)
    idle = round(float(np.mean([run.power_w / run.power_limit_w for run in runs if run.is_idle])), 4)
    labels = [list(read_parquet(path)) for path in options.labels]
    cache = GraphCache(options.cache)
    own = [point for of_device in labels for point in read_own_points(of_device, cache, predictor)]
    name = shared_architecture(own)
    points = [*_trained_points(runs, predictor), *_published_points(options.folder, predictor), *own]
    _LOG.info("fitting on %d rows", len(points))
    fitted = fit_power(points, idle=idle)
    boards, processes = (leave_groups_out(points, group_of, idle=idle) for group_of in (_board_of, _process_of))
    members = {
        process: sorted({point.device.name for point in points if _process_of(point) == process})
        for process in processes
    }
    spread = round(spread_of(processes), 4)
    own_idle = idle_share([each for of_device in labels for each in of_device])
    own_fit = fit_corrected_power(own, idle=own_idle)
    leave_out = partial(leave_groups_out, own, idle=own_idle, fit=fit_corrected_power)
    own_boards = leave_out(_board_of)
    own_families = np.concatenate(list(leave_out(family_of).values()))
    own_spread = round(spread_of({"families": own_families}), 4)
    provenance = {
        "command": "python -m dippm.training.published_power "
        f"--labels {' '.join(path.as_posix() for path in options.labels)}",
        "data_sha256": _digest(options.folder, traces, options.labels),
        "epoch_share": fitted.epoch_share,
        "fit": describe_power(log_power_errors(points, fitted)),
        "boards_left_out": {board: describe_power(errors) for board, errors in boards.items()},
        "processes_left_out": {
            process: {"boards": members[process], **describe_power(errors)} for process, errors in processes.items()
        },
        f"architecture_{name}": {
            "fit": describe_power(log_power_errors(own, own_fit)),
            "models_left_out": describe_power(np.concatenate(list(leave_out(part_of).values()))),
            "families_left_out": describe_power(own_families),
            "boards_left_out": {board: describe_power(errors) for board, errors in own_boards.items()},
        },
    }
    before = Calibration.read(options.out / ARTEFACT_PATH.name).power.measured
    alone = replace(own_fit.model, correction=None)
    measured = {**before, **dict.fromkeys((name, *HEIRS.get(name, ())), alone)}
    # No training step of its boards was fitted on or left out: there the correction says nothing, and the other spread
    # stands.
    for path, spreads, of_boards in (
        (options.out / ARTEFACT_PATH.name, {name: own_spread}, {**measured, name: own_fit.model}),
        (options.out / TRAINING_ARTEFACT_PATH.name, {}, measured),
    ):
        calibration = Calibration.read(path)
        replace(
            calibration,
            power=replace(fitted.model, measured=of_boards),
            power_spread=spread,
            power_spreads={**calibration.power_spreads, **spreads},
            power_devices=tuple(boards),
            labels=_with_power_labels(calibration.labels),
            provenance={**calibration.provenance, "published_power": provenance},
        ).write(path)
    found = {"spread": spread, "own_spread": own_spread, "provenance": provenance}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
