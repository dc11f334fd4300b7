from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares, CpuWork, cpu_seconds, node_seconds
from dippm.costs.workload import Workload
from dippm.errors import DippmError, UsageError
from dippm.graph import Graph, OpKind

RATES = CpuRates(
    gflops=100.0,
    convolution_gflops=200.0,
    bandwidth_gb_s=10.0,
    cache_gb_s=40.0,
    fresh_gb_s=2.0,
    dispatch_us=1.0,
    convolution_us=30.0,
    threads=1,
)
SHARES = {family: CpuShares(compute=0.5, stream=0.5, dispatch=4.0) for family in CpuFamily}
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
    return node_seconds(Workload.from_graph(graph), batches, rates, SHARES)


def families(work: CpuWork) -> list[list[str]]:
    return [[list(CpuFamily)[position].value for position in row] for row in work.family]


def convolution(
    builder: Any, *, channels: int = 64, size: int = 56, kernel: int = 1, stride: int = 1, groups: int = 1
) -> Graph:
    x = builder.input(builder.N, channels, size, size)
    weight = builder.weight(channels, channels // groups, kernel, kernel)
    side = size // stride
    builder.node(
        OpKind.CONV, [x, weight], builder.N, channels, side, side, kernel=(kernel, kernel), stride=(stride, stride),
        padding=(kernel // 2, kernel // 2), dilation=(1, 1), groups=groups,
    )  # fmt: skip
    return builder.graph()


def test_every_operator_has_its_family(builder: Any) -> None:
    work = CpuWork.of(Workload.from_graph(network(builder, depth=3)), [1])
    assert families(work)[0] == [
        "convolution", "row", "elementwise", "pointwise", "row", "elementwise", "grouped", "row", "elementwise",
        "pool", "view", "gemm",
    ]  # fmt: skip


def test_one_linear_layer_by_hand(builder: Any) -> None:
    x = builder.input(builder.N, 64)
    builder.node(OpKind.LINEAR, [x, builder.weight(128, 64)], builder.N, 128)
    # 2 * 64 * 128 FLOPs, as if both were wider by 16 and one row were five; all of the traffic within the cache.
    compute = 2 * (64 + 16) * (128 + 16) * (1 + 4) / (0.5 * 100e9)
    traffic = 4 * (64 + 64 * 128 + 128) / (0.5 * 40e9)
    assert seconds(builder.graph(), batches=[1]).item() == pytest.approx(compute + traffic + 4e-6)


def test_a_convolution_takes_the_rate_and_the_call_of_convolutions(builder: Any) -> None:
    graph = convolution(builder, kernel=3)
    compute = 2 * 9 * 56**2 * (64 + 8) * (64 + 8 / 9) / (0.5 * 200e9)
    traffic = 4 * (2 * 64 * 56**2 + 9 * 64**2) / (0.5 * 40e9)
    assert seconds(graph, batches=[1]).item() == pytest.approx(compute + traffic + 4 * 30e-6)


@pytest.mark.parametrize(
    ("changes", "threads", "found"),
    [
        ({}, 1, ["pointwise", "pointwise", "convolution"]),
        ({}, 2, ["convolution"] * 3),
        ({"stride": 2}, 1, ["convolution"] * 3),
        ({"kernel": 3}, 1, ["convolution"] * 3),
        ({"groups": 8}, 1, ["grouped"] * 3),
    ],
)
def test_one_thread_runs_pointwise_convolutions_of_few_samples_as_products(
    builder: Any, changes: dict[str, int], threads: int, found: list[str]
) -> None:
    work = CpuWork.of(Workload.from_graph(convolution(builder, **changes)), [1, 15, 16], threads=threads)
    assert [family for (family,) in families(work)] == found


def test_a_change_of_library_never_makes_more_samples_faster(builder: Any) -> None:
    workload, fast = Workload.from_graph(convolution(builder)), replace(RATES, convolution_gflops=1e4, fresh_gb_s=1e3)
    few, many, later = node_seconds(workload, [15, 16, 2000], fast, SHARES).ravel()
    assert cpu_seconds(CpuWork.of(workload, [16]), fast, SHARES).item() < few
    assert few == many < later


def test_beyond_the_caches_traffic_goes_at_the_bandwidth_of_the_memory_at_best(builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 2**20)], builder.N, 2**20)
    work = CpuWork.of(Workload.from_graph(builder.graph()), [1, 2])
    assert work.near_bytes.ravel().tolist() == [2 * 2**20] * 2
    assert work.far_bytes.ravel().tolist() == [6 * 2**20, 14 * 2**20]
    traffic = replace(work, flops=0 * work.flops)
    one, two = cpu_seconds(traffic, RATES, SHARES).sum(axis=1)
    assert two - one == pytest.approx(8 * 2**20 / 10e9)
    # What does not keep up with the cache at 4 GB/s does not become faster beyond it.
    slow = dict.fromkeys(CpuFamily, CpuShares(compute=0.5, stream=0.1, dispatch=4.0))
    one, two = cpu_seconds(traffic, RATES, slow).sum(axis=1)
    assert two - one == pytest.approx(8 * 2**20 / 4e9)


def test_large_blocks_come_from_the_system_afresh(new_builder: Any) -> None:
    def fresh(graph: Graph, batches: list[int]) -> list[float]:
        return CpuWork.of(Workload.from_graph(graph), batches).fresh_bytes.ravel().tolist()

    builder = new_builder()
    builder.node(OpKind.RELU, [builder.input(builder.N, 2**20)], builder.N, 2**20)
    graph = builder.graph()
    assert fresh(graph, [8, 9]) == [0.0, 9 * 2**22]
    fast = replace(RATES, fresh_gb_s=1e6)
    assert np.diff(seconds(graph, batches=[9]) - seconds(graph, fast, [9])).sum() == 0
    assert (seconds(graph, batches=[9]) - seconds(graph, fast, [9])).item() == pytest.approx(9 * 2**22 / 2e9, rel=1e-3)
    # oneDNN's copies of input, output and weight count, and a view makes nothing.
    image = 4 * 64 * 56**2
    assert fresh(convolution(new_builder(), kernel=3), [8, 20]) == [0.0, 20 * 3 * image + 4 * 9 * 64**2]
    builder = new_builder()
    x = builder.input(builder.N, 2**20)
    builder.node(OpKind.VIEW, [x], builder.N, 2**10, 2**10, alias_of=x)
    assert fresh(builder.graph(), [64]) == [0.0]


def test_time_grows_with_the_batch_the_image_the_depth_and_the_width(new_builder: Any) -> None:
    assert np.all(np.diff(seconds(network(new_builder()), batches=range(1, 40)), axis=0) >= 0)

    def total(**changes: int) -> Any:
        return seconds(network(new_builder(), **changes)).sum(axis=1)

    for name, values in (("size", range(8, 80, 8)), ("depth", (1, 2, 3)), ("channels", range(8, 70))):
        assert np.all(np.diff([total(**{name: value}) for value in values], axis=0) > 0), name


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("gflops", 0.5),
        ("convolution_gflops", 0.5),
        ("bandwidth_gb_s", 0.9),
        ("cache_gb_s", 0.9),
        ("fresh_gb_s", 0.9),
        ("dispatch_us", 3.0),
        ("convolution_us", 3.0),
    ],
)
def test_a_slower_machine_is_never_predicted_faster(builder: Any, name: str, factor: float) -> None:
    graph = network(builder, depth=3, size=96)
    slower = replace(RATES, **{name: factor * getattr(RATES, name)})
    assert np.all(seconds(graph, slower) >= seconds(graph))
    assert seconds(graph, slower).sum() > seconds(graph).sum()
    assert slower.distance_to(RATES) == pytest.approx(abs(np.log(factor)))
    assert RATES.distance_to(slower) == pytest.approx(abs(np.log(factor)))


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
    assert families(work) == [[family]]
    assert work.launches.tolist() == [[launches]]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_and_shares_are_positive_numbers(value: float) -> None:
    with pytest.raises(UsageError, match="gflops"):
        replace(RATES, gflops=value)
    with pytest.raises(DippmError, match="stream") as caught:
        CpuShares(compute=1.0, stream=value, dispatch=1.0)
    assert caught.value.code == "artefact.invalid"
