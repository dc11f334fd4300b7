"""The report of the DNNPerf protocol in words, tables and plots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dippm.evaluation.dnnperf_plots import ACTUAL, ERRORS, TITLES
from dippm.evaluation.dnnperf_protocol import HELD_OUT_MODELS, UNSEEN
from dippm.evaluation.dnnperf_report import OVERALL, DnnperfReport, ErrorPair, StepScore, UnseenScore
from dippm.evaluation.report_page import Section, Table, describe_provenance
from dippm.models.dnnperf_registry import ANEE, DNNPERF_NETWORKS, TREES

__all__ = ["describe_dnnperf_report", "title_of_dnnperf_report"]

_UNITS = {"latency_ms": "ms", "memory_mb": "MiB", "energy_j": "J"}
_TREES_TITLE = "LightGBM on summed costs"


def title_of_dnnperf_report(report: DnnperfReport) -> str:
    """Title of the report."""
    return f"DNNPerf's evaluation: {report.dataset.device}, {report.dataset.conditions}"


def describe_dnnperf_report(report: DnnperfReport) -> tuple[Section, ...]:
    """Every section of the report, in order; one without figures says why."""
    return (
        _data(report),
        _comparison(report),
        _ablation(report),
        _actual(report),
        _unseen(report),
        _left_out(report),
        describe_provenance(report.provenance, data_hash=report.dataset.data_hash, seed=report.settings.seed),
    )


def _data(report: DnnperfReport) -> Section:
    data = report.dataset
    low, median, high = data.operators
    text = [
        f"{data.rows:,} measured training steps of {data.models:,} models in {data.families} families, from "
        f"{data.source} ({', '.join(data.software) or 'software unknown'}). The graph of a step, forward pass, "
        f"backward pass and optimizer, has {low:,} to {high:,} operators, half of them {median:,} or fewer. Measured: "
        f"{', '.join(_name(metric) for metric in data.metrics)}."
        + (f" {data.unread} models have no such graph and are left out." if data.unread else ""),
        "MRE is the mean of |predicted / measured - 1| in percent, RMSE the root mean squared error. Models are split "
        "at random 70/15/15 into training, validation and test, all batches of a model in one part. Scaling and "
        "weights come from the training part, the epoch from the validation part, and the figures below from the "
        "test part.",
    ]
    if not data.noise:
        return Section(title="Data", text=text)
    rows = [
        (
            each.other,
            _name(each.metric),
            f"{each.pairs:,}",
            f"{each.shift_percent:+.1f}",
            f"{each.difference_percent:.1f}",
        )
        for each in data.noise
    ]
    header = ("measured against", "figure", "pairs", "median shift, %", "mean difference, %")
    table = Table(header=header, rows=rows, caption="The labels' own noise, a constant factor taken out")
    return Section(title="Data", text=text, tables=(table,))


def _comparison(report: DnnperfReport) -> Section:
    return Section(
        title="ANEE and what it is compared with",
        text=(_how(report), *(_rank(report, report.comparison, metric) for metric in report.dataset.metrics)),
        tables=_score_tables(report, report.comparison),
        plot=ERRORS,
    )


def _ablation(report: DnnperfReport) -> Section:
    whole = tuple(score for score in report.comparison if score.model == ANEE)
    return Section(
        title="Ablation: ANEE with a part taken out or exchanged",
        text=tuple(_rank(report, (*whole, *report.ablation), metric) for metric in report.dataset.metrics),
        tables=_score_tables(report, (*whole, *report.ablation)),
    )


def _how(report: DnnperfReport) -> str:
    settings = report.settings
    seeds = (
        f"seed {settings.seed}" if settings.seeds == 1 else f"means over {settings.seeds} seeds, their spread after ±"
    )
    return (
        f"Every network has the same width, epochs (at most {settings.epochs}) and schedule, {seeds}. All see the same "
        f"features, but for {TREES}, which sees summed costs of the whole step."
    )


def _rank(report: DnnperfReport, scores: Sequence[StepScore], metric: str) -> str:
    """Whether ANEE comes out ahead, as it does in the paper."""
    errors = {name: report.mean_error(name, metric) for name in dict.fromkeys(score.model for score in scores)}
    own = errors.pop(ANEE, None)
    if own is None:
        return f"{_name(metric).capitalize()}: no test row has it."
    better = [f"{name} ({error:.2f} %)" for name, error in errors.items() if error is not None and error <= own]
    place = "ANEE comes first" if not better else f"ahead of ANEE are {', '.join(better)}"
    return f"{_name(metric).capitalize()}: ANEE has an MRE of {own:.2f} %; {place}."


def _score_tables(report: DnnperfReport, scores: Sequence[StepScore]) -> tuple[Table, ...]:
    """A table of each metric; groups are columns."""
    groups = list(dict.fromkeys(group for score in scores for group in score.test))
    models = list(dict.fromkeys(score.model for score in scores))
    tables = []
    for metric in report.dataset.metrics:
        header = ["model", "training MRE, %", "validation MRE, %"]
        for group in groups:
            words = "test" if group == OVERALL else group
            header += [f"{words} MRE, %", f"{words} RMSE, {_UNITS[metric]}"]
        rows = []
        for model in models:
            of_model = [score for score in scores if score.model == model]
            cells = [f"{model}: {_describe_model(model)}"]
            cells += [
                _over_seeds([score.fitted_percent[part].get(metric) for score in of_model])
                for part in ("training", "validation")
            ]
            for group in groups:
                pairs = [score.test.get(group, {}).get(metric) for score in of_model]
                cells.append(_over_seeds([pair.mre_percent for pair in pairs if pair]))
                cells.append(_over_seeds([pair.rmse for pair in pairs if pair]))
            rows.append(cells)
        rows_of = {group: {score.group_rows.get(group, 0) for score in scores} for group in groups}
        counted = ", ".join(f"{group} {_span(rows_of[group])} rows" for group in groups)
        tables.append(Table(header=header, rows=rows, caption=f"{_name(metric).capitalize()}; test rows: {counted}"))
    return tuple(tables)


def _describe_model(model: str) -> str:
    return _TREES_TITLE if model == TREES else DNNPERF_NETWORKS[model].title


def _actual(report: DnnperfReport) -> Section:
    return Section(
        title="Actual against predicted",
        text=(
            f"ANEE on the {len(report.rows):,} test rows of seed {report.settings.seed}; the band is 20 % either way.",
        ),
        plot=ACTUAL,
    )


def _unseen(report: DnnperfReport) -> Section:
    title = "Unseen models"
    if not report.unseen:
        return Section(title=title, text=(f"The labels have none of {', '.join(UNSEEN)}.",))
    absent = [name for name in UNSEEN if name not in {each.name for each in report.unseen}]
    text = "The paper's unseen models, kept out of training and validation together." + (
        f" The labels have none of {', '.join(absent)}." if absent else ""
    )
    return Section(title=title, text=(text,), tables=(_held_out_table(report, report.unseen, first="model"),))


def _left_out(report: DnnperfReport) -> Section:
    title = "Families left out in turn"
    if not report.left_out:
        return Section(title=title, text=("Not asked for: it trains anew for every group of families.",))
    text = (
        f"All {len(report.left_out)} families were left out of training in turn, in {report.settings.family_groups} "
        "groups of about equally many rows; the worst first."
    )
    table = _held_out_table(report, report.left_out, first="family")
    means = ["mean of the families", ""]
    for metric in report.dataset.metrics:
        for model in HELD_OUT_MODELS:
            pairs = [each.errors[model].get(metric) for each in report.left_out]
            means += [_mean([pair.mre_percent for pair in pairs if pair]), ""]
    return Section(
        title=title,
        text=(text,),
        tables=(Table(header=table.header, rows=(*table.rows, means), caption=table.caption),),
    )


def _held_out_table(report: DnnperfReport, scores: Sequence[UnseenScore], *, first: str) -> Table:
    header = [first, "rows"]
    for metric in report.dataset.metrics:
        for model in HELD_OUT_MODELS:
            header += [f"{_name(metric)}, {model}: MRE, %", f"RMSE, {_UNITS[metric]}"]
    rows = []
    for each in scores:
        cells = [each.name, f"{each.rows:,}"]
        for metric in report.dataset.metrics:
            for model in HELD_OUT_MODELS:
                cells += _pair(each.errors[model].get(metric))
        rows.append(cells)
    return Table(header=header, rows=rows)


def _name(metric: str) -> str:
    return TITLES[metric].split(",")[0]


def _pair(pair: ErrorPair | None) -> tuple[str, str]:
    return ("", "") if pair is None else (_number(pair.mre_percent), _number(pair.rmse))


def _over_seeds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return _number(known[0]) if known else ""
    return f"{_number(float(np.mean(known)))} ± {_number(float(np.std(known)))}"


def _mean(values: Sequence[float]) -> str:
    return _number(float(np.mean(values))) if values else ""


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _span(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
