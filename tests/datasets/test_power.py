from pathlib import Path

import pytest

from dippm.datasets.location import data_folder
from dippm.datasets.power import read_busy_runs
from dippm.errors import UsageError


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_busy_runs(tmp_path)
    assert caught.value.code == "data.missing"


@pytest.mark.data
def test_the_published_table() -> None:
    folder = data_folder()
    runs = read_busy_runs(folder / "power")
    (run,) = [r for r in runs if (r.device, r.model, r.batch) == ("A40", "BERT-base-uncased", 12)]
    assert (run.step_time_ms, run.power_w, run.power_limit_w) == (126.376, 265.373, 300.0)
    assert {r.power_limit_w for r in runs} == {250.0, 260.0, 300.0}
    assert sum(r.is_idle for r in runs) >= 4
