"""The report of the DIPPM protocol in words, tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dippm.evaluation.dippm_plots import DISTRIBUTION, FAMILIES, FIGURE_4, SIZES, TABLE_4
from dippm.evaluation.dippm_protocol import BASELINE, MIG_DEVICE, apply_equation_2
from dippm.evaluation.dippm_report import ComparedRow, DippmReport, GroupScore
from dippm.evaluation.relative_errors import MEAN
from dippm.evaluation.report_page import Section, Table, describe_provenance

__all__ = ["describe_report", "title_of_report"]

_NAMES = {"memory_mb": "memory", "latency_ms": "latency", "energy_j": "energy", MEAN: "mean"}
_PARTS = ("training", "validation", "test")
_MOST_FAMILIES = 60
# One row may be off by chance.
_LARGE_FAMILY = 10


def title_of_report(report: DippmReport) -> str:
    """Title of the report."""
    return f"DIPPM's evaluation: {report.dataset.device}, {report.dataset.conditions}"


def describe_report(report: DippmReport) -> tuple[Section, ...]:
    """Every section of the report, in order; one without figures says why."""
    return (
        _data(report),
        _networks(report),
        _long_run(report),
        _novelty(report),
        _mig(report),
        _families(report),
        _left_out(report),
        _sizes(report),
        _distribution(report),
        describe_provenance(report.provenance, data_hash=report.dataset.data_hash, seed=report.settings.seed),
    )


def _data(report: DippmReport) -> Section:
    data = report.dataset
    low, median, high = data.operators
    text = [
        f"{data.rows:,} measured rows of {data.models:,} models in {data.families} families, from {data.source}"
        f" ({', '.join(data.software) or 'software unknown'}). Graphs have {low:,} to {high:,} operators, half of "
        f"them {median:,} or fewer. Measured: {_listed(data.metrics)}."
        + (f" {data.unread} models cannot be read and are left out." if data.unread else ""),
        "All errors are mean absolute percentage errors in percent. Models are split at random 70/15/15 into training, "
        "validation and test, with all batches of a model in one part. This is harder than a split by row, where a "
        "test row's model was seen at other batches; that one has its own line below.",
        "Figures are those of the labels, repeats merged to their median, after what is no property of a model was "
        "taken out: what processes held before it, and the machine's pace where there are several passes.",
    ]
    first = report.provenance.get("learned first")
    if first is not None:
        text.append(
            f"Networks learned first from {first['samples']:,} rows of '{', '.join(first['sources'])}' "
            f"({', '.join(first['devices'])}, {', '.join(first['software'])}) for {first['epochs']} epochs. Models "
            "that a training chooses its best epoch by or is tested on, and families that it leaves out, are not among "
            "them. Trees learn from the rows of this data set alone."
        )
    if not data.noise:
        return Section(title="Data", text=(*text, "No row was measured twice: how noisy the labels are is unknown."))
    rows = [
        (
            each.other,
            _NAMES[each.metric],
            f"{each.pairs:,}",
            f"{each.shift_percent:+.1f}",
            f"{each.difference_percent:.1f}",
        )
        for each in data.noise
    ]
    table = Table(
        header=("measured against", "figure", "pairs", "median shift, %", "mean difference, %"),
        rows=rows,
        caption="The labels' own noise, a constant factor taken out",
    )
    return Section(title="Data", text=text, tables=(table,))


def _networks(report: DippmReport) -> Section:
    settings, metrics = report.settings, report.dataset.metrics
    # The parts' columns are means over the metrics: of a single one they say all.
    metrics = metrics if len(metrics) > 1 else ()
    header = ("model", *_PARTS, *(f"test {_NAMES[metric]}" for metric in metrics))
    rows = []
    tests_of: dict[str, list[float]] = {}
    for name in dict.fromkeys(score.model for score in report.networks):
        scores = [score for score in report.networks if score.model == name]
        means = [_over_seeds([score.errors[part].get(MEAN) for score in scores]) for part in _PARTS]
        tests = [_over_seeds([score.errors["test"].get(metric) for score in scores]) for metric in metrics]
        rows.append((name, *means, *tests))
        tests_of[name] = [score.test_mean for score in scores]
    seeds = (
        f"seed {settings.seed}" if settings.seeds == 1 else f"means over {settings.seeds} seeds, their spread after ±"
    )
    return Section(
        title="Table 4: networks compared",
        text=(
            f"Every network after {settings.epochs} epochs with the same settings, {seeds}; {BASELINE} is boosted "
            "trees on summed costs, which see no graph and have no epochs.",
            _ranking(tests_of),
        ),
        tables=(Table(header=header, rows=rows),),
        plot=TABLE_4,
    )


def _ranking(tests_of: Mapping[str, Sequence[float]]) -> str:
    """Whether the default network comes out ahead, as it does in the paper: compared seed by seed."""
    (default, own), *others = ((name, errors) for name, errors in tests_of.items() if name != BASELINE)
    behind, ahead, level = [], [], []
    for name, errors in others:
        pairs = list(zip(errors, own, strict=True))
        if all(other > mine for other, mine in pairs):
            behind.append(name)
        elif all(other < mine for other, mine in pairs):
            ahead.append(name)
        else:
            level.append(name)
    where = "on every seed" if len(own) > 1 else "on this one seed, which tells little"
    return (
        f"On the test rows {default} has {np.mean(own):.1f} %. Worse {where}: {', '.join(behind) or 'none'}. Better: "
        f"{', '.join(ahead) or 'none'}. Neither: {', '.join(level) or 'none'}. In the paper GraphSAGE, which {default} "
        "is, is ahead of GAT, GIN and MLP."
    )


def _long_run(report: DippmReport) -> Section:
    run = report.long_run
    metrics = _columns(report)
    rows = [
        (f"{score.model}, {part}", f"{score.rows[part]:,}", *(_percent(score.errors[part].get(m)) for m in metrics))
        for score in (run, report.baseline, report.constant)
        for part in _PARTS
    ]
    return Section(
        title="Figure 4: the long run, actual against predicted",
        text=(
            f"{run.model}, at most {report.settings.long_epochs} epochs, weights of the epoch with the least "
            "validation error. The plot shows the test rows; the band is 20 % either way. The constant is the median "
            "of the training rows, whatever the model: where it is near, a figure hardly differs between models.",
        ),
        tables=(Table(header=("split", "rows", *(_NAMES[metric] for metric in metrics)), rows=rows),),
        plot=FIGURE_4,
    )


def _novelty(report: DippmReport) -> Section:
    metrics = _columns(report)
    rows = [
        (
            str(score.novelty),
            score.model,
            f"{score.rows['test']:,}",
            *(_percent(score.errors["test"].get(metric)) for metric in metrics),
        )
        for score in report.by_novelty
    ]
    return Section(
        title="Seen, partly seen and unseen architectures",
        text=(
            "Seen: the same graph was trained on, at another batch or under another name (split by row). Partly seen: "
            "its family was trained on (split by model). Unseen: nothing of its family was (families drawn by the seed "
            "and held out together). A line is missing where the data have no such rows.",
        ),
        tables=(Table(header=("test rows", "model", "rows", *(_NAMES[metric] for metric in metrics)), rows=rows),),
    )


def _mig(report: DippmReport) -> Section:
    title = "Table 5: MIG slices"
    if not report.mig:
        return Section(title=title, text=("Memory was not measured: there is no slice to choose.",))
    text = [
        "The slice that Eq. 2 gives from predicted memory against the slice from measured memory. Too small is the "
        "costly mistake: the model would run out of memory.",
    ]
    if report.dataset.device != MIG_DEVICE:
        text.append(
            f"The labels are of {report.dataset.device}; Eq. 2 is the rule of {MIG_DEVICE} and is applied to the "
            "memory that was measured there. It shows how well memory is predicted near the rule's limits, not where "
            "these models would run on an A100."
        )
    if len({name for each in report.mig for name in each.measured_slices}) == 1:
        text.append("All measured memory falls in one slice: here the choice is no test of the predictor.")
    scores = [
        (
            str(each.novelty),
            f"{each.rows:,}",
            f"{100 * each.right / each.rows:.1f}",
            f"{each.too_small:,}",
            f"{each.too_large:,}",
            f"{each.memory_error:.1f}",
            _counts(each.measured_slices),
        )
        for each in report.mig
    ]
    header = ("architectures", "rows", "right, %", "too small", "too large", "memory error, %", "measured slices")
    examples = [_example(row) for row in report.mig_examples]
    example_header = ("model", "architecture", "batch", "predicted, MiB", "measured, MiB", "predicted", "measured")
    return Section(
        title=title,
        text=text,
        tables=(
            Table(header=header, rows=scores),
            Table(header=example_header, rows=examples, caption="Of each kind the rows of least and of most memory"),
        ),
    )


def _families(report: DippmReport) -> Section:
    shown = report.families[:_MOST_FAMILIES]
    text = ["Test rows of the long run, the largest error first."]
    if len(shown) < len(report.families):
        text.append(f"The {len(report.families) - len(shown)} families with the least error are not shown.")
    return Section(
        title="Error by family", text=text, tables=(_group_table(report, shown, first="family"),), plot=FAMILIES
    )


def _left_out(report: DippmReport) -> Section:
    title = "Families left out in turn"
    mean, row_mean = report.left_out_mean, report.left_out_row_mean
    if mean is None or row_mean is None:
        return Section(title=title, text=("Not asked for: it trains anew for every group of families.",))
    families = report.left_out
    trees = np.array([each.baseline_errors[MEAN] for each in families])
    rows = np.array([each.rows for each in families])
    large = [each for each in families if each.rows >= _LARGE_FAMILY]
    worst = (
        f"; of those with {_LARGE_FAMILY} rows or more {large[0].name} with {large[0].errors[MEAN]:.1f} %"
        if large and large[0] is not families[0]
        else ""
    )
    shown = families[:_MOST_FAMILIES]
    more = f" Shown are the {len(shown)} worst." if len(shown) < len(families) else ""
    return Section(
        title=title,
        text=(
            f"All {len(families)} families were left out of training in turn, in {report.settings.family_groups} "
            f"groups of about equally many rows. Mean over families {mean:.1f} % ({BASELINE} {trees.mean():.1f} %), "
            f"over their rows {row_mean:.1f} % ({BASELINE} {np.average(trees, weights=rows):.1f} %). The worst is "
            f"{families[0].name} with {families[0].errors[MEAN]:.1f} % of {families[0].rows} rows{worst}.{more}",
        ),
        tables=(_group_table(report, shown, first="family left out"),),
    )


def _sizes(report: DippmReport) -> Section:
    return Section(
        title="Error against size of the graph",
        text=("Test rows of the long run by number of operators.",),
        tables=(_group_table(report, report.sizes, first="operators"),),
        plot=SIZES,
    )


def _distribution(report: DippmReport) -> Section:
    rows = [
        (
            _NAMES[each.metric],
            f"{each.bias_percent:+.1f}",
            *(f"{value:.1f}" for value in each.quantiles_percent),
            *(f"{value:.0f}" for value in each.within_percent),
        )
        for each in report.spreads
    ]
    header = (
        "figure", "median signed error, %", "50 % below", "75 % below", "90 % below", "95 % below", "largest, %",
        "rows within 5 %, %", "within 10 %", "within 20 %",
    )  # fmt: skip
    return Section(
        title="Distribution of errors",
        text=("Absolute errors of the test rows of the long run.",),
        tables=(Table(header=header, rows=rows),),
        plot=DISTRIBUTION,
    )


def _columns(report: DippmReport) -> tuple[str, ...]:
    """The measured figures, and their mean where there are several."""
    metrics = report.dataset.metrics
    return (*metrics, MEAN) if len(metrics) > 1 else metrics


def _group_table(report: DippmReport, groups: Sequence[GroupScore], *, first: str) -> Table:
    metrics = _columns(report)
    rows = [
        (
            each.name,
            f"{each.rows:,}",
            *(_percent(each.errors.get(metric)) for metric in metrics),
            _percent(each.baseline_errors.get(MEAN)),
        )
        for each in groups
    ]
    return Table(header=(first, "rows", *(_NAMES[metric] for metric in metrics), f"{BASELINE}, mean"), rows=rows)


def _example(row: ComparedRow) -> tuple[str, ...]:
    predicted, measured = row.predicted["memory_mb"], row.measured["memory_mb"]
    return (
        row.model,
        str(row.novelty),
        str(row.batch),
        f"{predicted:,.0f}",
        f"{measured:,.0f}",
        apply_equation_2(predicted),
        apply_equation_2(measured),
    )


def _over_seeds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    if len(known) == 1:
        return _percent(known[0])
    return f"{_percent(float(np.mean(known)))} ± {_percent(float(np.std(known)))}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(_NAMES[name] for name in names)
