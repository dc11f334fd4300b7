"""Tables of the additive network's errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode
from dippm.datasets.store.label import Label
from dippm.evaluation.report_page import Section, Table
from dippm.features.physical import COLUMNS
from dippm.training.additive import describe_errors
from dippm.training.additive_protocol import HeldOut
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["HEADER", "HalfWidths", "Rows", "breakdown_tables", "error_row", "join", "worst_section"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

HalfWidths = Callable[[FloatArray], FloatArray]
"""Half-width of an interval by distance."""

HEADER = (
    "protocol",
    "goal %",
    "rows",
    "mean %",
    "median %",
    "90 % below %",
    "in interval %",
    "median half-width %",
)
_WORST = 20
_LEAST_ROWS = 20
_BATCHES = (1, 16, 64, 128, 256, 512, 1024, 2048)
# What was found when the worst were looked at one by one: beginning of the name, layout or "" for both, mode or None
# for all, cause.
_GROUPED = (
    "dpn", "eca_botnext", "eca_halonext", "eca_nfnet", "gcresnext", "gluon_resnext", "gluon_senet", "legacy_senet",
    "nfnet", "regnet", "repvgg", "resnest", "resnext", "senet", "seresnext", "skres", "ssl_resnext", "swsl_resnext",
    "visformer",
)  # fmt: skip
_CAUSES: tuple[tuple[tuple[str, ...], str, Mode | None, str], ...] = (
    (("tresnet",), "nhwc", None, "right in NCHW; was measured with another norm, whose kernels seem not made for NHWC"),
    (("convmixer",), "", None, "depthwise 7x7 and 9x9, of which there are few; slow kernels, most of all in NHWC"),
    (_GROUPED, "nhwc", Mode.TRAINING, "grouped convolutions: gradients in NHWC differ several times over by width"),
    (_GROUPED, "nhwc", Mode.INFERENCE, "grouped convolutions: kernels in NHWC differ several times over by width"),
    (("cait",), "", None, "talking heads: products of four to eight columns, by which tiles overhang"),
    (
        ("efficientnet_cc", "tf_efficientnet_cc"),
        "",
        None,
        "a weight per sample: the batch becomes groups, as nowhere else",
    ),
    (("lambda_resnet",), "", None, "convolutions along a dimension of heads, as nowhere else"),
    (("ghostnet",), "", None, "many small depthwise kernels: the plain sum is at half of what was measured"),
    (("efficientformerv2",), "", None, "most of its time are two to six resizes, whose kernel nothing else runs much"),
)
_UNEXPLAINED = "not found"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Predicted rows.

    Args:
        chosen: Their positions among the samples.
        predicted_ms: Predicted time.
        distance: Distance from what was trained on.
    """

    chosen: IndexArray
    predicted_ms: FloatArray
    distance: FloatArray

    def where(self, is_chosen: BoolArray) -> Rows:
        """Some of them."""
        return Rows(
            chosen=self.chosen[is_chosen],
            predicted_ms=self.predicted_ms[is_chosen],
            distance=self.distance[is_chosen],
        )


def join(parts: Sequence[HeldOut]) -> Rows:
    """Tested samples and their predictions, each sample once: the mean of its predictions and distances."""
    collected: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for part in parts:
        for position, predicted, distance in zip(
            part.test.tolist(), part.test_ms.tolist(), part.test_distance.tolist(), strict=True
        ):
            collected[position].append((predicted, distance))
    chosen = np.array(sorted(collected), dtype=np.int64)
    means = np.array([np.mean(collected[position], axis=0) for position in chosen.tolist()]).reshape(-1, 2)
    return Rows(chosen=chosen, predicted_ms=means[:, 0], distance=means[:, 1])


def error_row(
    name: str, bound: str, samples: AdditiveSamples, rows: Rows, half_widths: HalfWidths | None
) -> tuple[str, ...]:
    """One row under :data:`HEADER`; without half-widths it says nothing of intervals."""
    measured = samples.measured_ms[rows.chosen]
    errors = describe_errors(rows.predicted_ms, measured)
    inside, width = "-", "-"
    if half_widths is not None:
        own = half_widths(rows.distance)
        inside = f"{100.0 * np.mean(np.abs(np.log(rows.predicted_ms / measured)) <= own):.1f}"
        width = f"{100.0 * np.expm1(np.median(own)):.1f}"
    return (
        name,
        bound,
        str(len(rows.chosen)),
        f"{errors['mape_percent']:.2f}",
        f"{errors['median_ape_percent']:.2f}",
        f"{errors['ape_percent_90']:.1f}",
        inside,
        width,
    )


def breakdown_tables(samples: AdditiveSamples, rows: Rows, half_widths: HalfWidths, *, caption: str) -> list[Table]:
    """Errors by layout, by batch size and by what most of the time goes to."""
    labels = [samples.labels[position] for position in rows.chosen.tolist()]
    layouts = np.array([label.configuration.conditions.layout.value for label in labels])
    batches = np.array([label.recipe.batch for label in labels])
    tops = np.array([_shares(samples, position)[0][0] for position in rows.chosen.tolist()])

    def table(what: str, parts: Iterator[tuple[str, BoolArray]]) -> Table:
        lines = [
            error_row(name, "", samples, rows.where(part), half_widths)
            for name, part in parts
            if part.sum() >= _LEAST_ROWS
        ]
        return Table(header=(what, *HEADER[1:]), rows=lines, caption=caption)

    return [
        table("layout", ((name, layouts == name) for name in sorted(set(layouts.tolist())))),
        table(
            "batch",
            (
                (f"{low} to {high - 1}" if high - low > 1 else str(low), (batches >= low) & (batches < high))
                for low, high in pairwise(_BATCHES)
            ),
        ),
        table("most time goes to", ((name, tops == name) for name in sorted(set(tops.tolist())))),
    ]


def worst_section(title: str, samples: AdditiveSamples, rows: Rows) -> Section:
    """The twenty rows that are predicted worst, with what is known of the cause."""
    measured = samples.measured_ms[rows.chosen]
    errors = 100.0 * (rows.predicted_ms / measured - 1.0)
    plain = samples.plain_ms()
    lines = []
    for place in np.argsort(-np.abs(errors), kind="stable")[:_WORST].tolist():
        position = int(rows.chosen[place])
        label = samples.labels[position]
        lines.append(
            (
                _name(label),
                label.measurement.device.removeprefix("GeForce "),
                label.configuration.conditions.layout.value,
                str(label.recipe.batch),
                f"{measured[place]:.1f}",
                f"{rows.predicted_ms[place]:.1f}",
                f"{errors[place]:+.1f}",
                f"{100.0 * (plain[position] / measured[place] - 1.0):+.1f}",
                ", ".join(f"{name} {100.0 * share:.0f} %" for name, share in _shares(samples, position)[:2]),
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
    return Section(title=title, tables=[Table(header=header, rows=lines)])


def _name(label: Label) -> str:
    return label.recipe.architecture.removeprefix("zoo:timm:")


def _cause(label: Label) -> str:
    conditions = label.configuration.conditions
    for names, layout, mode, cause in _CAUSES:
        is_meant = layout in ("", conditions.layout.value) and mode in (None, conditions.mode)
        if _name(label).startswith(names) and is_meant:
            return cause
    return _UNEXPLAINED


def _shares(samples: AdditiveSamples, position: int) -> list[tuple[str, float]]:
    """Groups of operators and their part of the plain sum's time, the largest first."""
    arrays = samples.arrays
    span = slice(int(arrays.node_offsets[position]), int(arrays.node_offsets[position + 1]))
    features = arrays.node_features[span]
    own = arrays.kernel_ms[span].astype(np.float64) * arrays.count[span]

    def has(*names: str) -> BoolArray:
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
    return sorted(shares.items(), key=lambda item: -item[1])
