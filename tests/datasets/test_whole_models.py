from pathlib import Path

import pytest

from dippm.datasets.location import data_folder
from dippm.datasets.whole_models import WholeModelRow, read_whole_models
from dippm.errors import UsageError


def test_missing_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_whole_models(tmp_path)
    assert caught.value.code == "data.missing"


@pytest.mark.data
def test_rows_typed_by_hand() -> None:
    folder = data_folder()
    rows = [row for row in read_whole_models(folder / "whole_models") if row.runtime == "eager"]
    assert (
        WholeModelRow(
            source="transformers documentation",
            model="resnet50",
            device="A100-SXM4-40GB",
            batch=1,
            sequence=0,
            precision="fp32",
            latency_ms=6.531,
        )
        in rows
    )
    (bert,) = [r for r in rows if (r.model, r.device, r.batch) == ("bert_large", "A100-PCIE-40GB", 16)]
    assert bert.latency_ms == pytest.approx(396.4751831054688)
    assert bert.sequence == 512
    assert len(rows) == 50
