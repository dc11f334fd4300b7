"""The rule of a fit: how it is chosen, how it is scored, and what its report says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer
from dippm.costs.software import Software
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.errors import UsageError
from dippm.evaluation.border_pairs import BorderPair
from dippm.evaluation.fit_scores import PairVerdict
from dippm.evaluation.training_fits import (
    FitRule,
    choose_rule,
    score_rule,
    sections_of,
    shipped_section,
    split_pairs,
)
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.placement.fit import FitVerdict


def _pair(model, fitted_mb, failed_mb, *, layout=Layout.NCHW):
    conditions = Conditions(mode=Mode.TRAINING, layout=layout, optimizer=Optimizer.MOMENTUM)
    label = Label(
        recipe=Recipe(
            collection="timm",
            family="net",
            architecture=f"zoo:timm:net{model}",
            inputs=InputShapes(positional=(InputEntry(shape=(3, 8, 8)),)),
            batch=64,
        ),
        configuration=Configuration(batch=64, conditions=conditions),
        measurement=Measurement(outcome=Outcome.OK, device="GeForce RTX 3090", measured_at="", latency_ms=1.0),
        graph_hash=f"graph {model}",
        source="test",
    )
    return BorderPair(label=label, failed_batch=96, fitted_mb=fitted_mb, failed_mb=failed_mb)


def _pairs(count=100):
    """Pairs whose batches lie evenly on both sides of 20,000 MiB, but for one on each side."""
    pairs = [_pair(number, 15_000 + 49 * number, 20_100 + 50 * number) for number in range(count)]
    pairs[0] = replace(pairs[0], fitted_mb=21_000.0, failed_mb=25_000.0)
    pairs[1] = replace(pairs[1], fitted_mb=15_000.0, failed_mb=19_000.0)
    return pairs


def test_the_room_lies_between_what_fitted_and_what_failed():
    rule = choose_rule(_pairs())
    assert 19_800 <= rule.room_mb <= 20_300
    assert 0 <= rule.more < 0.03
    assert 0 <= rule.less < 0.03


def test_margins_keep_wrong_verdicts_to_two_in_a_hundred():
    pairs = _pairs()
    for number in range(2, 6):
        pairs[number] = replace(pairs[number], failed_mb=18_000.0 + number)
    rule = choose_rule(pairs)
    assert rule.more > 0.05
    score = score_rule(rule, pairs)
    assert score.wrong_yes <= 0.02
    assert score.unsure > 0.05


def test_no_pairs_give_no_rule():
    with pytest.raises(UsageError) as caught:
        choose_rule([])
    assert caught.value.code == "labels.none"


@pytest.mark.parametrize(
    ("needed", "verdict"),
    [(900.0, FitVerdict.YES), (950.0, FitVerdict.UNSURE), (1040.0, FitVerdict.UNSURE), (1100.0, FitVerdict.NO)],
)
def test_a_verdict_leaves_the_margins(needed, verdict):
    assert FitRule(room_mb=1000.0, more=0.1, less=0.05).judge(needed) is verdict


def test_shares_are_of_what_they_say():
    rule = FitRule(room_mb=100.0, more=0.1, less=0.1)
    pairs = [_pair(0, 50, 150), _pair(1, 100, 150), _pair(2, 150, 200), _pair(3, 20, 60)]
    score = score_rule(rule, pairs)
    assert score.pairs == 4
    assert score.right == pytest.approx(5 / 8)
    assert score.unsure == pytest.approx(1 / 8)
    assert score.right_of_decided == pytest.approx(5 / 7)
    assert score.wrong_yes == pytest.approx(1 / 4)
    assert score.wrong_no == pytest.approx(1 / 4)


def test_both_layouts_of_a_model_are_in_one_part():
    pairs = [_pair(number, 1, 2, layout=layout) for number in range(20) for layout in Layout]
    fit, test = split_pairs(pairs, seed=0)
    assert len(fit) == len(test) == 20
    assert {pair.model for pair in fit}.isdisjoint(pair.model for pair in test)


def test_the_report_names_the_farthest_first():
    pairs = _pairs()
    sections = sections_of(choose_rule(pairs), pairs, [], {"other": "It changed."})
    assert "other (It changed.)" in sections[1].text[1]
    worst = sections[2].tables[0].rows
    assert [row[:5] for row in worst] == [
        ("net0", "nchw", "64", "fitted", "21000"),
        ("net1", "nchw", "96", "failed", "19000"),
    ]


def test_the_shipped_verdicts_have_a_row_for_each_software_and_layout():
    pairs = [_pair(number, 1, 2, layout=layout) for number in range(2) for layout in Layout]
    good = PairVerdict(fitted=FitVerdict.YES, failed=FitVerdict.NO)
    bad = PairVerdict(fitted=FitVerdict.NO, failed=FitVerdict.YES)
    # Channels first goes well, channels last does not.
    verdicts = [good if pair.layout is Layout.NCHW else bad for pair in pairs]
    old, new = Software(torch=(1, 12), cuda=(11, 3)), Software(torch=(2, 4), cuda=(12, 4))
    section = shipped_section({old: verdicts}, pairs, {new: (pairs, verdicts)})
    training, inference = section.tables
    assert [(row[0], row[1], row[2], row[5]) for row in training.rows] == [
        ("torch 1.12+cu113", "4", "50.0", "50.0"),
        ("torch 1.12+cu113, nchw", "2", "100.0", "0.0"),
        ("torch 1.12+cu113, nhwc", "2", "0.0", "100.0"),
    ]
    assert [row[0] for row in inference.rows] == [
        "torch 2.4+cu124, GeForce RTX 3090, nchw",
        "torch 2.4+cu124, GeForce RTX 3090, nhwc",
    ]
