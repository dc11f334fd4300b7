"""How far the additive network is off on what it has not seen, as a report.

``python -m dippm.training.additive_report --mode training --cache graphs`` runs all protocols on the measured tables
and writes the report; fits that were made before are read back.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.rates import Rates
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.predictors.additive_artefact import Regime
from dippm.training.additive import FOLDS, additive_settings, load_samples, pooled
from dippm.training.additive_ablation import ABLATIONS, predict_by_trees
from dippm.training.additive_devices import DeviceLeftOut, leave_out_device
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_labels import family_folds, random_parts
from dippm.training.additive_novelty import fit_half_widths
from dippm.training.additive_protocol import HeldOut, predict_families, predict_random
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.additive_tables import HEADER, HalfWidths, Rows, breakdown_tables, error_row, join, worst_section
from dippm.training.physics import conformal_quantile

__all__ = ["main", "write_report"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_TITLES = {
    "training": "Time of a training step",
    "inference": "Time of an inference call",
    "inference-compile": "Time of an inference call, compiled",
}
# Goals, % mean absolute percentage error: random by model, families left out.
_BOUNDS = {"training": ("4.5", "7.5"), "inference": ("3.0", "7.5"), "inference-compile": ("10.0", "")}
_DEVICE_BOUNDS = ("12.0", "5.0")
_LABELS_TO_ADAPT = (10, 50)
_BOUND_AT = 50


def write_report(
    samples: AdditiveSamples,
    held: Sequence[HeldOut],
    families: Sequence[HeldOut],
    *,
    others: Sequence[tuple[str, Rows]] = (),
    devices: Sequence[DeviceLeftOut] = (),
    command: str,
) -> str:
    """The report as Markdown.

    Args:
        samples: All samples.
        held: Predictions of random splits, one of each seed.
        families: Predictions of each fold of families.
        others: Predictions of the first random split's test part without a part of the predictor, by name.
        devices: Predictions of devices that were left out.
        command: The command that makes it.
    """
    name = str(_regime_of(samples))
    at_random, by_family = join(held), join(families)
    widths = _half_widths(samples, [*families, *map(_validation_of, held)], at_random.chosen)
    sections = [
        Section(
            title="What is measured and how it is split",
            text=[
                _describe(samples),
                "The network corrects the kernel times of a plain sum, operator by operator; a training step is the "
                "graph of forward pass, loss, backward pass and update. The rates of the plain sum were fitted on 200 "
                "models drawn at random (`python -m dippm.training.physics`), but not where a device is left out: "
                "there they are those that the program had before any fit, and what two kinds of depthwise kernels "
                "reach, which rows of both cards have shown. Each row of the first table below is one network; the "
                "shipped predictor averages several.",
                "Random: 80 % of the models are trained on, 10 % are for choices, 10 % are tested on. No graph is in "
                f"two parts. Families left out: the families are dealt to {len(families)} folds of equal size, and "
                "each fold is predicted by a network that was trained on the others. Choices were made on the "
                "validation part of seed 0; rules of the plain sum were corrected after the worst rows of earlier runs "
                "had been looked at: which resizes interpolate in parallel and how long they take, which kernel a "
                "depthwise convolution runs, in which order images lie in memory, that norms of the tables of "
                "inference were in 16 bits, and which concatenations compiled models build in memory. They follow from "
                "PyTorch's sources and from what memory can move, but these rows are no untouched test of them.",
                "The interval's width follows from the distance to the nearest row that was trained on "
                "(`dippm.predictors.additive_novelty`). Its curve is calibrated on families that were left out: for "
                "each fold on the other folds, for devices on rows of other models, for random splits on those and on "
                "the validation parts.",
                f"`{command}`",
            ],
        ),
        Section(title="Errors", tables=[_error_table(samples, held, families, widths)]),
    ]
    if others:
        sections.append(_ablation_section(samples, held[0], others))
    if devices:
        sections.append(_device_section(samples, devices, families))
    sections += [
        Section(
            title="By layout, batch and operator",
            tables=[
                *breakdown_tables(samples, at_random, widths, caption="Random by model, all seeds"),
                *breakdown_tables(samples, by_family, widths, caption="Families left out"),
            ],
        ),
        worst_section("Twenty worst, random by model", samples, at_random),
        worst_section("Twenty worst, families left out", samples, by_family),
    ]
    return render_markdown(_TITLES[name], sections, {})


def _regime_of(samples: AdditiveSamples) -> Regime:
    conditions = samples.labels[0].configuration.conditions
    return Regime(mode=conditions.mode, runtime=conditions.runtime)


def _describe(samples: AdditiveSamples) -> str:
    labels = [samples.labels[position] for position in samples.usable]
    left_out = len(samples) - len(labels)
    devices = ", ".join(sorted({label.measurement.device for label in labels}))
    sources = ", ".join(sorted({label.source for label in labels}))
    layouts = " and ".join(sorted({label.configuration.conditions.layout.value.upper() for label in labels}))
    return (
        f"{len(labels)} rows of {len({label.recipe.model_key for label in labels})} image models on {devices}, amp, "
        f"{layouts} ({sources}). {left_out} rows are left out because their names mean another model today than "
        "when they were measured: the numbers of weights differ."
    )


def _validation_of(part: HeldOut) -> HeldOut:
    """The part that choices may be made on, in place of the one to test on."""
    return replace(part, test=part.validation, test_ms=part.validation_ms, test_distance=part.validation_distance)


def _half_widths(
    samples: AdditiveSamples, held: Sequence[HeldOut], without: IndexArray, *, least: float = 0.0
) -> HalfWidths:
    """The curve of intervals, calibrated on predictions of left out rows, but for those of these samples' graphs."""
    graphs = {samples.labels[position].graph_hash for position in without.tolist()}
    same = np.array(
        [position for position, label in enumerate(samples.labels) if label.graph_hash in graphs], dtype=np.int64
    )
    distances, half_widths = fit_half_widths(*pooled(samples, held, without=same))
    return lambda distance: np.maximum(np.interp(distance, distances, half_widths), least)


def _error_table(
    samples: AdditiveSamples, held: Sequence[HeldOut], families: Sequence[HeldOut], widths: HalfWidths
) -> Table:
    random_bound, family_bound = _BOUNDS[str(_regime_of(samples))]
    rows = [error_row(f"random, seed {number}", "", samples, join([part]), widths) for number, part in enumerate(held)]
    errors = [100.0 * np.abs(part.test_ms / samples.measured_ms[part.test] - 1.0) for part in held]
    means = np.array([each.mean() for each in errors])
    rows.append(
        (
            "**random, mean of the seeds**",
            random_bound,
            str(sum(len(part.test) for part in held)),
            f"**{means.mean():.2f}** ± {means.std():.2f}",
            f"{np.mean([np.median(each) for each in errors]):.2f}",
            "-",
            f"{np.mean([float(row[6]) for row in rows]):.1f}",
            "-",
        )
    )
    inside, every = 0.0, 0
    for number, part in enumerate(families):
        others = [each for each in families if each is not part]
        own_widths = _half_widths(samples, others, part.test)
        rows.append(error_row(f"families left out, fold {number}", "", samples, join([part]), own_widths))
        inside += float(rows[-1][6]) * len(part.test)
        every += len(part.test)
    total = error_row("**families left out, all**", family_bound, samples, join(families), None)
    rows.append((*total[:3], f"**{total[3]}**", *total[4:6], f"{inside / every:.1f}", "-"))
    plain = Rows(chosen=samples.usable, predicted_ms=samples.plain_ms()[samples.usable], distance=np.zeros(0))
    rows.append(error_row("plain sum of predictor 0, all rows", "", samples, plain, None))
    return Table(header=HEADER, rows=rows)


def _ablation_section(samples: AdditiveSamples, whole: HeldOut, others: Sequence[tuple[str, Rows]]) -> Section:
    rows = [error_row("all of it", "", samples, join([whole]), None)]
    rows += [error_row(name, "", samples, part, None) for name, part in others]
    return Section(
        title="What each part is worth",
        text=["One network each, the same split and settings, random by model and with families left out."],
        tables=[Table(header=HEADER[:6], rows=[row[:6] for row in rows])],
    )


def _device_section(samples: AdditiveSamples, devices: Sequence[DeviceLeftOut], families: Sequence[HeldOut]) -> Section:
    rows = []
    for left in devices:
        of_others = [_half_width_of(samples, other) for other in devices if other is not left]
        widths = _half_widths(samples, families, left.test, least=max(of_others, default=0.0))

        def row(name: str, bound: str, predicted_ms: FloatArray, own_widths: HalfWidths | None) -> None:
            of = Rows(chosen=left.test, predicted_ms=predicted_ms, distance=left.distance)  # noqa: B023 - used at once
            rows.append(error_row(f"{left.device}, {name}", bound, samples, of, own_widths))  # noqa: B023

        row("plain sum, no rate fitted", "", left.plain_ms, None)
        row("no label of it", _DEVICE_BOUNDS[0], left.zero_shot_ms, widths)
        for count, predicted_ms in left.adapted_ms.items():
            row(f"{count} labels", _DEVICE_BOUNDS[1] if count == _BOUND_AT else "", predicted_ms, None)
    return Section(
        title="A device that was never measured",
        text=[
            "Trained on the rows of the other device alone, tested on the device's rows of models that are in no "
            "training. Then adapted with some labels of the device, of models that were trained on: those in the "
            "middles of as many clusters. Steps and rate of the adapting were chosen on half of the rows that are "
            "tested on here. The curve of the intervals comes from networks that knew both cards; without a label an "
            "interval is at least as wide as nine in ten rows of the other card ask for where that one was left out.",
        ],
        tables=[Table(header=HEADER, rows=rows)],
    )


def _half_width_of(samples: AdditiveSamples, left: DeviceLeftOut) -> float:
    """The half-width that nine in ten rows of a device that was left out lie within."""
    return conformal_quantile(np.abs(np.log(left.zero_shot_ms / samples.measured_ms[left.test])))


def _replace_parts(
    samples: AdditiveSamples,
    settings: AdditiveSettings,
    *,
    folder: Path,
    ablations: Mapping[str, Callable[[AdditiveSamples], AdditiveSamples]],
) -> list[tuple[str, Rows]]:
    training, _, test = random_parts(samples, seed=settings.seed)
    none = np.zeros(len(test))
    folds = family_folds(samples, folds=FOLDS)
    tested = np.concatenate([chosen for _, chosen in folds])
    by_family = [predict_by_trees(samples, learned, chosen, seed=settings.seed) for learned, chosen in folds]
    plain_ms = samples.plain_ms()
    result = [
        ("without the network: the plain sum", Rows(chosen=test, predicted_ms=plain_ms[test], distance=none)),
        (
            "boosted trees on summed costs instead",
            Rows(
                chosen=test,
                predicted_ms=predict_by_trees(samples, training, test, seed=settings.seed),
                distance=none,
            ),
        ),
        (
            "boosted trees on summed costs, families left out",
            Rows(chosen=tested, predicted_ms=np.concatenate(by_family), distance=np.zeros(len(tested))),
        ),
    ]
    for name, leave_out in ablations.items():
        less = leave_out(samples)
        result.append((name, join([predict_random(less, settings, folder=folder)])))
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: run the protocols, write the report."""
    parser = argparse.ArgumentParser(description="Report the errors of the additive network.")
    parser.add_argument("--mode", type=Mode, choices=list(Mode), required=True)
    parser.add_argument("--runtime", type=Runtime, choices=[Runtime.EAGER, Runtime.COMPILE], default=Runtime.EAGER)
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--folder", type=Path, default=Path("dippm-trained/additive"), help="folder of arrays and fits")
    parser.add_argument("--seeds", type=int, default=3, help="random splits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--ablate", action="store_true", help="also fit without each part: three more fits")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    regime = Regime(mode=options.mode, runtime=options.runtime)
    samples, _ = load_samples(regime, cache=options.cache, folder=options.folder)
    settings = additive_settings(options.mode, members=1, epochs=options.epochs)
    families = predict_families(samples, settings, folds=FOLDS, folder=options.folder)
    held = [
        predict_random(samples, replace(settings, seed=seed), folder=options.folder) for seed in range(options.seeds)
    ]
    names = sorted({samples.labels[position].measurement.device for position in samples.usable.tolist()})
    devices = []
    if len(names) > 1:
        unfitted, _ = load_samples(regime, cache=options.cache, folder=options.folder, rates=Rates())
        pair = replace(settings, members=2)
        devices = [leave_out_device(unfitted, pair, device=name, labels=_LABELS_TO_ADAPT) for name in names]
    command = (
        f"python -m dippm.training.additive_report --mode {options.mode} --runtime {options.runtime}"
        f"{' --ablate' if options.ablate else ''} --seeds {options.seeds} --out {options.out}"
    )
    report = write_report(
        samples,
        held,
        families,
        others=_replace_parts(samples, settings, folder=options.folder, ablations=ABLATIONS if options.ablate else {}),
        devices=devices,
        command=command,
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
