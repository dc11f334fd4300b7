import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.timm_tables import TimmRow, read_timm_tables
from dippm.devices import find_device
from dippm.graph import Graph, OpKind
from dippm.predictors.calibration import Calibration
from dippm.training.physics import (
    Item,
    conformal_quantile,
    fit_rates,
    log_errors,
    main,
    predict_ms,
)


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 4096)
    for _ in range(2):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
        x = builder.node(OpKind.RELU, [x], builder.N, 4096)
    return builder.graph()


def make_item(graph: Graph, *, batch: int, step_time_ms: float = 1.0, layout: str = "nchw") -> Item:
    work = Workload.from_graph(graph, Precision.AMP)
    row = TimmRow(
        model="m",
        image_size=64,
        batch=batch,
        step_time_ms=step_time_ms,
        mode="inference",
        precision="amp",
        layout=layout,
        runtime="eager",
        device="GeForce RTX 4090",
        torch_version="240",
    )
    return Item(
        row=row,
        device=find_device("RTX 4090"),
        plan=KernelPlan.from_workload(work),
        at=work.at([batch]),
    )


def test_rates_that_made_the_times_are_found_again(graph: Graph) -> None:
    pytest.importorskip("scipy")
    kernels = load_kernel_model()
    true = Rates(tensor_gemm=0.55, stream=0.8)
    items = [make_item(graph, batch=batch) for batch in (64, 1024, 16384, 65536)]
    measured = predict_ms(items, true, kernels)
    items = [
        make_item(graph, batch=item.row.batch, step_time_ms=float(time))
        for item, time in zip(items, measured, strict=True)
    ]
    fitted = fit_rates(items, kernels, evaluations=20)
    assert np.abs(log_errors(items, fitted, kernels)).max() < 0.02
    assert fitted.tensor_gemm == pytest.approx(0.55, rel=0.1)


def test_the_quantile_covers_a_new_score_often_enough() -> None:
    scores = np.arange(1.0, 100.0)
    assert conformal_quantile(scores) == 90.0
    assert conformal_quantile(np.array([3.0])) == 3.0


def network(builder: Any, *, channels: int) -> Graph:
    x = builder.input(builder.N, 3, 32, 32)
    square = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [x, builder.weight(channels, 3, 3, 3)], builder.N, channels, 32, 32, **square)
    builder.node(OpKind.RELU, [x], builder.N, channels, 32, 32)
    return builder.graph()  # type: ignore[no-any-return]


def test_labels_name_no_power_before_it_is_fitted(
    new_builder: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    folder, cache, out = tmp_path / "timm", tmp_path / "graphs", tmp_path / "physics.json"
    folder.mkdir()
    columns = ["model", *(f"infer_{name}" for name in ("img_size", "batch_size", "step_time"))]
    for card in ("rtx3090", "rtx4090"):
        with (folder / f"benchmark-infer-amp-nchw-pt240-cu124-{card}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([columns, *([f"net{place}", 32, 256, 1.0 + place] for place in range(5))])
    graphs = GraphCache(cache)
    for label in labels_of_timm_rows(read_timm_tables(folder)):
        place = int(label.recipe.architecture.removeprefix("zoo:timm:net"))
        graphs.save(label.recipe.model_key, network(new_builder(), channels=64 * (1 + place)), fingerprint="")
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path))
    main(["--evaluations", "1", "--cache", str(cache), "--out", str(out)])
    found = Calibration.read(out)
    assert found.measured_devices == ("GeForce RTX 3090", "GeForce RTX 4090")
    assert found.labels.startswith("timm benchmark tables")
    assert "power" not in found.labels
