"""Shares of verdicts, counted by hand."""

from __future__ import annotations

import pytest

from dippm.evaluation.fit_scores import PairVerdict, score_verdicts
from dippm.placement.fit import FitVerdict

_YES, _NO, _UNSURE = FitVerdict.YES, FitVerdict.NO, FitVerdict.UNSURE


def test_shares_are_of_what_they_say():
    said = [(_YES, _NO), (_UNSURE, _NO), (_NO, _NO), (_YES, _YES), (_UNSURE, _UNSURE)]
    score = score_verdicts([PairVerdict(fitted=fitted, failed=failed) for fitted, failed in said])
    assert score.pairs == 5
    assert score.right == pytest.approx(5 / 10)
    assert score.unsure == pytest.approx(3 / 10)
    assert score.right_of_decided == pytest.approx(5 / 7)
    assert score.wrong_yes == pytest.approx(1 / 5)
    assert score.wrong_no == pytest.approx(1 / 5)


def test_no_pairs_have_no_shares():
    score = score_verdicts([])
    assert (score.pairs, score.right, score.unsure, score.wrong_yes) == (0, 0, 0, 0)
