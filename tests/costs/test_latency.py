from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs import latency
from dippm.costs.conditions import Conditions, Runtime
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.sizes import GraphSizes
from dippm.costs.software import Software
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import OpKind


def break_down(graph: Any, batches: list[int], *, runtime: Runtime = Runtime.EAGER, rates: Rates | None = None) -> Any:
    plan = KernelPlan.from_workload(Workload.from_graph(graph))
    return latency.break_down_latency(
        plan,
        plan.work.at(batches),
        devices=[find_device("A100")],
        conditions=Conditions(runtime=runtime),
        rates=Rates() if rates is None else rates,
        kernels=load_kernel_model(),
    )[0]


def relus(builder: Any, count: int = 10) -> Any:
    x = builder.input(builder.N, 1000)
    for _ in range(count):
        x = builder.node(OpKind.RELU, [x], builder.N, 1000)
    return builder.graph()


def simulate(host: list[float], device: list[float]) -> list[float]:
    """The recurrence of the module's text, node by node."""
    launched = end = 0.0
    parts = []
    for host_ms, device_ms in zip(host, device, strict=True):
        launched += host_ms
        start = max(launched, end)
        parts.append(start + device_ms - end)
        end = start + device_ms
    return parts


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20))
def test_parts_are_those_of_a_host_and_a_device_in_order(times: list[tuple[float, float]]) -> None:
    host, device = ([pair[side] for pair in times] for side in (0, 1))
    parts = latency.share_of_latency(np.array([device]), np.cumsum(host))[0]
    assert parts == pytest.approx(simulate(host, device), abs=1e-9)


def test_a_small_batch_takes_the_hosts_time(builder: Any) -> None:
    result = break_down(relus(builder), [1])
    assert result.latency_ms[0] == pytest.approx(10 * 0.021 + result.busy_ms[0, -1])


def test_a_large_batch_takes_the_devices_time(builder: Any) -> None:
    result = break_down(relus(builder), [1_000_000])
    assert result.latency_ms[0] == pytest.approx(result.busy_ms[0].sum() + 0.021)


def test_a_captured_graph_is_launched_once(builder: Any) -> None:
    """By a host that nothing is known of but what this took on one."""
    graph = relus(builder)
    captured = break_down(graph, [1, 1000], runtime=Runtime.CUDA_GRAPH)
    launch_ms = captured.latency_ms - captured.busy_ms.sum(axis=1)
    assert launch_ms == pytest.approx([0.02, 0.02])
    assert captured.share_ms[0, 0] == pytest.approx(0.02 + captured.busy_ms[0, 0])
    assert captured.latency_ms[0] < break_down(graph, [1]).latency_ms[0]
    slow = break_down(graph, [1], runtime=Runtime.CUDA_GRAPH, rates=Rates(host_scale=3.0))
    assert slow.latency_ms[0] == captured.latency_ms[0]
    assert captured.slow_host_ms - captured.busy_ms.sum(axis=1) == pytest.approx(launch_ms * latency.OTHER_HOST)


def test_a_slower_host_never_helps(builder: Any) -> None:
    graph = relus(builder)
    batches = [1, 100, 10_000]
    slow = break_down(graph, batches, rates=Rates(host_scale=3.0)).latency_ms
    assert np.all(slow >= break_down(graph, batches).latency_ms)


def test_other_hosts_bound_what_the_host_decides(builder: Any) -> None:
    """The host's time on another host where the device waits for it, the device's time where it does not."""
    graph = relus(builder)
    small, middle, large = (break_down(graph, [batch]) for batch in (1, 20_000, 1_000_000))
    assert small.fast_host_ms[0] == pytest.approx(small.latency_ms[0] / latency.OTHER_HOST, rel=0.05)
    assert small.slow_host_ms[0] == pytest.approx(small.latency_ms[0] * latency.OTHER_HOST, rel=0.05)
    assert large.fast_host_ms[0] == pytest.approx(large.latency_ms[0], rel=0.01)
    assert large.slow_host_ms[0] == pytest.approx(large.latency_ms[0], rel=0.01)
    assert middle.busy_ms.sum() <= middle.fast_host_ms[0] < middle.latency_ms[0] < middle.slow_host_ms[0]


def test_a_convolution_that_looks_for_its_kernel_takes_longer_to_launch(builder: Any) -> None:
    x = builder.input(builder.N, 8, 4, 4)
    builder.node(OpKind.RELU, [x], builder.N, 8, 4, 4)
    builder.node(OpKind.CONV, [x, builder.weight(8, 8, 1, 1)], builder.N, 8, 4, 4, kernel=(1, 1), groups=1)
    work = Workload.from_graph(builder.graph(), Precision.FP32)
    rates = Rates(convolution_host=3.0)
    launched = [
        latency.launched_ms(KernelPlan.from_workload(work, software=Software(torch=torch)), Conditions(), rates)
        for torch in ((2, 0), (1, 13))
    ]
    # 21 microseconds for the ReLU, 49 for the convolution of the measured host.
    assert launched[0] == pytest.approx([0.021, 0.021 + 0.049])
    assert launched[1] == pytest.approx([0.021, 0.021 + 3 * 0.049])


def test_a_node_that_runs_often_counts_as_often() -> None:
    busy, launched = np.full((1, 10), 2.0), np.arange(10.0)
    once, twice = (latency.LatencyBreakdown.of(busy, lambda: launched, np.full(10, times)) for times in (1.0, 2.0))
    for name in ("busy_ms", "share_ms", "fast_host_ms", "slow_host_ms"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(once, name))


def test_the_host_is_asked_where_the_wait_for_it_matters() -> None:
    asked = []

    def launch() -> np.ndarray[Any, Any]:
        asked.append(1)
        return np.arange(3.0)

    times, busy = np.ones(3), np.full((1, 3), 2.0)
    longer = latency.LatencyBreakdown.of(busy, launch, times).at_least(np.array([[1.0, 3.0, 1.0]]), times, launch)
    assert longer.busy_ms.tolist() == [[2.0, 3.0, 2.0]]
    assert not asked
    assert longer.latency_ms.tolist() == longer.fast_host_ms.tolist() == [7.0]
    assert longer.least_ms == pytest.approx([5.0])
    assert len(asked) == 1


def test_nodes_that_take_too_long_take_what_they_may() -> None:
    times, busy = np.array([1.0, 2.0, 1.0]), np.full((1, 3), 2.0)
    whole = latency.LatencyBreakdown.of(busy, lambda: np.zeros(3), times)
    shorter = whole.at_most(np.array([[np.inf, 1.5, 2.0]]), times, lambda: np.zeros(3))
    assert shorter.busy_ms.tolist() == [[2.0, 3.0, 2.0]]
    assert shorter.latency_ms.tolist() == [7.0]
    assert whole.at_most(np.full((1, 3), np.inf), times, lambda: np.zeros(3)) is whole


def test_each_graph_of_a_plan_waits_for_a_host_of_its_own(builder: Any) -> None:
    graphs = [relus(builder, count) for count in (3, 5)]
    plan = KernelPlan.from_workload(Workload.from_sizes(GraphSizes.from_graphs(graphs), Precision.FP32))
    (together,) = latency.break_down_each(
        plan,
        plan.work.at([1, 64]),
        devices=[find_device("A100")],
        conditions=Conditions(),
        rates=Rates(),
        kernels=load_kernel_model(),
        times=np.arange(1.0, 1.0 + len(plan.dispatch_us)),
    )
    assert [breakdown.share_ms.shape for breakdown in together] == [(2, 3), (2, 8)]
    expected = [break_down(graph, [1, 64]).share_ms for graph in graphs]
    assert together[0].share_ms == pytest.approx(expected[0] * np.arange(1.0, 4.0), rel=1e-6)
    assert together[1].share_ms == pytest.approx(expected[1] * np.arange(4.0, 12.0), rel=1e-6)


def test_calls_side_by_side_take_what_each_takes_alone() -> None:
    rng, counts = np.random.default_rng(0), (3, 50, 1)
    busy, launched = ([np.cumsum(rng.random((rows, count)), axis=1) for count in counts] for rows in (2, 1))
    times = [np.full(count, float(often)) for often, count in zip((1.0, 3.0, 0.0), counts, strict=True)]

    def join(*places: int) -> latency.LatencyBreakdown:
        alone = [
            latency.LatencyBreakdown.of(
                busy[place],
                lambda place=place: launched[place][0],  # type: ignore[misc]
                times[place],
                half_width=None if place == 1 else np.full(2, 0.1),
                paused=0.0 if place == 0 else 0.25 * busy[place],
            )
            for place in places
        ]
        of_all, at = (np.concatenate([each[place] for place in places], axis=-1) for each in (times, launched))
        least = np.full((2, len(of_all)), 0.7)
        return latency.LatencyBreakdown.joined(alone, of_all, lambda: at[0]).at_least(least, of_all, lambda: at[0])

    together = join(0, 1, 2)
    for name in ("latency_ms", "fast_host_ms", "slow_host_ms", "least_ms"):
        expected = np.concatenate([getattr(join(place), name) for place in range(3)], axis=1)
        assert getattr(together, name).tolist() == expected.tolist()
    once = np.maximum(busy[0], 0.7)
    plain = latency.share_of_latency(once, launched[0]).sum(axis=-1)
    assert together.latency_ms[:, 0] == pytest.approx(plain)
    assert together.latency_ms[:, 2].tolist() == [0.0, 0.0]
    assert together.knows_interval.tolist() == 2 * [[True, False, True]]
    # Nodes that never run pause as little as they run; what is lengthened pauses for as long as before.
    paused = together.paused_once_ms(np.concatenate(times))
    assert paused == pytest.approx(np.concatenate([0.0 * busy[0], 0.25 * busy[1], np.zeros((2, 1))], axis=1))


def test_no_node_pauses_for_longer_than_it_takes() -> None:
    times, busy = np.array([1.0, 2.0]), np.full((1, 2), 2.0)
    calls = latency.LatencyBreakdown.of(busy, lambda: np.zeros(2), times, paused=np.array([[0.5, 1.5]]))
    assert calls.paused_once_ms(times).tolist() == [[0.5, 1.5]]
    assert calls.at_most(np.array([[np.inf, 1.0]]), times, lambda: np.zeros(2)).paused_once_ms(times).tolist() == [
        [0.5, 1.0]
    ]


def test_shares_are_of_the_latency_of_each_call() -> None:
    busy, times = np.array([[1.0, 2.0, 3.0, 4.0]]), np.ones(4)
    start = np.array([0, 2])
    calls = latency.LatencyBreakdown.of(busy, lambda: np.zeros(4), times, start=start)
    assert calls.share_of(np.array([True, False, True, False])) == pytest.approx(np.array([[1 / 3, 3 / 7]]))
    assert calls.share_of(np.zeros(4, dtype=np.bool_)).tolist() == [[0.0, 0.0]]
    assert calls.for_nodes(calls.latency_ms).tolist() == [[3.0, 3.0, 7.0, 7.0]]


def test_each_device_has_the_host_of_its_architecture(builder: Any) -> None:
    plan = KernelPlan.from_workload(Workload.from_graph(relus(builder), Precision.FP32))

    def small_ms(rates: Rates) -> list[float]:
        breakdowns = latency.break_down_latency(
            plan,
            plan.work.at([1]),
            devices=[find_device("A100"), find_device("H100")],
            conditions=Conditions(),
            rates=rates,
            kernels=load_kernel_model(),
        )
        return [float(each.latency_ms[0]) for each in breakdowns]

    before, after = small_ms(Rates()), small_ms(Rates(hosts={"9.0": 0.5}))
    assert after[0] == before[0]
    assert 0.5 * before[1] <= after[1] < 0.6 * before[1]
