from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dippm.evaluation.dippm_report import DippmReport


def test_it_is_plain_data(dippm_report: DippmReport) -> None:
    values = json.loads(json.dumps(dippm_report.to_dict(), allow_nan=False))
    assert values["settings"] == {
        "epochs": 10, "long_epochs": 200, "seed": 0, "seeds": 2, "family_groups": 3,
    }  # fmt: skip
    assert [score["model"] for score in values["networks"]] == [score.model for score in dippm_report.networks]
    assert len(values["rows"]) == len(dippm_report.rows)


def test_means_by_hand(dippm_report: DippmReport) -> None:
    score = dippm_report.networks[0]
    assert score.test_mean == score.errors["test"]["mean"]
    errors = [family.errors["mean"] for family in dippm_report.left_out]
    assert len(errors) == 5
    assert dippm_report.left_out_mean == pytest.approx(sum(errors) / 5)
    # All five have as many rows.
    assert dippm_report.left_out_row_mean == pytest.approx(sum(errors) / 5)
    uneven = replace(dippm_report.left_out[0], rows=160)
    weighed = replace(dippm_report, left_out=(uneven, *dippm_report.left_out[1:])).left_out_row_mean
    assert weighed == pytest.approx((160 * errors[0] + 16 * sum(errors[1:])) / 224)
    assert replace(dippm_report, left_out=()).left_out_mean is None
