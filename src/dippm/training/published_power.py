"""Fit the power model on what boards drew in training and in inference.

``python -m dippm.training.published_power`` changes the power model, its spread and what is said of its labels in the
artefacts that :mod:`dippm.training.physics` and :mod:`dippm.training.physics_training` have written. It comes last of
all fits: it takes from the predictor for which part of a call a kernel runs, and the rates of work from the measured
time.

- Training: mean power of BERT and ResNet-50 at the board's own limit, of Zeus' traces (A40, V100, P100, Quadro RTX
  6000). The idle share is that of their runs whose device mostly waited.
- Inference: the rows of ``data/published`` that state energy (A100 in two forms, GTX 1080 Ti).

Four energies are fitted by least squares on ``log(predicted / measured)``, robust to outliers, each board alike, and
beside them by what factor the mean over an epoch of the traces, in which the board also waits for data, is below the
power of a step. All are weakly drawn to where they start.

For the spread, all boards of a chip process are left out together: it is the 90 % quantile of the errors on those of
the process that is met worst. An energy that no other board tells of is taken at half, at once and at twice its start,
and the worst counts. Boards left out one by one would promise too much: some are forms of one chip, or chips of one
process, and a chip that nobody measured has no such sibling.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.energy import PowerModel, chip_process
from dippm.costs.software import Software
from dippm.datasets.location import data_folder
from dippm.datasets.power import BusyRun, read_busy_runs
from dippm.datasets.published import digest_published
from dippm.devices import DeviceSpec, find_device
from dippm.errors import MissingExtraError
from dippm.evaluation.published import read_graphs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_power_runs
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.open_model import open_model
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["FittedPower", "PowerPoint", "fit_power", "leave_groups_out", "log_power_errors", "main", "spread_of"]

FloatArray = npt.NDArray[np.float64]

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
_POWER_LABELS = f"{_POWER_OF}training on A40, V100, P100, Quadro RTX 6000 and of inference on A100, GTX 1080 Ti"
_COVERAGE = 0.9
# Start, lowest and highest value of each energy in pJ, and of the share of an epoch's mean.
_ENERGIES = {
    "running_pj": (20.0, 0.0, 200.0),
    "flop_pj": (5.0, 0.0, 100.0),
    "tensor_pj": (3.0, 0.0, 50.0),
    "byte_pj": (40.0, 0.0, 1000.0),
}
_EPOCH = (0.9, 0.8, 1.0)
_SOFT = 0.05
# Of what each value is away from its start, relative to it: an energy that no board tells of, as that of tensor cores
# without the boards of 7 nm, stays there, and does not end wherever the solver happens to pass.
_PULL = 0.01
# Where an energy that no board tells of might be instead, over the start.
_STARTS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PowerPoint:
    """Measured mean power of one call, and what the call asked of the board.

    Args:
        device: The board.
        load: Its work.
        latency_ms: Measured time of the call, ms.
        power_share: Measured mean power over the board's limit.
        is_of_epoch: Whether it is a mean over an epoch, in which the board also waits for data.
    """

    device: DeviceSpec
    load: BoardLoad
    latency_ms: float
    power_share: float
    is_of_epoch: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedPower:
    """A power model, and what belongs to its labels alone.

    Args:
        model: The power model.
        epoch_share: Mean power over an epoch of the traces over that of a step.
    """

    model: PowerModel
    epoch_share: float


def fit_power(points: Sequence[PowerPoint], *, idle: float, start_factor: float = 1.0) -> FittedPower:
    """The power model that fits the points best, each board alike.

    Args:
        points: What was measured.
        idle: Share of the limit that is drawn while no kernel runs.
        start_factor: Where the energies start, and stay if no point tells of them, over where they usually do.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the power model") from exc
    counts = Counter(point.device.name for point in points)
    weights = np.array([counts[point.device.name] ** -0.5 for point in points])

    def fitted_of(values: FloatArray) -> FittedPower:
        *energies, epoch_share = (round(value, 4) for value in values.tolist())
        model = PowerModel(idle=idle, **dict(zip(_ENERGIES, energies, strict=True)))
        return FittedPower(model=model, epoch_share=epoch_share)

    start, low, high = np.array([*_ENERGIES.values(), _EPOCH]).T
    start[:-1] *= start_factor

    def residuals(values: FloatArray) -> FloatArray:
        pulls = _PULL * (values / start - 1.0)
        return np.concatenate([weights * log_power_errors(points, fitted_of(values)), pulls])

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT, x_scale=start, diff_step=1e-3
    )
    return fitted_of(solution.x)


def log_power_errors(points: Sequence[PowerPoint], fitted: FittedPower) -> FloatArray:
    """``log(predicted / measured)`` of the power of every point, at the measured time.

    Shapes:
        Result: [len(points)].
    """
    predicted = [
        float(point.load.power_w(fitted.model, point.device, np.array([point.latency_ms]))[0])
        / point.device.board_power_w
        * (fitted.epoch_share if point.is_of_epoch else 1.0)
        for point in points
    ]
    result: FloatArray = np.log(np.array(predicted) / np.array([point.power_share for point in points]))
    return result


def leave_groups_out(
    points: Sequence[PowerPoint], group_of: Callable[[DeviceSpec], str], *, idle: float
) -> dict[str, FloatArray]:
    """Errors on the boards of every group of a fit on all others, by the group's name.

    An energy that only this group tells of may be anything: of fits that leave it at half, at once and at twice where
    it starts the worst counts.

    Args:
        points: What was measured.
        group_of: Name of the group that a board belongs to: itself, or the process that its chip is made in.
        idle: Share of the limit that is drawn while no kernel runs.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    errors = {}
    for group in sorted({group_of(point.device) for point in points}):
        others = [point for point in points if group_of(point.device) != group]
        own = [point for point in points if group_of(point.device) == group]
        errors[group] = max(
            (log_power_errors(own, fit_power(others, idle=idle, start_factor=factor)) for factor in _STARTS),
            key=_quantile,
        )
    return errors


def spread_of(errors: Mapping[str, FloatArray]) -> float:
    """The 90 % quantile of the errors of the group that is met worst."""
    return max(map(_quantile, errors.values()))


def _quantile(errors: FloatArray) -> float:
    return float(np.quantile(np.abs(errors), _COVERAGE))


def _board_of(device: DeviceSpec) -> str:
    return device.name


def _process_of(device: DeviceSpec) -> str:
    return chip_process(device).name


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


def _describe(errors: FloatArray) -> dict[str, float]:
    relative = np.expm1(errors)
    return {
        "rows": len(errors),
        "mean_percent": round(100 * float(np.abs(relative).mean()), 1),
        "bias_percent": round(100 * float(np.median(relative)), 1),
        "nine_in_ten_percent": round(100 * float(np.quantile(np.abs(relative), _COVERAGE)), 1),
    }


def _digest(folder: Path, traces: Path) -> str:
    digest = hashlib.sha256(digest_published(folder).encode())
    for path in (folder / _POWER_TABLE, *sorted(traces.glob("*.csv"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, and write the power model into the artefacts."""
    parser = argparse.ArgumentParser(description="Fit the power model on published measurements.")
    parser.add_argument("--folder", type=Path, default=PUBLISHED_FOLDER)
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefacts to change")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    traces, predictor = data_folder() / "power", PhysicsPredictor.load()
    runs = read_busy_runs(traces)
    idle = round(float(np.mean([run.power_w / run.power_limit_w for run in runs if run.is_idle])), 4)
    points = [*_trained_points(runs, predictor), *_published_points(options.folder, predictor)]
    _LOG.info("fitting on %d rows", len(points))
    fitted = fit_power(points, idle=idle)
    boards, processes = (leave_groups_out(points, group_of, idle=idle) for group_of in (_board_of, _process_of))
    members = {
        process: sorted({point.device.name for point in points if _process_of(point.device) == process})
        for process in processes
    }
    spread = round(spread_of(processes), 4)
    provenance = {
        "command": "python -m dippm.training.published_power",
        "data_sha256": _digest(options.folder, traces),
        "epoch_share": fitted.epoch_share,
        "fit": _describe(log_power_errors(points, fitted)),
        "boards_left_out": {board: _describe(own) for board, own in boards.items()},
        "processes_left_out": {
            process: {"boards": members[process], **_describe(own)} for process, own in processes.items()
        },
    }
    for path in (options.out / ARTEFACT_PATH.name, options.out / TRAINING_ARTEFACT_PATH.name):
        calibration = Calibration.read(path)
        replace(
            calibration,
            power=fitted.model,
            power_spread=spread,
            labels=_with_power_labels(calibration.labels),
            provenance={**calibration.provenance, "published_power": provenance},
        ).write(path)
    sys.stdout.write(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
