from typing import Any

import numpy as np
import pytest

from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload
from dippm.datasets.timm_tables import TimmRow
from dippm.devices import find_device
from dippm.graph import Graph, OpKind
from dippm.training.physics import (
    Item,
    conformal_quantile,
    fit_rates,
    log_errors,
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
    assert conformal_quantile(scores, 0.5) == 50.0
    assert conformal_quantile(np.array([3.0])) == 3.0
