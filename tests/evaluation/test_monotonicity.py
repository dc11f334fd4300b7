"""The report on falls, and the whole way to it."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.recipes.recipe import Recipe
from dippm.devices import find_device
from dippm.evaluation.monotone_check import Check, Figure, Side, Tallies, Variant
from dippm.evaluation.monotonicity import Drawn, check_all, draw, sections_of
from dippm.evaluation.report_page import render_markdown
from dippm.evaluation.scaled_models import enlarge
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.predictors.physics import PhysicsPredictor

_A100 = find_device("A100-SXM4-40GB")
_NAME = "A100-SXM4-40GB, fp32, inference"


def _recipe(model, *, family="net", size=160):
    return Recipe(
        collection="timm",
        family=family,
        architecture=f"zoo:timm:{model}",
        inputs=InputShapes(positional=(InputEntry(shape=(3, size, size)),)),
        batch=2,
    )


def _compare(tallies, figure, before, after):
    sides = [[(Side(variant=Variant.BASE, batch=batch, device=_A100), value)] for batch, value in (before, after)]
    tallies.add(
        Check.BATCH,
        figure,
        _NAME,
        model="net7",
        conditions=Conditions(),
        step="batch doubled",
        before=sides[0],
        after=sides[1],
    )


def _report(tallies, **changes):
    recipe = _recipe("net7")
    drawn = Drawn(recipes=[{Variant.BASE: recipe, Variant.LARGER: enlarge(recipe)}], **changes)
    sections = sections_of(drawn, tallies, lambda fall: f"why {fall.before.batch}", command="make it")
    return render_markdown("Report", sections, {})


def test_the_report_counts_pairs_and_falls_and_says_why():
    tallies = Tallies()
    _compare(tallies, Figure.TIME, (1, 4.0), (2, 3.0))
    _compare(tallies, Figure.TIME, (2, 3.0), (4, 2.99))
    _compare(tallies, Figure.TIME, (4, 2.0), (8, 3.0))
    _compare(tallies, Figure.MEMORY, (1, 100.0), (2, 101.0))
    text = _report(tallies)
    assert f"| {_NAME} | time | 3 | 2 | 1 | -25.00 |" in text
    assert f"| {_NAME} | memory | 1 | 0 | 0 | - |" in text
    worst = [line for line in text.splitlines() if line.startswith("| net7 ")]
    assert worst == [
        "| net7 | A100-SXM4-40GB | fp32, inference | 1 | batch doubled | 4 | -25.00 | why 1 |",
        "| net7 | A100-SXM4-40GB | fp32, inference | 2 | batch doubled | 3 | -0.33 | why 2 |",
    ]


def test_the_report_says_what_could_not_be_compared():
    text = _report(Tallies(), unread=["gone"], no_depth=Counter({"net": 1}), no_image=Counter({"other": 3}))
    assert (
        "Passed over, because today's library does not have them or they cannot be read for every batch: gone." in text
    )
    assert "No argument doubles the depth of: net (1)." in text
    assert "Cannot be read at twice the side: other (3)." in text
    assert "1 models of 1 families" in text


def test_checks_without_comparisons_have_no_section():
    tallies = Tallies()
    _compare(tallies, Figure.LIVE, (1, 1.0), (2, 2.0))
    text = _report(tallies)
    assert "## Twice the batch" in text
    assert "## Twice the blocks in every stage" not in text


@pytest.mark.slow
@pytest.mark.skipif(any(find_spec(name) is None for name in ("torch", "torchvision", "timm")), reason="needs timm")
def test_models_are_drawn_read_and_compared(tmp_path):
    cache = GraphCache(tmp_path)
    recipes = [_recipe("test_vit", family="vit"), _recipe("test_byobnet", family="byobnet"), _recipe("no_such_model")]
    drawn = draw(recipes, cache, count=2)
    assert {recipe[Variant.BASE].family for recipe in drawn.recipes} == {"vit", "byobnet"}
    assert +drawn.no_depth == Counter({"byobnet": 1})
    assert +drawn.no_image == Counter()
    tallies = check_all(PhysicsPredictor.load(), drawn, cache)
    assert tallies[Check.BATCH, Figure.TIME, _NAME].pairs == 18
    assert tallies[Check.IMAGE, Figure.TIME, _NAME].pairs == 6
    assert tallies[Check.DEPTH, Figure.TIME, _NAME].pairs == 3
    assert tallies[Check.CARD, Figure.TIME, "all cards, fp32, training"].pairs > 100
    live = [tally for (_, figure, _), tally in tallies.items() if figure is Figure.LIVE]
    assert [fall for tally in live for fall in tally.falls] == []
