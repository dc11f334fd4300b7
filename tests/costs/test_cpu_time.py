from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares, CpuWork, cpu_seconds
from dippm.costs.workload import Workload
from dippm.errors import DippmError, UsageError
from dippm.graph import Graph, OpKind

RATES = CpuRates(gflops=100.0, bandwidth_gb_s=10.0, dispatch_us=1.0, threads=1)
SHARES = {family: CpuShares(compute=0.5, stream=2.0, dispatch=4.0) for family in CpuFamily}
BATCHES = [1, 2, 3, 7, 8, 64, 1000]


def network(builder: Any, *, size: int = 32, depth: int = 2, channels: int = 16) -> Graph:
    n, width = builder.N, 3
    x = builder.input(n, 3, size, size)
    for kernel, groups in ((3, 1), (1, 1), (3, channels))[:depth]:
        attributes = {"kernel": (kernel, kernel), "stride": (1, 1), "dilation": (1, 1), "groups": groups}
        weight = builder.weight(channels, width // groups, kernel, kernel)
        x = builder.node(
            OpKind.CONV, [x, weight], n, channels, size, size, padding=(kernel // 2, kernel // 2), **attributes
        )
        x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(channels)], n, channels, size, size)
        x = builder.node(OpKind.RELU, [x], n, channels, size, size)
        width = channels
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, channels, 1, 1, output_size=(1, 1))
    x = builder.node(OpKind.VIEW, [x], n, channels, alias_of=x)
    builder.node(OpKind.LINEAR, [x, builder.weight(10, channels)], n, 10)
    return builder.graph()


def seconds(graph: Graph, rates: CpuRates = RATES, batches: Any = BATCHES) -> Any:
    return cpu_seconds(CpuWork.of(Workload.from_graph(graph), batches), rates, SHARES)


def test_every_operator_has_its_family(builder: Any) -> None:
    work = CpuWork.of(Workload.from_graph(network(builder, depth=3)), [1])
    families = [list(CpuFamily)[position].value for position in work.family]
    assert families == [
        "convolution", "row", "elementwise", "pointwise", "row", "elementwise", "grouped", "row", "elementwise",
        "pool", "view", "gemm",
    ]  # fmt: skip


def test_one_linear_layer_by_hand(builder: Any) -> None:
    x = builder.input(builder.N, 64)
    builder.node(OpKind.LINEAR, [x, builder.weight(128, 64)], builder.N, 128)
    # 2 * 64 * 128 FLOPs, as if both were wider by 64; all of the traffic within the cache.
    compute = 2 * (64 + 64) * (128 + 64) / (0.5 * 100e9)
    traffic = 4 * (64 + 64 * 128 + 128) / (2.0 * 10e9)
    assert seconds(builder.graph(), batches=[1]).item() == pytest.approx(compute + traffic + 4e-6)


def test_beyond_the_caches_traffic_goes_at_the_measured_bandwidth_at_best(builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 2**20)], builder.N, 2**20)
    work = CpuWork.of(Workload.from_graph(builder.graph()), [1, 2])
    assert work.near_bytes.ravel().tolist() == [2 * 2**20] * 2
    assert work.far_bytes.ravel().tolist() == [6 * 2**20, 14 * 2**20]
    one, two = cpu_seconds(replace(work, flops=0 * work.flops), RATES, SHARES).sum(axis=1)
    assert two - one == pytest.approx(8 * 2**20 / 10e9)


def test_time_grows_with_the_batch_the_image_the_depth_and_the_width(new_builder: Any) -> None:
    assert np.all(np.diff(seconds(network(new_builder())), axis=0) >= 0)

    def total(**changes: int) -> Any:
        return seconds(network(new_builder(), **changes)).sum(axis=1)

    for name, values in (("size", range(8, 80, 8)), ("depth", (1, 2, 3)), ("channels", range(8, 70))):
        assert np.all(np.diff([total(**{name: value}) for value in values], axis=0) > 0), name


@pytest.mark.parametrize(("name", "factor"), [("gflops", 0.5), ("bandwidth_gb_s", 0.9), ("dispatch_us", 3.0)])
def test_a_slower_machine_is_never_predicted_faster(builder: Any, name: str, factor: float) -> None:
    graph = network(builder, depth=3)
    slower = replace(RATES, **{name: factor * getattr(RATES, name)})
    assert np.all(seconds(graph, slower) >= seconds(graph))
    assert np.all(seconds(graph, slower).sum(axis=1) > seconds(graph).sum(axis=1))


def test_families_add_up_to_the_nodes(builder: Any) -> None:
    work = CpuWork.of(Workload.from_graph(network(builder, depth=3)), BATCHES)
    summed = cpu_seconds(work.by_family(), RATES, SHARES)
    assert summed.shape == (len(BATCHES), len(CpuFamily))
    np.testing.assert_allclose(summed.sum(axis=1), cpu_seconds(work, RATES, SHARES).sum(axis=1))


@pytest.mark.parametrize(
    ("kind", "gates", "family", "launches"),
    [(OpKind.LSTM, 4, "lstm", 4), (OpKind.GRU, 3, "recurrent", 4 * 20 * 2), (OpKind.RNN, 1, "recurrent", 4 * 20)],
)
def test_an_lstm_runs_a_layer_in_a_call_the_others_step_by_step(
    builder: Any, kind: OpKind, gates: int, family: str, launches: int
) -> None:
    x = builder.input(builder.N, 20, 8)
    weights = [builder.weight(gates * 8, 8 if layer == 0 else 16) for layer in range(2) for _ in range(2)] + [
        builder.weight(gates * 8, 8) for _ in range(4)
    ]
    builder.node(
        kind, [x, *weights], builder.N, 20, 16, hidden_size=8, num_layers=2, num_directions=2, batch_first=True
    )
    work = CpuWork.of(Workload.from_graph(builder.graph()), [3])
    assert list(CpuFamily)[work.family[0]] == family
    assert work.launches.tolist() == [[launches]]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_and_shares_are_positive_numbers(value: float) -> None:
    with pytest.raises(UsageError, match="gflops"):
        replace(RATES, gflops=value)
    with pytest.raises(DippmError, match="stream") as caught:
        CpuShares(compute=1.0, stream=value, dispatch=1.0)
    assert caught.value.code == "artefact.invalid"
