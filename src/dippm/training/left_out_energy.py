"""Energy of captured calls whose model, or whose family, neither networks nor power model have seen.

    python -m dippm.training.left_out_energy --labels data/labels/{h200/labels,h200/shared,h100/labels}.parquet
        --traces data/labels/{h200/traces,h200/shared-traces,h100/traces}.parquet
        --layers data/labels/h200/layers.parquet --layer-traces data/labels/h200/layer-traces.parquet --cache graphs
        --report docs/reports/left_out_energy.md

The time is that of networks of :mod:`dippm.training.architecture_networks`, each call by one that was trained without
its model or family; the power, at that time, of a fit as :mod:`dippm.training.published_power` makes it for boards of
one architecture, without them too. For which part of a call each kernel runs is taken from the shipped predictor, as
are the widths of the time's interval, by how far a call is from those of its own training.

What the power adds to the energy's interval is chosen here and written into the artefact of inference: the least with
which nine in ten of these energies lie inside, those of models and of families left out together, as for the time. The
errors of power at the measured time are no measure of it: where the time is met amiss the power errs the other way.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import OWN_SOURCE
from dippm.datasets.store.parquet import read_parquet
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, AdditiveArtefact, Regime, manifest_path, read_tensors
from dippm.predictors.additive_novelty import Novelty
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.additive import FOLDS
from dippm.training.additive_protocol import HeldOut, predict_families, predict_models
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.architecture_networks import (
    add_traced_arguments,
    architecture_settings,
    captured_wall_ms,
    is_captured_alone,
    read_traced_samples,
)
from dippm.training.physics import conformal_quantile
from dippm.training.power_fit import PowerPoint, fit_corrected_power
from dippm.training.published_power import family_of, idle_share, part_of, read_points_of_devices, shared_architecture

__all__ = ["LeftOut", "LeftOutTime", "leave_out", "main", "power_spread_of", "sections_of"]

FloatArray = npt.NDArray[np.float64]

_FIGURES = ("time", "power", "energy", "below", "above")
_HEADER = [
    "left out",
    "device",
    "calls",
    "time: mean error, %",
    "median, %",
    "power at the measured time: mean error, %",
    "median, %",
    "energy: mean error, %",
    "median, %",
    "in interval, %",
    "median half-width, %",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutTime:
    """Time of a call by a network that has not seen it.

    Args:
        ms: The time.
        half_width: Half-width of its 90 % interval, of ``log(measured / predicted)``.
    """

    ms: float
    half_width: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LeftOut:
    """Errors on calls that nothing was fitted on, signed shares of what was measured.

    Args:
        devices: Name of each call's device.
        time: Of the time.
        power: Of the power, the time being known.
        energy: Of the energy.
        below: How far the energy's interval reaches below it, of ``log(measured / predicted)``, were its power known.
        above: How far it reaches above.

    Shapes:
        All: [n].
    """

    devices: tuple[str, ...]
    time: FloatArray
    power: FloatArray
    energy: FloatArray
    below: FloatArray
    above: FloatArray

    @property
    def least_power_spread(self) -> FloatArray:
        """By what factor at least, as a logarithm, power must be off for energies to lie in their intervals, [n]."""
        measured = -np.log1p(self.energy)
        of_time = np.where(measured > 0.0, self.above, self.below)
        result: FloatArray = np.sqrt(np.maximum(np.square(measured) - np.square(of_time), 0.0))
        return result

    def half_width(self, power_spread: float) -> FloatArray:
        """Mean of what the intervals reach below and above, [n]."""
        result: FloatArray = (np.hypot(self.below, power_spread) + np.hypot(self.above, power_spread)) / 2.0
        return result

    def of(self, device: str) -> LeftOut:
        """Those of one device."""
        is_own = np.array([name == device for name in self.devices])
        return LeftOut(
            devices=tuple(name for name in self.devices if name == device),
            time=self.time[is_own],
            power=self.power[is_own],
            energy=self.energy[is_own],
            below=self.below[is_own],
            above=self.above[is_own],
        )


def leave_out(
    points: Sequence[PowerPoint],
    predicted: Mapping[str, LeftOutTime],
    group_of: Callable[[PowerPoint], str],
    *,
    idle: float,
) -> LeftOut:
    """Errors on the points of each group by a power model that was fitted on all others.

    Args:
        points: Measured powers of one architecture.
        predicted: By the keys of labels the times of networks that have not seen them; other points are fitted on and
            not tested.
        group_of: Name of the group that a point belongs to.
        idle: Share of the limit that is drawn while no kernel runs.
    """
    devices: list[str] = []
    figures: list[tuple[float, ...]] = []
    for group in sorted({group_of(point) for point in points if point.key in predicted}):
        fitted = fit_corrected_power([point for point in points if group_of(point) != group], idle=idle)
        for point in points:
            if group_of(point) != group or point.key not in predicted:
                continue
            left_out = predicted[point.key]
            measured_j = point.power_share * point.device.board_power_w * point.latency_ms / 1e3
            energy_j, in_time_j = (
                float(point.load.energy_j(fitted.model, point.device, np.array([latency_ms]))[0])
                for latency_ms in (left_out.ms, point.latency_ms)
            )
            below, above = point.load.energy_spreads(
                fitted.model,
                point.device,
                np.array([left_out.ms]),
                np.array([energy_j]),
                np.array([left_out.half_width]),
            )
            devices.append(point.device.name)
            figures.append(
                (
                    left_out.ms / point.latency_ms - 1.0,
                    in_time_j / measured_j - 1.0,
                    energy_j / measured_j - 1.0,
                    below[0],
                    above[0],
                )
            )
    columns = np.array(figures).reshape(-1, 5).T
    return LeftOut(devices=tuple(devices), **dict(zip(_FIGURES, columns, strict=True)))


def power_spread_of(errors: Iterable[LeftOut]) -> float:
    """The least by which the power may be off, as a logarithm, so that nine in ten of all energies lie inside."""
    least = conformal_quantile(np.concatenate([found.least_power_spread for found in errors]))
    return math.ceil(1e4 * least) / 1e4


def sections_of(errors: Mapping[str, LeftOut], power_spread: float) -> list[Section]:
    """The report.

    Args:
        errors: By what was left out.
        power_spread: By what factor, as a logarithm, the power may be off.
    """
    rows = []
    for name, found in errors.items():
        rows.append(_row(name, "all", found, power_spread))
        rows += [_row(name, device, found.of(device), power_spread) for device in sorted(set(found.devices))]
    return [
        Section(
            title="Energy of captured calls that nothing was fitted on",
            text=[
                "Captured calls of our own labels that tell their energy. The time of each is that of a network that "
                "was trained without its model, or its family, and its power, at that time, of a power model that was "
                "fitted without them. For which part of a call each kernel runs is taken from the shipped predictor, "
                "whose intervals rest on all of these errors: those of time by the distance to what a network was "
                "trained on, and what power adds to them for the energy, "
                f"{100.0 * math.expm1(power_spread):.1f} %, by the energies of both tables together.",
            ],
            tables=[Table(header=_HEADER, rows=rows)],
        )
    ]


def _row(name: str, device: str, found: LeftOut, power_spread: float) -> list[str]:
    figures = []
    for error in (found.time, found.power, found.energy):
        absolute = 100.0 * np.abs(error)
        figures += [f"{absolute.mean():.1f}", f"{np.median(absolute):.1f}"]
    is_inside, half_width = found.least_power_spread <= power_spread, found.half_width(power_spread)
    figures += [f"{100.0 * is_inside.mean():.0f}", f"{100.0 * np.expm1(np.median(half_width)):.0f}"]
    return [name, device, str(len(found.devices)), *figures]


def _times(samples: AdditiveSamples, held: Sequence[HeldOut], novelty: Novelty) -> dict[str, LeftOutTime]:
    """By the keys of captured calls their wall times by networks that have not seen them."""
    return {
        samples.labels[row].key: LeftOutTime(ms=ms, half_width=half_width)
        for part in held
        for row, ms, half_width in zip(
            part.test.tolist(),
            captured_wall_ms(part.test_ms).tolist(),
            novelty.half_width(part.test_distance).tolist(),
            strict=True,
        )
        if is_captured_alone(samples.labels[row])
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: write the report."""
    parser = argparse.ArgumentParser(description="Energy of captured calls that nothing was fitted on.")
    add_traced_arguments(parser)
    parser.add_argument("--report", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefact to change")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    samples = read_traced_samples(options, mode=Mode.INFERENCE)
    own = [label for path in options.labels for label in read_parquet(path) if label.source == OWN_SOURCE]
    predictor, cache = PhysicsPredictor.load(), GraphCache(options.cache)
    points = read_points_of_devices(own, cache, predictor)
    architecture = shared_architecture(points)
    path = manifest_path(Regime(mode=Mode.INFERENCE, architecture=architecture))
    artefact = AdditiveArtefact.read(path)
    novelty = Novelty.from_tensors(read_tensors(path), distances=artefact.distances, half_widths=artefact.half_widths)
    settings, idle = architecture_settings(Mode.INFERENCE), idle_share(own)
    errors = {}
    for name, predict, group_of in (("models", predict_models, part_of), ("families", predict_families, family_of)):
        held = predict(samples, settings, folds=FOLDS, folder=options.folder)
        errors[name] = leave_out(points, _times(samples, held, novelty), group_of, idle=idle)
    spread, chosen = power_spread_of(errors.values()), options.out / ARTEFACT_PATH.name
    calibration = Calibration.read(chosen)
    spreads = {**calibration.busy_power_spreads, architecture: spread}
    replace(calibration, busy_power_spreads=spreads).write(chosen)
    options.report.write_text(render_markdown("Energy left out", sections_of(errors, spread), {}), encoding="utf-8")


if __name__ == "__main__":
    main()
