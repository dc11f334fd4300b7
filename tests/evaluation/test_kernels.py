import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.kernels import Family, GemmProblem
from dippm.costs.kernels.model import ARTEFACT_DIRECTORY
from dippm.datasets.kernels import KernelRows
from dippm.datasets.location import data_folder
from dippm.errors import DippmError, UsageError
from dippm.evaluation.kernels import (
    KernelReport,
    KernelScore,
    evaluate_kernels,
    features_of_rows,
    render_markdown,
)


def _has_tables() -> bool:
    try:
        return (data_folder() / "kernels").is_dir()
    except DippmError:
        return False


needs_tables = pytest.mark.skipif(not _has_tables(), reason="the measured kernel tables are not here; set DIPPM_DATA")


def _score(method: str, protocol: str = "split", device: str = "A100-PCIE-40GB", mape: float = 4.25) -> KernelScore:
    return KernelScore(
        protocol=protocol, table="linear", device=device, method=method, mape=mape, median_ape=2.0, rows=7
    )


def test_features_follow_each_row_to_its_device() -> None:
    rows = KernelRows(
        family=Family.LINEAR,
        problem=GemmProblem.of(m=[64, 64, 64], n=64, k=64),
        time_ms=np.ones(3),
        device=np.array(["T4", "P4", "T4"]),
        table=np.array(["linear"] * 3),
        shape=np.full((3, 3), 64),
        position=np.zeros(3),
    )
    features = features_of_rows(rows)
    np.testing.assert_array_equal(features.matrix[0], features.matrix[2])
    assert (features.matrix[0] != features.matrix[1]).any()


def test_scores_are_found_by_the_beginning_of_a_device_name() -> None:
    report = KernelReport(seed=0, scores=(_score("dippm"), _score("gbdt")))
    found = report.find(protocol="split", table="linear", device="A100")
    assert found is not None
    assert found.method == "dippm"
    assert report.find(protocol="split", table="linear", device="A1") is None


def test_markdown_puts_the_methods_side_by_side() -> None:
    scores = (_score("dippm"), _score("gbdt", mape=6.0), _score("roofline", mape=43.0))
    text = render_markdown(KernelReport(seed=0, scores=scores))
    assert "| linear | A100-PCIE-40GB | 7 | 4.2 | 6.0 | 43.0 |" in text
    assert "Not evaluated." in text


def test_the_stored_metrics_meet_the_split_bounds() -> None:
    stored = json.loads((ARTEFACT_DIRECTORY / "artefact.json").read_text(encoding="utf-8"))["metrics"]["scores"]
    own = [each for each in stored if each["method"] == "dippm" and each["device"].startswith("A100")]
    split = {each["table"]: each["mape"] for each in own if each["protocol"] == "split"}
    assert len(split) == 16
    assert split.pop("linear") <= 5.0
    assert split.pop("bmm") <= 5.0
    assert max(split.values()) <= 8.0


def test_the_stored_metrics_meet_the_bounds_of_left_out_devices() -> None:
    stored = json.loads((ARTEFACT_DIRECTORY / "artefact.json").read_text(encoding="utf-8"))["metrics"]
    report = KernelReport.from_dict(stored)
    for device, bound in {"A100": 15.0, "V100": 20.0, "T4": 20.0, "P100": 20.0, "P4": 20.0}.items():
        score = next(
            each
            for each in report.scores
            if (each.protocol, each.table, each.method) == ("left out", "bmm", "dippm")
            and each.device.startswith(device)
        )
        assert score.median_ape <= bound, device


def test_merging_renews_tables_and_keeps_the_others_in_place() -> None:
    old = [_score("dippm"), replace(_score("dippm"), table="bmm"), replace(_score("dippm"), table="conv")]
    new = [replace(_score(method, mape=1.0), table="bmm") for method in ("dippm", "gbdt")]
    merged = KernelReport(seed=0, scores=tuple(new)).merged_into(KernelReport(seed=0, scores=tuple(old)))
    assert merged.scores == (old[0], *new, old[2])


@pytest.mark.data
@needs_tables
def test_another_seed_than_the_artefacts_is_refused() -> None:
    with pytest.raises(UsageError, match="seed 0"):
        evaluate_kernels(seed=1)


@pytest.mark.data
@needs_tables
@pytest.mark.parametrize(
    ("family", "table", "bound"), [(Family.LINEAR, "linear", 5.0), (Family.SOFTMAX, "softmax", 8.0)]
)
def test_the_shipped_artefact_still_scores_what_it_says(family: Family, table: str, bound: float) -> None:
    pytest.importorskip("lightgbm")
    report = evaluate_kernels(seed=0, families=[family])
    score = report.find(protocol="split", table=table, device="A100")
    assert score is not None
    assert score.mape <= bound
    stored = json.loads((ARTEFACT_DIRECTORY / "artefact.json").read_text(encoding="utf-8"))["metrics"]["scores"]
    (same,) = [
        each
        for each in stored
        if (each["protocol"], each["table"], each["device"], each["method"])
        == ("split", score.table, score.device, "dippm")
    ]
    assert score.mape == pytest.approx(same["mape"], rel=0.02)
    gbdt = report.find(protocol="split", table=table, device="A100", method="gbdt")
    roofline = report.find(protocol="split", table=table, device="A100", method="roofline")
    assert gbdt is not None
    assert roofline is not None
    assert roofline.mape > 5 * score.mape


def test_an_empty_folder_has_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(DippmError, match="artefact"):
        evaluate_kernels(tmp_path, artefact=tmp_path)
