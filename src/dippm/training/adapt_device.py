"""Adapt the shipped predictor to a device from some tens of labels of it.

1. *Labels*: those of the device that the shipped networks cover, by regime; rows in which the device waits for the host
   teach nothing of its kernels and are set apart.
2. *Before*: the error of the shipped predictor. Where networks of the device's architecture answer, it is these that
   are tuned, on the share of the time that they learned.
3. *After*: networks tuned on four fifths of the models predict the last fifth, in turn. What is written was tuned on
   all of them.
   Where that is no better than before, the networks stay as they were.
4. *Interval*: the shipped half-widths by distance, times the factor that makes them hold the rows of step 3; the
   device's own rows count as known from then on.
5. *Host*: its rate, from the rows that wait for it. *Power* and *context*, where the labels have energy and memory.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.datasets.label_graphs import build_label_graphs
from dippm.datasets.splits import split_by_graph
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec
from dippm.errors import UsageError
from dippm.predictors.adapted import AdaptedManifest, calibration_path, load_physics
from dippm.predictors.additive_artefact import (
    ARTEFACT_FOLDER,
    OWN_REGIMES,
    REGIMES,
    AdditiveArtefact,
    Regime,
    manifest_path,
    write_tensors,
)
from dippm.predictors.additive_novelty import Novelty
from dippm.predictors.prediction import format_number_of
from dippm.training.adaptation_report import AdaptationReport, AdaptedRegime
from dippm.training.additive import additive_tensors, describe_errors
from dippm.training.additive_adaptation import AdaptationSettings, adapt_additive
from dippm.training.additive_novelty import describe_samples
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.device_calibration import CalibratedPower, MeasuredContext, calibrate_power, measure_context
from dippm.training.device_labels import choose_labels
from dippm.training.device_rows import DeviceRows, ShippedPredictor, fit_host_ratio
from dippm.training.run_folder import writing_to
from dippm.training.versions import find_versions

__all__ = ["adapt_device", "tolerance_quantile"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]
OnProgress = Callable[[int, int], None]

_FOLDS = 5
_LEAST_ROWS, _LEAST_MODELS = 10, 5
_COVERAGE, _CONFIDENCE = 0.9, 0.9
# By how much a device may be faster or slower than said: none is an order of magnitude off what its data sheet tells.
_MOST_TIMES = 10.0
_REGIMES = (*REGIMES, *OWN_REGIMES)


def adapt_device(
    labels: Sequence[Label],
    device: DeviceSpec,
    folder: Path,
    *,
    cache: Path,
    shipped: Path = ARTEFACT_FOLDER,
    settings: AdaptationSettings | None = None,
    jobs: int = 1,
    on_graph: OnProgress | None = None,
    on_fold: OnProgress | None = None,
) -> AdaptationReport:
    """Adapt, and write the predictor.

    Args:
        labels: Labels of the device.
        device: Its figures.
        folder: Where the predictor goes.
        cache: Folder of the graph cache; graphs that it lacks are read.
        shipped: Folder of the networks to start from.
        settings: Settings of the tuning.
        jobs: Processes that read graphs.
        on_graph: Called with the number of models read and their total.
        on_fold: Called with the number of tunings done and their total.

    Raises:
        UsageError: ``adapt.too_few`` where no regime has ten rows of five models that the networks cover,
            ``adapt.implausible`` where they are of another order of magnitude, ``train.unwritable``.
    """
    began_s = time.monotonic()
    settings = settings or AdaptationSettings()
    known = ShippedPredictor(device, shipped, cache)
    # Written beside it and put in its place as a whole: what is interrupted leaves the folder as it was.
    target = folder.resolve()
    with writing_to(target.parent):
        beside = tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.")
    with beside as parent:
        unfinished = Path(parent) / target.name
        unfinished.mkdir()
        read = _read_rows(labels, known, jobs=jobs, on_graph=on_graph)
        adaptable, regimes = _adapt_regimes(read, unfinished, known, settings, on_fold=on_fold)
        measured = [label for held in adaptable for label in held.samples.labels]
        context = measure_context(measured, device, least_rows=_LEAST_ROWS)
        if context is not None:
            device = replace(device, context_mb=context.context_mb)
        power = _write_calibrations(read.host_ratio, context, measured, device, unfinished, known)
        report = AdaptationReport(
            device=device.name,
            folder=str(folder),
            regimes=tuple(regimes),
            host_ratio=round(read.host_ratio, 3),
            power=power,
            context=context,
            left_out={reason: count for reason, count in read.left_out.items() if count},
            unread=read.unread,
            duration_s=round(time.monotonic() - began_s, 1),
        )
        AdaptedManifest(
            device=device,
            conditions=Counter(label.configuration.conditions for label in measured).most_common(1)[0][0],
            report=report.to_dict(),
            provenance={"settings": asdict(settings), "versions": find_versions()},
        ).write(unfinished)
        with writing_to(target.parent):
            shutil.rmtree(target, ignore_errors=True)
            unfinished.rename(target)
    return report


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Read:
    """What an adaptation learns from.

    Args:
        rows: Rows by what has networks of its own.
        left_out: Why others are left out, and how many.
        unread: Models whose graph cannot be read, and why.
        host_ratio: How many times as long the host takes as the one that is assumed.
        repeats: Measurements of what was measured before, which count once.
    """

    rows: Mapping[Regime, DeviceRows]
    left_out: Counter[str]
    unread: Mapping[str, str]
    host_ratio: float
    repeats: int


def _read_rows(labels: Sequence[Label], known: ShippedPredictor, *, jobs: int, on_graph: OnProgress | None) -> _Read:
    chosen = choose_labels(labels, known.device, known.networks)
    covered = [label for regime in _REGIMES for label in chosen.by_regime.get(regime, [])]
    failures = build_label_graphs(covered, known.cache, jobs=jobs, on_progress=on_graph)
    unread = {failure.recipe.model_key: failure.reason for failure in failures}
    left_out, rows = Counter(chosen.left_out), {}
    left_out.update("the model's graph cannot be read" for label in covered if label.recipe.model_key in unread)
    for regime in _REGIMES:
        readable = [label for label in chosen.by_regime.get(regime, []) if label.recipe.model_key not in unread]
        answered = [label for label in readable if known.answer(label) is not None]
        if answered:
            artefact = AdditiveArtefact.read(manifest_path(regime, known.folder))
            rows[regime] = DeviceRows.of(answered, artefact, known)
        left_out["the model has no costs at this batch"] += len(readable) - len(rows.get(regime, ()))
    return _Read(
        rows=rows,
        left_out=left_out,
        unread=unread,
        host_ratio=fit_host_ratio(list(rows.values())),
        repeats=len(labels) - len(covered) - chosen.count_left_out,
    )


def _adapt_regimes(
    read: _Read, folder: Path, known: ShippedPredictor, settings: AdaptationSettings, *, on_fold: OnProgress | None
) -> tuple[list[DeviceRows], list[AdaptedRegime]]:
    """Write the networks of all regimes; those that have enough rows are adapted."""
    adaptable = {
        regime: rows
        for regime, rows in read.rows.items()
        if _is_enough([rows.samples.labels[i] for i in rows.busy(read.host_ratio)])
    }
    _check_plausible("the host takes", read.host_ratio)
    if not adaptable:
        raise _too_few(known.device, read)
    for regime, rows in adaptable.items():
        busy = rows.busy(read.host_ratio)
        _check_plausible(f"{regime} takes", float(np.median(rows.samples.measured_ms[busy] / rows.before_ms[busy])))
    tunings, regimes = _Counter(on_fold, total=len(adaptable) * (_FOLDS + 1)), []
    for regime in _REGIMES:
        if regime in adaptable:
            rows = adaptable[regime]
            regimes.append(_adapt_regime(rows, read.host_ratio, known.device, folder, settings, tunings=tunings))
            continue
        if regime in read.rows:
            reason = f"fewer than {_LEAST_ROWS} rows of {_LEAST_MODELS} models in {regime}"
            read.left_out[reason] += len(read.rows[regime])
        _copy(manifest_path(regime, known.folder), folder)
    return list(adaptable.values()), regimes


def _check_plausible(what: str, times: float) -> None:
    """Refuse labels that are in another unit, or of something else."""
    if not 1.0 / _MOST_TIMES <= times <= _MOST_TIMES:
        raise UsageError(
            f"By half of the labels {what} {times:.3g} times as long as predicted, or is further off. An adaptation "
            f"goes as far as {_MOST_TIMES:g} times.",
            code="adapt.implausible",
            cure="Check that latency_ms is in milliseconds and that the device is the one that was measured.",
        )


def _is_enough(labels: Sequence[Label]) -> bool:
    return len(labels) >= _LEAST_ROWS and _count_models(labels) >= _LEAST_MODELS


def _count_models(labels: Sequence[Label]) -> int:
    """Checkpoints of one architecture have one graph: they count as one model, as they do in the folds."""
    return min(len({label.recipe.model_key for label in labels}), len({label.graph_hash for label in labels}))


def _too_few(device: DeviceSpec, read: _Read) -> UsageError:
    """The error that accounts for all rows: those that would do, and why each of the others does not."""
    busy = {
        regime: [rows.samples.labels[place] for place in rows.busy(read.host_ratio)]
        for regime, rows in read.rows.items()
    }
    left_out = read.left_out + Counter({"measured again, which counts once": read.repeats})
    waiting = {
        f"the device waits for the host in {regime}": len(read.rows[regime]) - len(labels)
        for regime, labels in busy.items()
    }
    found = ", ".join(
        f"{format_number_of('row', len(labels))} of {format_number_of('model', _count_models(labels))} in {regime}"
        for regime, labels in busy.items()
        if labels
    )
    reasons = "; ".join(
        f"{format_number_of('row', count)}: {reason}" for reason, count in (Counter(waiting) + left_out).items()
    )
    return UsageError(
        f"To adapt to {device.name} takes {_LEAST_ROWS} rows of {_LEAST_MODELS} models, in which the device does not "
        f"wait for the host. Got {found or 'none'} instead.{f' Left out: {reasons}.' if reasons else ''}",
        code="adapt.too_few",
        cure="Measure more models with --precision amp, at batches that keep the device busy."
        if "fp16_tensor" in device.peak_tflops
        else "The shipped networks are of devices with tensor cores for half precision, which this one lacks.",
    )


def _adapt_regime(
    rows: DeviceRows,
    host_ratio: float,
    device: DeviceSpec,
    folder: Path,
    settings: AdaptationSettings,
    *,
    tunings: _Counter,
) -> AdaptedRegime:
    samples, artefact = rows.samples, rows.artefact
    busy = rows.busy(host_ratio)
    novelty = Novelty.from_tensors(rows.tensors, distances=artefact.distances, half_widths=artefact.half_widths)
    descriptors = describe_samples(samples, rows.fitted.scale)
    after_ms, width = np.zeros(len(samples)), np.zeros(len(samples))
    for test in _folds(samples, busy, seed=settings.seed):
        training = np.setdiff1d(busy, test)
        tuned = adapt_additive(rows.fitted, rows.learned, training, settings)
        after_ms[test] = rows.call_ms(tuned, test)
        near = _with_known(novelty, descriptors[training])
        width[test] = near.half_width(near.distance(descriptors[test]))
        tunings.count()
    measured_ms, before_ms = samples.measured_ms[busy], rows.before_ms[busy]
    shipped_width = novelty.half_width(novelty.distance(descriptors[busy]))
    is_inside = rows.is_inside[busy]
    before, after = (describe_errors(each, measured_ms) for each in (before_ms, after_ms[busy]))
    # A device that the networks were trained on has little to teach, and fewer rows teach it worse.
    is_tuned = after["mape_percent"] < before["mape_percent"]
    kept_ms, kept_width = (after_ms[busy], width[busy]) if is_tuned else (rows.busy_ms[busy], shipped_width)
    factor = 1.0
    # An interval that holds stays with networks that do; rows that these know would say too little of others.
    if is_tuned or is_inside.mean() < _COVERAGE:
        factor = tolerance_quantile(np.abs(np.log(kept_ms / measured_ms)) / kept_width)
    labels = [samples.labels[position] for position in busy]
    report = AdaptedRegime(
        regime=str(artefact.regime),
        rows=len(busy),
        models=len({label.recipe.model_key for label in labels}),
        host_rows=len(samples) - len(busy),
        before=before,
        after=after,
        is_tuned=is_tuned,
        coverage_before_percent=round(100.0 * float(is_inside.mean()), 1),
        half_width_factor=round(factor, 4),
        median_half_width_percent=round(100.0 * float(np.expm1(np.median(factor * kept_width))), 1),
    )
    # Networks and interval that stay as they were know the device no better than before.
    is_known = is_tuned or factor != 1.0
    measured = {
        **artefact.measured,
        "sources": sorted({label.source for label in labels}),
        "devices": [device.name],
        "models": report.models,
        "rows": report.rows,
    }
    networks = adapt_additive(rows.fitted, rows.learned, busy, settings) if is_tuned else rows.fitted
    known = _with_known(novelty, descriptors[busy]) if is_tuned else novelty
    tunings.count()
    path = manifest_path(artefact.regime, folder)
    replace(
        artefact,
        half_widths=tuple(np.round(factor * np.array(artefact.half_widths), 4).tolist()),
        # Precisions and layouts say what the networks are for, which the adaptation does not change.
        measured=measured if is_known else artefact.measured,
        test=after if is_tuned else before,
        settings=asdict(settings),
        provenance={
            "adapted_from": {"labels": artefact.labels, "provenance": dict(artefact.provenance)},
            "samples": samples.key,
            "versions": find_versions(),
        },
    ).write(path)
    write_tensors(path, {**additive_tensors(networks), **known.tensors()})
    return report


def _write_calibrations(
    host_ratio: float,
    context: MeasuredContext | None,
    labels: Sequence[Label],
    device: DeviceSpec,
    folder: Path,
    known: ShippedPredictor,
) -> tuple[CalibratedPower, ...]:
    """The shipped calibrations with the host's rate, and with what the labels say of power and context."""
    calibrations = {}
    for mode, shipped in known.calibrations.items():
        # It is measured now, and needs no guess by the card.
        scale = shipped.rates.host_on(device).host_scale * host_ratio
        calibrations[mode] = replace(shipped, rates=replace(shipped.rates, hosts={}, host_scale=scale))
        if context is not None:
            calibrations[mode] = replace(
                calibrations[mode],
                context_margin_mb=context.margin_low_mb,
                context_margin_high_mb=context.margin_high_mb,
            )
        calibrations[mode].write(calibration_path(mode, folder))
    calibrations, changes = calibrate_power(
        labels, calibrations, load_physics(folder), device, cache=known.cache, least_rows=_LEAST_ROWS
    )
    for mode, calibration in calibrations.items():
        calibration.write(calibration_path(mode, folder))
    return changes


def tolerance_quantile(scores: FloatArray) -> float:
    """The least score that 90 % of new ones stay below with a confidence of 90 %.

    Split conformal prediction covers 90 % on average over many sets of some tens of rows, and of half of the sets less.
    Whoever adapts has one. Of fewer than 22 rows none is large enough: the largest is taken.

    Args:
        scores: Scores of rows that were held out, [n].
    """
    ranks = np.arange(1, len(scores))
    # Chance that so many of n scores lie below the true quantile, in logarithms: the counts pass what a float holds.
    ways = [math.lgamma(len(scores) + 1) - math.lgamma(k) - math.lgamma(len(scores) - k + 2) for k in ranks.tolist()]
    chance = np.exp(
        np.array(ways) + (ranks - 1) * math.log(_COVERAGE) + (len(scores) - ranks + 1) * math.log(1.0 - _COVERAGE)
    )
    is_enough = np.cumsum(chance) >= _CONFIDENCE
    if is_enough.any():
        return float(np.sort(scores)[ranks[is_enough][0] - 1])
    return float(np.max(scores))


def _folds(samples: AdditiveSamples, chosen: IndexArray, *, seed: int) -> list[IndexArray]:
    """Parts of the chosen samples of about one size; no model is in two of them."""
    position = {samples.labels[index].key: int(index) for index in chosen}
    rest: Sequence[Label] = [samples.labels[index] for index in chosen]
    folds = []
    for left in range(_FOLDS, 1, -1):
        split = split_by_graph(rest, fractions=(1.0 - 1.0 / left, 0.0, 1.0 / left), seed=seed)
        folds.append(split.test)
        rest = split.training
    return [np.array([position[label.key] for label in part], dtype=np.int64) for part in (*folds, rest) if part]


def _with_known(novelty: Novelty, descriptors: Float32Array) -> Novelty:
    """The same with further calls that are known."""
    return replace(novelty, known=np.concatenate([novelty.known, (descriptors - novelty.mean) @ novelty.basis]))


def _copy(manifest: Path, folder: Path) -> None:
    """What no label taught anything stays as it is."""
    for path in (manifest, manifest.with_suffix(".safetensors")):
        if path.exists():
            shutil.copyfile(path, folder / path.name)


class _Counter:
    """Tells how many of the tunings are done."""

    def __init__(self, report: OnProgress | None, *, total: int) -> None:
        self._report, self._done, self._total = report, 0, total

    def count(self) -> None:
        self._done += 1
        if self._report is not None:
            self._report(self._done, self._total)
