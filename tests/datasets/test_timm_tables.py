from pathlib import Path

import pytest

from dippm.datasets.location import data_folder
from dippm.datasets.timm_tables import TimmRow, read_timm_tables
from dippm.errors import UsageError


def test_rows_typed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090-dynamo.csv").write_text(
        "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,infer_gmacs,infer_macts\n"
        "tiny,160,100.0,5.426,1024,0.37,0.04,0.48\n"
        "broken,224,,,,1.0,,\n"
    )
    (tmp_path / "benchmark-infer-fp32-nchw-pt240-cpu-i7_12700h-dynamo.csv").write_text("model\ncpu\n")
    assert read_timm_tables(tmp_path) == [
        TimmRow(
            model="tiny",
            image_size=160,
            batch=1024,
            step_time_ms=5.426,
            mode="inference",
            precision="amp",
            layout="nhwc",
            runtime="compile",
            device="GeForce RTX 4090",
            torch_version="240",
            cuda_version="124",
            parameters_m=0.37,
        )
    ]


def test_no_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_timm_tables(tmp_path)
    assert caught.value.code == "data.missing"


@pytest.mark.data
def test_the_published_tables() -> None:
    folder = data_folder()
    rows = read_timm_tables(folder / "timm")
    wanted = [
        row
        for row in rows
        if (row.model, row.device, row.layout, row.runtime, row.torch_version, row.mode)
        == ("test_efficientnet", "GeForce RTX 4090", "nchw", "eager", "240", "inference")
    ]
    assert [(row.image_size, row.batch, row.step_time_ms) for row in wanted] == [(160, 1024, 10.121)]
    trained = [row for row in rows if row.mode == "training" and row.layout == "nchw" and row.model == "tinynet_e"]
    assert [(row.batch, row.image_size, row.step_time_ms) for row in trained] == [(512, 106, 50.423)]
