"""How far the additive network is off on what it has not seen, as a report.

``python -m dippm.training.additive_report --mode training --cache graphs`` runs all protocols on the measured tables
and writes the report; fits that were made before are read back.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode
from dippm.datasets.store.label import Label
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.features.physical import COLUMNS
from dippm.training.additive import describe_errors, load_samples
from dippm.training.additive_batches import BatchCheck, check_doubling
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_protocol import HeldOut, predict_families, predict_random
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.physics import conformal_quantile

__all__ = ["main", "write_report"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_FOLDS = 5
_WORST = 20
_TITLES = {Mode.TRAINING: "Time of a training step", Mode.INFERENCE: "Time of an inference call"}
# Goals, % mean absolute percentage error: random by model, families left out.
_BOUNDS = {Mode.TRAINING: ("6.0", "9.0"), Mode.INFERENCE: ("3.0", "7.5")}
_HEADER = (
    "protocol",
    "goal %",
    "rows",
    "mean %",
    "median %",
    "90 % below %",
    "in interval %",
    "half-width %",
)
# What was found when the worst were looked at one by one: beginning of the name, layout or "" for both, cause.
_GROUPED = (
    "dpn", "eca_botnext", "eca_halonext", "eca_nfnet", "gcresnext", "gluon_resnext", "gluon_senet", "legacy_senet",
    "nfnet", "regnet", "repvgg", "resnest", "resnext", "senet", "seresnext", "skres", "ssl_resnext", "swsl_resnext",
    "visformer",
)  # fmt: skip
_CAUSES = (
    (("tresnet",), "nhwc", "right in NCHW; was measured with another norm, whose kernels seem not made for NHWC"),
    (("convmixer",), "", "depthwise 7x7 and 9x9, of which there are few; slow gradients, most of all in NHWC"),
    (_GROUPED, "nhwc", "grouped convolutions: backward kernels in NHWC differ several times over by group width"),
    (("cait",), "", "talking heads: products of four to eight columns, by which tiles overhang"),
    (("efficientnet_cc", "tf_efficientnet_cc"), "", "a weight per sample: the batch becomes groups, as nowhere else"),
    (("lambda_resnet",), "", "convolutions along a dimension of heads, as nowhere else"),
    (("ghostnet",), "", "many small depthwise kernels: the plain sum is at half of what was measured"),
)
_UNEXPLAINED = "not found"


def write_report(
    samples: AdditiveSamples,
    held: Sequence[HeldOut],
    families: Sequence[HeldOut],
    check: BatchCheck | None,
    *,
    command: str,
) -> str:
    """The report as Markdown.

    Args:
        samples: All samples.
        held: Predictions of random splits, one of each seed.
        families: Predictions of each fold of families.
        check: What doubling the batch does to the shipped predictor, None to leave that out.
        command: The command that makes it.
    """
    mode = samples.labels[0].configuration.conditions.mode
    spread = float(np.mean([_spread(samples, each) for each in held]))
    random_errors, family_errors = _join(held), _join(families)
    sections = [
        Section(
            title="What is measured and how it is split",
            text=[
                _describe(samples),
                "The network corrects predictor 0's kernel times operator by operator; a training step is the graph of "
                "forward pass, loss, backward pass and update. Each row of the first table below is one network; the "
                "shipped predictor averages several.",
                "Random: 80 % of the models are trained on, 10 % calibrate the interval (split conformal prediction), "
                "10 % are tested on. No graph is in two parts. Families left out: the families are dealt to "
                f"{len(families)} folds of equal size, and each fold is predicted by a network that was trained on the "
                "others; the interval is that of the random splits. Predictor 0 is the plain sum of the same kernel "
                "times. Choices were made on the validation part of seed 0; one rule, which resizes "
                "interpolate in parallel, was corrected after the worst rows of a first run had been looked at.",
                f"`{command}`",
            ],
        ),
        Section(title="Errors", tables=[_error_table(samples, held, families, spread)]),
        Section(
            title="Error by layout",
            tables=[_layout_table(samples, random_errors, family_errors)],
        ),
        _worst_section("Twenty worst, random by model", samples, *random_errors),
        _worst_section("Twenty worst, families left out", samples, *family_errors),
    ]
    if check is not None:
        sections.append(_batch_section(check))
    return render_markdown(_TITLES[mode], sections, {})


def _describe(samples: AdditiveSamples) -> str:
    labels = [samples.labels[position] for position in samples.usable]
    left_out = len(samples) - len(labels)
    devices = ", ".join(sorted({label.measurement.device for label in labels}))
    sources = ", ".join(sorted({label.source for label in labels}))
    return (
        f"{len(labels)} rows of {len({label.recipe.model_key for label in labels})} image models on {devices}, amp, "
        f"NCHW and NHWC ({sources}). {left_out} rows are left out because their names mean another model today than "
        "when they were measured: the numbers of weights differ."
    )


def _spread(samples: AdditiveSamples, held: HeldOut) -> float:
    return conformal_quantile(np.abs(np.log(held.validation_ms / samples.measured_ms[held.validation])))


def _join(parts: Sequence[HeldOut]) -> tuple[IndexArray, FloatArray]:
    """Tested samples and their predictions, each sample once: the mean of its predictions."""
    collected: dict[int, list[float]] = defaultdict(list)
    for part in parts:
        for position, predicted in zip(part.test.tolist(), part.test_ms.tolist(), strict=True):
            collected[position].append(predicted)
    chosen = np.array(sorted(collected), dtype=np.int64)
    return chosen, np.array([float(np.mean(collected[position])) for position in chosen.tolist()])


def _plain_ms(samples: AdditiveSamples) -> FloatArray:
    arrays = samples.arrays
    own = arrays.kernel_ms.astype(np.float64) * arrays.count
    result: FloatArray = np.add.reduceat(own, arrays.node_offsets[:-1])
    return result


def _error_table(
    samples: AdditiveSamples, held: Sequence[HeldOut], families: Sequence[HeldOut], spread: float
) -> Table:
    mode = samples.labels[0].configuration.conditions.mode
    random_bound, family_bound = _BOUNDS[mode]
    rows = []
    for number, part in enumerate(held):
        rows.append(_error_row(f"random, seed {number}", "", samples, part.test, part.test_ms, _spread(samples, part)))
    means = np.array([_errors(samples, part.test, part.test_ms).mean() for part in held])
    medians = np.array([np.median(_errors(samples, part.test, part.test_ms)) for part in held])
    rows.append(
        (
            "**random, mean of the seeds**",
            random_bound,
            str(sum(len(part.test) for part in held)),
            f"**{means.mean():.2f}** ± {means.std():.2f}",
            f"{medians.mean():.2f}",
            *["-"] * 3,
        )
    )
    for number, part in enumerate(families):
        rows.append(_error_row(f"families left out, fold {number}", "", samples, part.test, part.test_ms, spread))
    rows.append(_error_row("**families left out, all**", family_bound, samples, *_join(families), spread))
    plain = _plain_ms(samples)[samples.usable]
    rows.append(_error_row("plain sum of predictor 0, all rows", "", samples, samples.usable, plain, None))
    return Table(header=_HEADER, rows=rows)


def _errors(samples: AdditiveSamples, chosen: IndexArray, predicted: FloatArray) -> FloatArray:
    result: FloatArray = 100.0 * np.abs(predicted / samples.measured_ms[chosen] - 1.0)
    return result


def _error_row(
    name: str, bound: str, samples: AdditiveSamples, chosen: IndexArray, predicted: FloatArray, spread: float | None
) -> tuple[str, ...]:
    measured = samples.measured_ms[chosen]
    errors = describe_errors(predicted, measured)
    inside = "-" if spread is None else f"{100.0 * np.mean(np.abs(np.log(predicted / measured)) <= spread):.1f}"
    return (
        name,
        bound,
        str(len(chosen)),
        f"{errors['mape_percent']:.2f}",
        f"{errors['median_ape_percent']:.2f}",
        f"{errors['ape_percent_90']:.1f}",
        inside,
        "-" if spread is None else f"{100.0 * np.expm1(spread):.1f}",
    )


def _layout_table(
    samples: AdditiveSamples,
    at_random: tuple[IndexArray, FloatArray],
    by_family: tuple[IndexArray, FloatArray],
) -> Table:
    layouts = np.array([label.configuration.conditions.layout.value for label in samples.labels])
    rows = []
    for name, (chosen, predicted) in (("random", at_random), ("families left out", by_family)):
        for layout in sorted(set(layouts.tolist())):
            is_chosen = layouts[chosen] == layout
            rows.append(_error_row(f"{name}, {layout}", "", samples, chosen[is_chosen], predicted[is_chosen], None))
    return Table(header=_HEADER, rows=rows)


def _worst_section(title: str, samples: AdditiveSamples, chosen: IndexArray, predicted: FloatArray) -> Section:
    errors = 100.0 * (predicted / samples.measured_ms[chosen] - 1.0)
    plain = _plain_ms(samples)
    rows = []
    for place in np.argsort(-np.abs(errors), kind="stable")[:_WORST].tolist():
        position = int(chosen[place])
        label, measured = samples.labels[position], samples.measured_ms[position]
        rows.append(
            (
                _name(label),
                label.measurement.device.removeprefix("GeForce "),
                label.configuration.conditions.layout.value,
                str(label.recipe.batch),
                f"{measured:.1f}",
                f"{predicted[place]:.1f}",
                f"{errors[place]:+.1f}",
                f"{100.0 * (plain[position] / measured - 1.0):+.1f}",
                _where_time_goes(samples, position),
                _cause(label),
            )
        )
    header = (
        "model",
        "device",
        "layout",
        "batch",
        "measured ms",
        "predicted ms",
        "error %",
        "plain sum %",
        "most time by the plain sum",
        "cause, where likely",
    )
    return Section(title=title, tables=[Table(header=header, rows=rows)])


def _name(label: Label) -> str:
    return label.recipe.architecture.removeprefix("zoo:timm:")


def _cause(label: Label) -> str:
    layout = label.configuration.conditions.layout.value
    for names, where, cause in _CAUSES:
        if _name(label).startswith(names) and where in ("", layout):
            return cause
    return _UNEXPLAINED


def _where_time_goes(samples: AdditiveSamples, position: int) -> str:
    """The two groups of operators that take most of the time, by predictor 0."""
    arrays = samples.arrays
    span = slice(int(arrays.node_offsets[position]), int(arrays.node_offsets[position + 1]))
    features = arrays.node_features[span]
    own = arrays.kernel_ms[span].astype(np.float64) * arrays.count[span]

    def has(*names: str) -> npt.NDArray[np.bool_]:
        return np.asarray(features[:, [COLUMNS.index(name) for name in names]].any(axis=1))

    is_convolution = has("is_conv", "is_conv_transpose", "is_conv_weight_grad")
    groups = {
        "depthwise convolution": is_convolution & has("is_depthwise"),
        "grouped convolution": is_convolution & has("is_grouped"),
        "convolution": is_convolution & ~has("is_depthwise", "is_grouped"),
        "matrix product": has("is_linear", "is_matmul"),
        "attention": has("is_attention", "is_attention_grad"),
        "norm": has("is_batch_norm", "is_layer_norm", "is_group_norm", "is_norm_grad"),
        "softmax": has("is_softmax", "is_softmax_grad"),
        "copy": has("is_copy", "is_concat", "is_pad", "is_gather", "is_scatter"),
    }
    shares = {name: float(own[chosen].sum() / own.sum()) for name, chosen in groups.items()}
    shares["other"] = 1.0 - sum(shares.values())
    top = sorted(shares, key=lambda name: -shares[name])[:2]
    return ", ".join(f"{name} {100.0 * shares[name]:.0f} %" for name in top)


def _batch_section(check: BatchCheck) -> Section:
    rows = [(name, f"{before:g} → {after:g}", f"{change:+.2f}") for name, before, after, change in check.worst]
    return Section(
        title="Does a larger batch ever get cheaper?",
        text=[
            f"The shipped predictor at batches {', '.join(map(str, check.batches))} of {check.models} models drawn at "
            f"random: of {check.pairs} doublings {check.clearly_lower} lower the predicted time by more than 1 %. "
            f"{check.lower} lower it at all: where the host is what counts, by next to nothing.",
        ],
        tables=[Table(header=("model", "batch", "change of the time %"), rows=rows, caption="Largest falls")]
        if rows
        else [],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: run the protocols, write the report."""
    parser = argparse.ArgumentParser(description="Report the errors of the additive network.")
    parser.add_argument("--mode", type=Mode, choices=list(Mode), required=True)
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--folder", type=Path, default=Path("dippm-trained/additive"), help="folder of arrays and fits")
    parser.add_argument("--seeds", type=int, default=3, help="random splits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--models", type=int, default=200, help="models whose batch is doubled; 0 for none")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    samples, _ = load_samples(options.mode, cache=options.cache, folder=options.folder)
    settings = AdditiveSettings(members=1, epochs=options.epochs)
    families = predict_families(samples, settings, folds=_FOLDS, folder=options.folder)
    held = [
        predict_random(samples, replace(settings, seed=seed), folder=options.folder) for seed in range(options.seeds)
    ]
    check = check_doubling(samples, cache=options.cache, models=options.models) if options.models else None
    command = f"python -m dippm.training.additive_report --mode {options.mode} --out {options.out}"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(write_report(samples, held, families, check, command=command), encoding="utf-8")


if __name__ == "__main__":
    main()
