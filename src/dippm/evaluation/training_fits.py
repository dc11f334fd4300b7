"""Whether a training step fits: dippm's verdicts against published runs that did and did not.

    python -m dippm.evaluation.training_fits --cache GRAPHS

What a step needs is the smallest memory with which the replayed allocator gets through two of them. Against it stands
what the device leaves: its usable memory less what one process holds beside tensors, which is not published and is
chosen, with the margins of a sure verdict, on one part of the models and judged on the other.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from dippm.costs.conditions import Layout
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.location import data_folder
from dippm.datasets.splits import split_by_graph
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.border_pairs import BORDER_DEVICE, Border, BorderPair, border_pairs, inference_borders
from dippm.evaluation.fit_scores import FitScore, PairVerdict, score_verdicts
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.evaluation.shipped_fits import shipped_verdicts
from dippm.placement.fit import FitVerdict, fits

__all__ = [
    "FitRule",
    "choose_rule",
    "main",
    "score_rule",
    "sections_of",
    "shipped_section",
    "software_of_border",
    "split_pairs",
]

AnyBorder = TypeVar("AnyBorder", bound=Border)

# What the training tables were measured with.
_RUN_WITH = Software(torch=(1, 12), cuda=(11, 3))
_FRACTIONS = (0.5, 0.0, 0.5)
# Stricter than what is asked for on unseen models, 3 %.
_WRONG_SHARE = 0.02
_WORST = 10
# What is known of models that are called wrong, by the beginning of their name.
_CAUSES = {
    "sequencer2d": "what cuDNN keeps of an LSTM's forward pass is an assumption, and too little",
    "tresnet": "ran with in-place batch norm, which keeps one tensor less; today's timm has plain batch norm",
    "resnetv2_50x1": "group norm has no channels-last kernel: its copies in the other order are not predicted",
    "resnetv2_101x1": "not known; of the half as deep model, which has the same stages, a batch twice as large fitted",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FitRule:
    """When a step fits a device.

    Args:
        room_mb: Memory for tensors, MiB: what a device offers less what a process holds beside tensors.
        more: By how much more than predicted a step may need, as a share; it fits for sure only with that.
        less: By how much less it may need.
    """

    room_mb: float
    more: float
    less: float

    def judge(self, needed: float) -> FitVerdict:
        """Yes, no or unsure for what a step needs, MiB."""
        return fits((needed * (1.0 - self.less), needed * (1.0 + self.more)), self.room_mb).verdict


def choose_rule(pairs: Sequence[BorderPair]) -> FitRule:
    """The rule that does best on pairs.

    The room is where a bare threshold calls most batches right; each margin is the least with which no more than 2 %
    are called wrong.

    Raises:
        UsageError: ``labels.none`` where there are no pairs.
    """
    if not pairs:
        raise UsageError("There are no pairs to choose a rule on.", code="labels.none")
    fitted = np.sort([pair.fitted_mb for pair in pairs])
    failed = np.sort([pair.failed_mb for pair in pairs])
    candidates = np.sort(np.concatenate([fitted, failed]))
    right = np.searchsorted(fitted, candidates, side="right") - np.searchsorted(failed, candidates, side="right")
    best = candidates[right >= right.max() - 1]
    room = float(np.median(best))
    more = room / float(np.quantile(failed, _WRONG_SHARE)) - 1.0
    less = 1.0 - room / float(np.quantile(fitted, 1.0 - _WRONG_SHARE))
    return FitRule(room_mb=room, more=max(more, 0.0), less=max(less, 0.0))


def score_rule(rule: FitRule, pairs: Sequence[BorderPair]) -> FitScore:
    """Judge both batches of every pair."""
    return score_verdicts(
        [PairVerdict(fitted=rule.judge(pair.fitted_mb), failed=rule.judge(pair.failed_mb)) for pair in pairs]
    )


def sections_of(
    rule: FitRule, fit: Sequence[BorderPair], test: Sequence[BorderPair], left_out: Mapping[str, str]
) -> list[Section]:
    """The report: the rule, how it did on both parts, and the batches that it called most wrongly."""
    device = find_device(BORDER_DEVICE)
    scores = {
        "models that the rule was chosen on": score_rule(rule, fit),
        "other models": score_rule(rule, test),
        "other models, channels first": score_rule(rule, _of_layout(test, Layout.NCHW)),
        "other models, channels last": score_rule(rule, _of_layout(test, Layout.NHWC)),
    }
    held = device.capacity_mb - rule.room_mb
    worst = sorted(_misjudged(rule, [*fit, *test]), key=lambda item: -abs(item[2]))[:_WORST]
    return [
        Section(
            title="The rule",
            text=(
                "Made by `python -m dippm.evaluation.training_fits --cache GRAPHS`; GRAPHS is the folder of graphs "
                "that `dippm train` fills.",
                f"A step fits for sure where {100 * rule.more:.1f} % more than it is predicted to need still fits in "
                f"{rule.room_mb:.0f} MiB, and does not fit for sure where {100 * rule.less:.1f} % less does not. Of "
                f"the {device.capacity_mb:.0f} MiB that the card offers, {held:.0f} MiB are then held beside tensors: "
                "the CUDA context with all kernels of PyTorch 1.12 (CUDA 11.3 loads them at once), handles and "
                "workspaces of cuDNN and cuBLAS. Room and margins were chosen on half of the models, the other half "
                "was not looked at for it.",
            ),
        ),
        Section(
            title="Verdicts",
            text=(
                "Every pair holds two batches, one that fitted and the next larger one of the ladder, which failed.",
                _describe_left_out(left_out),
            ),
            tables=(_score_table("pairs of", scores),),
        ),
        Section(
            title="The ten batches that were called most wrongly",
            text=("Of all pairs; how far what was predicted lies on the wrong side of the room.",),
            tables=(
                Table(
                    header=("model", "layout", "batch", "it", "predicted, MiB", "off, %", "cause"),
                    rows=[
                        (
                            pair.model,
                            pair.layout.value,
                            str(pair.failed_batch if has_failed else pair.label.recipe.batch),
                            "failed" if has_failed else "fitted",
                            f"{pair.failed_mb if has_failed else pair.fitted_mb:.0f}",
                            f"{100 * distance:+.1f}",
                            _cause(pair, [*fit, *test]),
                        )
                        for pair, has_failed, distance in worst
                    ],
                ),
            ),
        ),
    ]


def shipped_section(
    training: Mapping[Software, Sequence[PairVerdict]],
    pairs: Sequence[BorderPair],
    inference: Mapping[Software, tuple[Sequence[Border], Sequence[PairVerdict]]],
) -> Section:
    """The report of what ``dippm fits`` says.

    Args:
        training: For each software that was asked for, the verdicts on ``pairs``.
        pairs: Pairs of training steps.
        inference: For each software of an inference table its borders and the verdicts on them.
    """
    scores: dict[str, FitScore] = {}
    for software, verdicts in training.items():
        scores[str(software)] = score_verdicts(verdicts)
        for layout in Layout:
            chosen = [each for each, pair in zip(verdicts, pairs, strict=True) if pair.layout is layout]
            scores[f"{software}, {layout.value}"] = score_verdicts(chosen)
    of_tables: dict[str, FitScore] = {}
    for software, (borders, verdicts) in inference.items():
        for device in sorted({border.label.measurement.device for border in borders}):
            for layout in Layout:
                chosen = [
                    each
                    for each, border in zip(verdicts, borders, strict=True)
                    if (border.label.measurement.device, border.layout) == (device, layout)
                ]
                of_tables[f"{software}, {device}, {layout.value}"] = score_verdicts(chosen)
    return Section(
        title="What dippm fits says",
        text=(
            "The verdicts of `dippm fits`, that is of the shipped interval of what is needed. First training steps, on "
            "the models that the rule above was not chosen on: what those runs held beside tensors and the spread of "
            "the interval come from the other half. They were made with torch 1.12+cu113; the other row shows what "
            "becomes of the verdicts if that is not said.",
            "Then inference, with the software of each table, on the half of the models that the rule for copies of "
            "convolutions (`dippm.costs.layout_copies`) was not chosen on. The spread of the interval was chosen on "
            "both halves; `python -m dippm.evaluation.inference_fits` says what either half alone would choose and how "
            "often the other contradicts that. The benchmark goes on with a smaller batch after any "
            "error. Pairs are left out whose larger batch a kernel refuses, fused attention over more than 65,535 "
            "windows or PyTorch's own depthwise convolution over more than 2,147,483,647 elements: no batch that "
            "fitted has either. Norms are taken to have run in FP16 where timm's own modules are used, as its option "
            "for fast norms makes them; the tables do not say so, their borders do.",
        ),
        tables=(
            _score_table("training, software", scores),
            _score_table("inference, software, device, layout", of_tables),
        ),
    )


def _score_table(title: str, scores: Mapping[str, FitScore]) -> Table:
    return Table(
        header=(
            title, "pairs", "right, %", "right of decided, %", "unsure, %", "yes, of failed, %", "no, of fitted, %",
        ),
        rows=[
            (
                name,
                str(score.pairs),
                *(
                    _percent(value)
                    for value in (
                        score.right, score.right_of_decided, score.unsure, score.wrong_yes, score.wrong_no,
                    )
                ),
            )
            for name, score in scores.items()
        ],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the report."""
    parser = argparse.ArgumentParser(description="Verdicts on training steps at the border of a card's memory.")
    parser.add_argument("--cache", type=Path, required=True, help="folder of graphs, see dippm.datasets.graph_cache")
    parser.add_argument("--report", type=Path, default=Path("docs/reports/training_fits.md"))
    parser.add_argument("--seed", type=int, default=0, help="decides which models the rule is chosen on")
    options = parser.parse_args(arguments)
    folder, cache = data_folder() / "timm", GraphCache(options.cache)
    pairs, left_out = border_pairs(folder, cache)
    fit, test = split_pairs(pairs, seed=options.seed)
    training = {
        software: shipped_verdicts(test, cache, software=software) for software in (_RUN_WITH, DEFAULT_SOFTWARE)
    }
    of_tables: dict[Software, list[Border]] = defaultdict(list)
    for border in split_pairs(inference_borders(folder, cache), seed=options.seed)[1]:
        if not border.is_refused:
            of_tables[software_of_border(border)].append(border)
    inference = {
        software: (borders, shipped_verdicts(borders, cache, software=software))
        for software, borders in of_tables.items()
    }
    rule_sections = sections_of(choose_rule(fit), fit, test, left_out)
    text = render_markdown(
        "Training steps at the border of a card's memory",
        [*rule_sections[:2], shipped_section(training, test, inference), *rule_sections[2:]],
        {},
    )
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text, encoding="utf-8")


def split_pairs(pairs: Sequence[AnyBorder], *, seed: int) -> tuple[list[AnyBorder], list[AnyBorder]]:
    """Half of the models to choose a rule on, half to judge it on; both layouts of a model are in one part."""
    split = split_by_graph([pair.label for pair in pairs], fractions=_FRACTIONS, seed=seed)
    chosen = {label.key for label in split.training}
    fit = [pair for pair in pairs if pair.label.key in chosen]
    return fit, [pair for pair in pairs if pair.label.key not in chosen]


def software_of_border(border: Border) -> Software:
    """What the run of a border was made with."""
    software = border.label.measurement.software
    return Software.parse(f"{software.framework}, CUDA {software.cuda}")


def _of_layout(pairs: Sequence[BorderPair], layout: Layout) -> list[BorderPair]:
    return [pair for pair in pairs if pair.layout is layout]


def _misjudged(rule: FitRule, pairs: Sequence[BorderPair]) -> Iterator[tuple[BorderPair, bool, float]]:
    """Batches that are called wrong: the pair, whether it is the one that failed, and the distance from the room."""
    for pair in pairs:
        for has_failed, needed, wrong in (
            (False, pair.fitted_mb, FitVerdict.NO),
            (True, pair.failed_mb, FitVerdict.YES),
        ):
            if rule.judge(needed) is wrong:
                yield pair, has_failed, needed / rule.room_mb - 1.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cause(pair: BorderPair, pairs: Sequence[BorderPair]) -> str:
    for start, cause in _CAUSES.items():
        if pair.model.startswith(start):
            return cause
    in_other_order = [other for other in pairs if other.model == pair.model and other.layout is not pair.layout]
    if any(other.label.recipe.batch >= pair.failed_batch for other in in_other_order):
        return "not known; it fitted in the other order, with the same tensors"
    return "not known"


def _describe_left_out(left_out: Mapping[str, str]) -> str:
    models_of: dict[str, list[str]] = {}
    for model, reason in sorted(left_out.items()):
        models_of.setdefault(reason, []).append(model)
    reasons = [f"{', '.join(models)} ({reason})" for reason, models in models_of.items()]
    return f"{len(left_out)} models are left out: {'; '.join(reasons)}."


if __name__ == "__main__":
    main()
