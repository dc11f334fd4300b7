from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer, Runtime
from dippm.costs.device_sheets import DeviceSheets
from dippm.costs.device_time import busy_ms
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.kernels.problems import Family, GemmProblem
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.workload import Workload
from dippm.devices import DeviceSpec, find_device, load_catalog
from dippm.graph import DType, Graph, OpKind

FloatArray = npt.NDArray[np.float64]


def time_of(
    graph: Graph,
    *,
    batches: list[int],
    device: str = "A100",
    precision: Precision = Precision.FP32,
    layout: Layout = Layout.NCHW,
    rates: Rates | None = None,
) -> FloatArray:
    plan = KernelPlan.from_workload(Workload.from_graph(graph, precision))
    return busy_ms(
        plan,
        plan.work.at(batches),
        devices=[find_device(device)],
        conditions=Conditions(precision=precision, layout=layout),
        rates=Rates() if rates is None else rates,
        kernels=load_kernel_model(),
    )[0]


def every_family(builder: Any) -> Graph:
    """A convolution of each sort, a linear layer, a product, attention, an LSTM, norms, pooling, moves."""
    n = builder.N
    image = builder.input(n, 32, 28, 28)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    x = builder.node(OpKind.CONV, [image, builder.weight(64, 32, 3, 3)], n, 64, 28, 28, groups=1, **square)
    x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(64)], n, 64, 28, 28)
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 1, 3, 3)], n, 64, 28, 28, groups=64, **square)
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 16, 3, 3)], n, 64, 28, 28, groups=4, **square)
    point = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 64, 1, 1)], n, 64, 28, 28, groups=1, **point)
    up = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    x = builder.node(OpKind.CONV_TRANSPOSE, [x, builder.weight(64, 64, 2, 2)], n, 64, 56, 56, groups=1, **up)
    x = builder.node(OpKind.MAX_POOL, [x], n, 64, 28, 28, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
    tokens = builder.node(OpKind.VIEW, [x], n, 784, 64, alias_of=x)
    y = builder.node(OpKind.LAYER_NORM, [tokens], n, 784, 64, axes=(2,), axes_size=64)
    y = builder.node(OpKind.LINEAR, [y, builder.weight(64, 64)], n, 784, 64)
    heads = builder.node(OpKind.VIEW, [y], n, 2, 784, 32, alias_of=y)
    y = builder.node(OpKind.ATTENTION, [heads, heads, heads], n, 2, 784, 32)
    y = builder.node(OpKind.MATMUL, [y, y], n, 2, 784, 784)
    y = builder.node(OpKind.SOFTMAX, [y], n, 2, 784, 784, axes=(3,))
    lstm = {"hidden_size": 64, "num_layers": 1, "num_directions": 1, "batch_first": True}
    builder.node(OpKind.LSTM, [tokens, builder.weight(256, 64), builder.weight(256, 64)], n, 784, 64, **lstm)
    builder.node(OpKind.CONCAT, [tokens, tokens], n, 784, 128)
    builder.node(OpKind.UNKNOWN, [y], n, 5)
    return builder.graph()


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("layout", Layout)
def test_every_family_takes_time_and_more_of_it_with_the_batch(
    builder: Any, precision: Precision, layout: Layout
) -> None:
    graph = every_family(builder)
    times = time_of(graph, batches=[1, 2, 4, 8, 16, 64, 256], precision=precision, layout=layout)
    is_view = np.array([node.kind is OpKind.VIEW for node in graph.nodes])
    assert np.all(times[:, is_view] == 0)
    assert np.all(times[:, ~is_view] > 0)
    assert np.all(np.isfinite(times))
    assert np.all(times[-1] >= times[0])
    assert np.all(np.diff(times.sum(axis=1)) > 0)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP, Precision.TF32])
@pytest.mark.parametrize(
    ("layout", "runtime"),
    [(Layout.NCHW, Runtime.EAGER), (Layout.NHWC, Runtime.EAGER), (Layout.NCHW, Runtime.CUDA_GRAPH)],
)
def test_devices_with_rates_of_their_own_take_what_they_take_alone(
    builder: Any, precision: Precision, layout: str, runtime: Runtime, mode: Mode
) -> None:
    n, weight = builder.N, builder.weight(64)
    image = builder.input(n, 64, 28, 28)
    builder.node(OpKind.GROUP_NORM, [image, weight, weight], n, 64, 28, 28, groups=8, axes_size=64 * 28 * 28 // 8)
    builder.node(OpKind.BATCH_NORM, [image, weight, weight], n, 64, 28, 28, is_training=mode is Mode.TRAINING)
    plan = KernelPlan.from_workload(Workload.from_graph(every_family(builder), precision))
    optimizer = Optimizer.SGD if mode is Mode.TRAINING else None
    conditions = Conditions(precision=precision, layout=Layout(layout), runtime=runtime, mode=mode, optimizer=optimizer)
    devices = [find_device(name) for name in ("A100", "RTX 3090", "H200", "P100")]
    names = [name for name, value in vars(Rates()).items() if isinstance(value, float)]
    rates = [
        Rates(**{name: 0.3 + 0.01 * place * number for number, name in enumerate(names)})
        for place in range(len(devices))
    ]

    def time_ms(chosen: list[int]) -> FloatArray:
        return busy_ms(
            plan,
            plan.work.at([1, 16]),
            devices=[devices[place] for place in chosen],
            conditions=conditions,
            rates=[rates[place] for place in chosen],
            kernels=load_kernel_model(),
        )

    together = time_ms([0, 1, 2, 3])
    for place, own in enumerate(together):
        (alone,) = time_ms([place])
        assert own == pytest.approx(alone, rel=1e-12)
    with_others = busy_ms(
        plan,
        plan.work.at([1, 16]),
        devices=devices,
        conditions=conditions,
        rates=rates[1],
        kernels=load_kernel_model(),
    )
    assert with_others[1] == pytest.approx(together[1], rel=1e-12)
    assert with_others[2] != pytest.approx(together[2], rel=1e-3)


@pytest.mark.parametrize("device", [device.name for device in load_catalog()])
def test_no_device_beats_its_roofline(builder: Any, device: str) -> None:
    spec = find_device(device)
    graph = every_family(builder)
    work = Workload.from_graph(graph).at([512])
    rate = max(spec.peak_tflops["fp32"], spec.peak_tflops.get("tf32_tensor", 0.0)) * 1e9
    # Winograd spares up to eight times the products of a convolution.
    floor = 2 * work.macs[0] / 8.0 / rate
    assert np.all(time_of(graph, batches=[512], device=device)[0] >= floor)


def test_a_large_linear_layer_takes_its_learned_time(builder: Any) -> None:
    x = builder.input(builder.N, 4096)
    builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    kernels, device = load_kernel_model(), find_device("A100")
    problem = GemmProblem.of(m=4096, n=4096, k=4096)
    (learned,) = kernels.busy_ms(Family.LINEAR, problem, [device])[0]
    gap_ms = Rates().gap_us / 1e3
    assert time_of(builder.graph(), batches=[4096])[0, 0] == pytest.approx(learned + gap_ms)


@pytest.mark.parametrize("device", ["A100", "T4", "H100"])
def test_a_product_of_two_matrices_costs_what_a_linear_layer_does(
    builder: Any, new_builder: Callable[[], Any], device: str
) -> None:
    """Also where batches of several matrices are asked for beside it: each batch size is answered alike alone."""
    x = builder.input(builder.N, 512, 256)
    builder.node(OpKind.MATMUL, [x, builder.input(builder.N, 256, 384)], builder.N, 512, 384)
    layer = new_builder()
    y = layer.input(layer.N, 512, 256)
    layer.node(OpKind.LINEAR, [y, layer.weight(384, 256)], layer.N, 512, 384)
    product = builder.graph()
    both = time_of(product, batches=[1, 8], device=device)[:, 0]
    assert both[0] == pytest.approx(time_of(layer.graph(), batches=[1], device=device)[0, 0])
    assert both.tolist() == [time_of(product, batches=[batch], device=device)[0, 0] for batch in (1, 8)]
    kernels, card = load_kernel_model(), find_device(device)
    (learned,) = kernels.busy_ms(Family.BMM, GemmProblem.of(b=8, m=512, n=384, k=256), [card])[0]
    sheets = DeviceSheets.of((card,), frozenset(), (0.0,))
    sustained = 2e3 * 8 * 512 * 384 * 256 / sheets.sustained_fp32.item()
    assert (sustained > learned) == (device == "T4")
    assert both[1] == pytest.approx(max(learned, sustained) + Rates().gap_us / 1e3)


@pytest.mark.parametrize(("device", "tflops"), [("T4", 3.65), ("P4", 3.41), ("RTX 2080 Ti", 13.0)])
@pytest.mark.parametrize("kind", ["linear", "matmul", "conv", "attention"])
def test_products_in_fp32_are_held_to_what_a_board_sustains(
    builder: Any, device: str, tflops: float, kind: str
) -> None:
    n, point = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    if kind == "linear":
        builder.node(OpKind.LINEAR, [builder.input(n, 512), builder.weight(512, 512)], n, 512)
        flops = 2.0 * 512 * 512
    elif kind == "matmul":
        builder.node(OpKind.MATMUL, [builder.input(n, 64, 256), builder.input(n, 256, 64)], n, 64, 64)
        flops = 2.0 * 64 * 64 * 256
    elif kind == "conv":
        image = builder.input(n, 64, 14, 14)
        builder.node(OpKind.CONV, [image, builder.weight(256, 64, 1, 1)], n, 256, 14, 14, **point)
        flops = 2.0 * 64 * 256 * 14 * 14
    else:
        heads = builder.input(n, 4, 128, 64)
        builder.node(OpKind.ATTENTION, [heads, heads, heads], n, 4, 128, 64)
        flops = 4.0 * 4 * 128 * 128 * 64
    batches = [1, 8, 64, 512]
    times = time_of(builder.graph(), batches=batches, device=device)[:, 0]
    assert np.all(times >= 0.995e3 * np.array(batches) * flops / (tflops * 1e12))


def test_boards_that_were_not_seen_to_be_held_back_are_not() -> None:
    sustained = DeviceSheets.of(tuple(find_device(name) for name in ("A100", "V100", "P100")), frozenset(), (0.0,) * 3)
    assert np.isinf(sustained.sustained_fp32).all()


def test_tensor_cores_make_a_large_product_faster_in_the_order_of_their_peaks(builder: Any) -> None:
    x = builder.input(builder.N, 4096)
    builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    graph = builder.graph()
    strict, tf32, half = (
        time_of(graph, batches=[8192], precision=precision)[0, 0]
        for precision in (Precision.FP32_STRICT, Precision.TF32, Precision.FP16)
    )
    assert strict > 2 * tf32 > 2 * half


def test_a_device_without_tensor_cores_runs_half_precision_on_its_lanes(builder: Any) -> None:
    x = builder.input(builder.N, 4096)
    builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    graph = builder.graph()
    full = time_of(graph, batches=[4096], device="P4", precision=Precision.FP32)[0, 0]
    half = time_of(graph, batches=[4096], device="P4", precision=Precision.FP16)[0, 0]
    assert half >= 0.9 * full  # a P4 computes FP16 at 1/64 of its FP32 rate


def test_channels_first_pays_for_the_shuffle(builder: Any, new_builder: Callable[[], Any]) -> None:
    graph = every_family(builder)
    first, last = (
        time_of(graph, batches=[64], precision=Precision.AMP, layout=layout)[0, 0]
        for layout in (Layout.NCHW, Layout.NHWC)
    )
    assert first > last
    free = Rates(nchw_shuffle=0.0)
    assert time_of(graph, batches=[64], precision=Precision.AMP, rates=free)[0, 0] == pytest.approx(last)


def test_equal_kernels_cost_the_same_in_any_place(builder: Any) -> None:
    x = builder.input(builder.N, 512)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(512, 512)], builder.N, 512)
    times = time_of(builder.graph(), batches=[1, 100])
    assert np.array_equal(times[:, 0], times[:, 1])
    assert np.array_equal(times[:, 0], times[:, 2])


def norm(builder: Any, width: int) -> Graph:
    n = builder.N
    x = builder.input(n, 1000, width)
    builder.node(OpKind.LAYER_NORM, [x, builder.weight(width), builder.weight(width)], n, 1000, width, axes=(2,))
    return builder.graph()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_a_narrow_row_of_a_layer_norm_takes_a_block_of_its_own(builder: Any, precision: Precision) -> None:
    rates = Rates(row_cycles=500.0, gap_us=0.0)
    device = find_device("A100")
    block_ms = 64_000 * 500.0 / (device.sm_count * device.boost_clock_mhz * 1e3)
    for width in (8, 32):
        time_ms = time_of(norm(builder, width), batches=[64], precision=precision, rates=rates)[0, -1]
        assert time_ms == pytest.approx(block_ms)
    wide = [
        time_of(norm(builder, 4096), batches=[64], precision=precision, rates=each)[0, -1]
        for each in (rates, replace(rates, row_cycles=0.0))
    ]
    assert wide[0] == wide[1] > block_ms


def pooling(builder: Any, window: int, kind: OpKind) -> Graph:
    n = builder.N
    x = builder.input(n, 64, 56, 56)
    around = (window - 1) // 2
    at = {"kernel": (window, window), "stride": (1, 1), "padding": (around, around)}
    builder.node(kind, [x], n, 64, 56, 56, **at)
    return builder.graph()


@pytest.mark.parametrize(("kind", "tap"), [(OpKind.MAX_POOL, 2.0), (OpKind.AVG_POOL, 0.8)])
@pytest.mark.parametrize("window", [3, 7])
def test_windows_of_pooling_take_the_reads_that_they_make(builder: Any, window: int, kind: OpKind, tap: float) -> None:
    rates, device = Rates(pool_element_cycles=5.0, pool_tap_cycles=2.0, gap_us=0.0), find_device("A100")
    graph = pooling(builder, window, kind)
    time_ms = time_of(graph, batches=[32], rates=rates)[0, -1]
    cycles = 32 * 64 * 56 * 56 * (5.0 + tap * window**2)
    assert time_ms == pytest.approx(cycles / (device.sm_count * device.boost_clock_mhz * 1e3))
    elements_alone = time_of(graph, batches=[32], rates=replace(rates, pool_tap_cycles=0.0))[0, -1]
    assert elements_alone == pytest.approx(time_ms * 5.0 / (5.0 + tap * window**2))
    by_bytes = replace(rates, pool_element_cycles=0.0, pool_tap_cycles=0.0)
    assert time_ms > time_of(graph, batches=[32], rates=by_bytes)[0, -1]


def _of_two(builder: Any, *shape: int, **attributes: Any) -> Graph:
    x = builder.input(builder.N, 64, 56, 56)
    builder.node(OpKind.MUL, [x, builder.input(builder.N, *shape)], builder.N, 64, 56, 56, **attributes)
    return builder.graph()


def _batch_norm(builder: Any, **attributes: Any) -> Graph:
    weight = builder.weight(64)
    x = builder.input(builder.N, 64, 56, 56)
    builder.node(OpKind.BATCH_NORM, [x, weight, weight], builder.N, 64, 56, 56, **attributes)
    return builder.graph()


def _mixed(builder: Any) -> Graph:
    whole = builder.input(builder.N, 64, 56, 56, dtype=DType.FLOAT32)
    half = builder.input(builder.N, 64, 56, 56, dtype=DType.FLOAT16)
    builder.node(OpKind.ADD, [whole, half], builder.N, 64, 56, 56, dtype=DType.FLOAT32)
    return builder.graph()


@pytest.mark.parametrize(
    ("make", "is_placed"),
    [
        (_batch_norm, True),
        (lambda builder: _batch_norm(builder, is_training=True), False),
        (lambda builder: _of_two(builder, 64, 1, 1), True),
        (lambda builder: _of_two(builder, 64, 56, 56), False),
        (_mixed, True),
    ],
    ids=["batch norm", "batch norm that trains", "spread", "alike", "mixed"],
)
def test_kernels_that_find_the_place_of_each_element(
    builder: Any, make: Callable[[Any], Graph], is_placed: bool
) -> None:
    rates, device, graph = Rates(element_cycles=3.0), find_device("A100"), make(builder)
    own, plain = (
        time_of(graph, batches=[32], rates=each)[0, -1] for each in (rates, replace(rates, element_cycles=0.0))
    )
    cycles_ms = 3.0 * 32 * 64 * 56 * 56 / (device.sm_count * device.boost_clock_mhz * 1e3)
    assert own - plain == pytest.approx(cycles_ms if is_placed else 0.0)


@pytest.mark.parametrize(("batch", "groups", "waves"), [(4, 1, 1), (64, 4, 2)])
def test_a_group_norm_has_one_block_for_a_group(builder: Any, batch: int, groups: int, waves: int) -> None:
    n, device = builder.N, find_device("A100")
    x = builder.input(n, 64, 56, 56)
    weight = builder.weight(64)
    builder.node(OpKind.GROUP_NORM, [x, weight, weight], n, 64, 56, 56, groups=groups, axes_size=64 * 56 * 56 // groups)
    plain, own = (
        time_of(builder.graph(), batches=[batch], rates=Rates(group_norm_cycles=cycles))[0, -1] for cycles in (0.0, 3.0)
    )
    # 108 multiprocessors run 216 blocks at a time.
    block_ms = 3.0 * 64 * 56 * 56 / groups / (device.boost_clock_mhz * 1e3)
    assert own - plain == pytest.approx(waves * block_ms)


@pytest.mark.parametrize("mode", Mode)
def test_few_channels_of_a_batch_norm_leave_a_device_idle_in_training(builder: Any, mode: Mode) -> None:
    n, rates = builder.N, Rates(gap_us=0.0)
    attributes = {"is_training": True} if mode is Mode.TRAINING else {}
    weight = builder.weight(8)
    builder.node(OpKind.BATCH_NORM, [builder.input(n, 8, 256, 256), weight, weight], n, 8, 256, 256, **attributes)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph(), Precision.FP32))
    optimizer = Optimizer.SGD if mode is Mode.TRAINING else None
    devices = [find_device("A100"), find_device("RTX 3090")]

    def time_ms(given: Rates, layout: Layout = Layout.NCHW) -> FloatArray:
        conditions = Conditions(mode=mode, optimizer=optimizer, layout=layout)
        at, kernels = plan.work.at([2, 16]), load_kernel_model()
        return busy_ms(plan, at, devices=devices, conditions=conditions, rates=given, kernels=kernels)[..., -1]

    blocks = replace(rates, batch_norm_cycles=1.0)
    if mode is Mode.INFERENCE:
        assert np.array_equal(time_ms(blocks), time_ms(rates))
        return
    for device, own_ms in zip(devices, time_ms(blocks), strict=True):
        assert own_ms == pytest.approx(np.array([2, 16]) * 256 * 256 / (device.boost_clock_mhz * 1e3))
    assert np.all(time_ms(blocks) > 2.0 * time_ms(rates))
    # What moving the image takes stays where it is longer.
    assert np.array_equal(time_ms(replace(rates, batch_norm_cycles=1e-3)), time_ms(rates))


def test_rates_of_an_architecture_hold_for_eager_nchw_of_todays_libraries_alone(builder: Any) -> None:
    graph, rates = every_family(builder), Rates(measured={"9.0": {"tensor_conv": 0.01, "stream": 0.01}})
    kernels = load_kernel_model()

    def seconds(given: Rates, device: str, software: Software = DEFAULT_SOFTWARE, **conditions: Any) -> FloatArray:
        plan = KernelPlan.from_workload(Workload.from_graph(graph, Precision.AMP), software=software)
        asked, card = Conditions(precision=Precision.AMP, **conditions), find_device(device)
        return busy_ms(
            plan, plan.work.at([8]), devices=[find_device("T4"), card], conditions=asked, rates=given, kernels=kernels
        )

    without = seconds(Rates(), "H200")
    own = seconds(rates, "H200")
    assert own[1].sum() > 1.3 * without[1].sum()
    assert np.array_equal(own[0], without[0])
    for device, changed in (
        ("A100", {}),
        ("H200", {"software": Software(torch=(2, 3))}),
        ("H200", {"layout": Layout.NHWC}),
        ("H200", {"runtime": Runtime.COMPILE}),
    ):
        assert np.array_equal(seconds(rates, device, **changed), seconds(Rates(), device, **changed))


def decoding(builder: Any, *, heads: int = 32, key_heads: int = 32, keys: int = 8192, has_mask: bool = False) -> Graph:
    """Attention of one query to what a cache holds."""
    n = builder.N
    inputs = [builder.input(n, heads, 1, 128), *(builder.input(n, key_heads, keys, 128) for _ in range(2))]
    inputs += [builder.input(n, 1, 1, keys)] if has_mask else []
    builder.node(OpKind.ATTENTION, inputs, n, heads, 1, 128, is_causal=False)
    return builder.graph()


@pytest.mark.parametrize("key_heads", [32, 8])
def test_one_query_takes_little_more_than_to_read_the_cache(builder: Any, key_heads: int) -> None:
    batches = np.array([1, 8, 64])
    times_ms = time_of(
        decoding(builder, key_heads=key_heads),
        batches=batches.tolist(),
        precision=Precision.BF16,
        rates=Rates(gap_us=0),
    )[:, 0]
    reads_ms = batches * 2 * 2 * key_heads * 8192 * 128 / (find_device("A100").bandwidth_gb_s * 1e6)
    # What stays in the L2 cache is read faster.
    assert times_ms[0] == pytest.approx(reads_ms[0], rel=0.3)
    # Where the heads alone fill the device, each has a tile of 128 rows of its own, filled with 1 query or 4.
    assert np.all((times_ms > 0.7 * reads_ms) & (times_ms < 2.5 * reads_ms))


@pytest.mark.parametrize(
    ("device", "precision", "has_mask"),
    [("T4", Precision.FP16, False), ("A100", Precision.FP32, False), ("A100", Precision.FP16, True)],
)
def test_keys_are_shared_in_flash_attention_alone(
    builder: Any, device: str, precision: Precision, has_mask: bool
) -> None:
    # Eight heads take as long as thirty-two, which do not fill the device either.
    few, many = (
        time_of(decoding(builder, heads=heads, key_heads=heads, has_mask=has_mask), batches=[1], device=device,
                precision=precision)[0, 0]
        for heads in (8, 32)
    )  # fmt: skip
    assert few == pytest.approx(many, rel=1e-9)


def attention(builder: Any, *causal: bool) -> Graph:
    x = builder.input(builder.N, 16, 4096, 64)
    for is_causal in causal:
        builder.node(OpKind.ATTENTION, [x, x, x], builder.N, 16, 4096, 64, is_causal=is_causal)
    return builder.graph()


@pytest.mark.parametrize("causal", [(False, True), (True, False)])
def test_causal_attention_is_cheaper_wherever_it_stands(builder: Any, causal: tuple[bool, ...]) -> None:
    times = time_of(attention(builder, *causal), batches=[4], precision=Precision.FP16)[0]
    assert times[causal.index(True)] < 0.6 * times[causal.index(False)]


@pytest.mark.parametrize(
    ("device", "batch", "heads", "tokens", "width", "measured_ms"),
    [
        # torch 2.10's fmha_cutlassF_f32_aligned_64x64_rf_sm80, as the notes of candle-fused-attn have it.
        ("RTX 5060 Ti", 64, 6, 240, 64, 0.949),
        # The same kernel of xformers, the benchmark of its pull request 587.
        ("A100", 384, 1, 197, 64, 0.269),
        ("A100", 384, 1, 197, 80, 0.444),
        ("A100", 1024, 1, 197, 88, 1.168),
    ],
)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
def test_attention_of_32_bits_runs_on_tensor_cores_in_three_products(
    builder: Any, device: str, batch: int, heads: int, tokens: int, width: int, measured_ms: float, precision: Precision
) -> None:
    x = builder.input(builder.N, heads, tokens, width)
    builder.node(OpKind.ATTENTION, [x, x, x], builder.N, heads, tokens, width, is_causal=False)
    time_ms = time_of(builder.graph(), batches=[batch], device=device, precision=precision, rates=Rates(gap_us=0))
    assert time_ms.item() == pytest.approx(measured_ms, rel=0.35)


def test_tensors_without_elements_cost_nothing(builder: Any) -> None:
    x = builder.input(builder.N, 0, 64)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(32, 64)], builder.N, 0, 32)
    x = builder.node(OpKind.SOFTMAX, [x], builder.N, 0, 32, axes=(2,))
    builder.node(OpKind.RELU, [x], builder.N, 0, 32)
    assert time_of(builder.graph(), batches=[1, 8]).max() == 0.0


def test_tf32_is_left_where_it_is_no_faster(builder: Any) -> None:
    x = builder.input(builder.N, 64, 56, 56)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    builder.node(OpKind.CONV, [x, builder.weight(64, 64, 3, 3)], builder.N, 64, 56, 56, **square)
    graph = builder.graph()
    for device in ("RTX 4090", "A100"):
        default = time_of(graph, batches=[64], device=device)[0, 0]
        strict = time_of(graph, batches=[64], device=device, precision=Precision.FP32_STRICT)[0, 0]
        assert default <= strict


@pytest.mark.parametrize("device", ["L4", "A10", "L40S"])
@pytest.mark.parametrize("rows", [1, 16, 512])
def test_allowing_tf32_never_costs_time(builder: Any, device: str, rows: int) -> None:
    """Where tensor cores are twice as fast on paper, a library may stay with FP32 and its Winograd convolutions."""
    n = builder.N
    x = builder.input(n, 256, 14, 14)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [x, builder.weight(256, 256, 3, 3)], n, 256, 14, 14, **square)
    y = builder.input(n, 197, 768)
    builder.node(OpKind.LINEAR, [y, builder.weight(768, 768)], n, 197, 768)
    builder.node(OpKind.MATMUL, [builder.input(n, 8, 64, 64), builder.input(n, 8, 64, 64)], n, 8, 64, 64)
    q, k, v = (builder.input(n, 12, 197, 64) for _ in range(3))
    builder.node(OpKind.ATTENTION, [q, k, v], n, 12, 197, 64)
    graph = builder.graph()
    allowed, strict = (
        time_of(graph, batches=[rows], device=device, precision=precision)
        for precision in (Precision.TF32, Precision.FP32_STRICT)
    )
    assert np.all(allowed <= strict * (1 + 1e-9))


def test_packed_weights_take_the_time_to_read_them_where_rows_are_few(
    builder: Any, new_builder: Callable[[], Any]
) -> None:
    """With many rows the arithmetic is what it is without."""

    def layer(builder: Any, dtype: DType) -> Graph:
        inputs = [builder.input(builder.N, 8192), builder.weight(8192, 8192, dtype=dtype)]
        graph: Graph = builder.graph(builder.node(OpKind.LINEAR, inputs, builder.N, 8192))
        return graph

    def times(graph: Graph) -> FloatArray:
        return time_of(graph, batches=[1, 16, 8192], precision=Precision.BF16)[:, 0]

    plain, packed = times(layer(builder, DType.FLOAT32)), times(layer(new_builder(), DType.UINT4))
    # The launch is not in it.
    reading = 1e3 * 8192 * 8192 / 2 / (find_device("A100").bandwidth_gb_s * 1e9)
    assert 0.7 * reading < packed[0] <= packed[1] < 1.5 * reading
    assert packed[0] < 0.4 * plain[0]
    assert packed[2] == plain[2]


def large_product(builder: Any) -> Graph:
    n = builder.N
    y = builder.node(OpKind.LINEAR, [builder.input(n, 4096, 4096), builder.weight(4096, 4096)], n, 4096, 4096)
    graph: Graph = builder.graph(y)
    return graph


def half_precision_ms(graph: Graph, device: DeviceSpec, *, tensor_feed: float) -> float:
    plan = KernelPlan.from_workload(Workload.from_graph(graph, Precision.FP16))
    result = busy_ms(
        plan,
        plan.work.at([8]),
        devices=[device],
        conditions=Conditions(precision=Precision.FP16),
        rates=Rates(tensor_feed=tensor_feed, tensor_gemm=1.0),
        kernels=load_kernel_model(),
    )
    return float(result.sum())


def test_feeding_slows_full_rate_tensor_cores_and_leaves_half_rate_ones(builder: Any) -> None:
    graph = large_product(builder)
    for name, slower in (("RTX 3090", 1.0), ("RTX 4090", 1.0), ("A100", 5.0 / 3.0), ("V100", 1.5), ("L40S", 1.5)):
        device = replace(find_device(name), board_power_w=1e4)
        plain, fed = (half_precision_ms(graph, device, tensor_feed=feed) for feed in (0.0, 2.0))
        # (1 + 2) / (1 + 2 / 2) at the full rate; the A100 does twice the operations for each byte of shared memory.
        assert fed / plain == pytest.approx(slower, rel=0.02), name


def test_more_peak_never_costs_time_however_much_feeding_does(builder: Any) -> None:
    graph = large_product(builder)
    device = find_device("RTX 3090")
    times = [
        half_precision_ms(
            graph,
            replace(device, peak_tflops={**device.peak_tflops, "fp16_tensor": peak * 71.0}),
            tensor_feed=5.0,
        )
        for peak in (1.0, 1.3, 1.7, 2.0, 3.0)
    ]
    assert times == sorted(times, reverse=True)


def test_a_power_limit_holds_tensor_cores_back(builder: Any) -> None:
    graph = large_product(builder)
    device = find_device("H100 80GB HBM3")
    spare, enough, half = (
        half_precision_ms(graph, replace(device, board_power_w=watts), tensor_feed=0.0)
        # One watt for each TFLOP/s.
        for watts in (2000.0, device.peak_tflops["fp16_tensor"], 0.5 * device.peak_tflops["fp16_tensor"])
    )
    assert spare == pytest.approx(enough)
    assert half / enough == pytest.approx(2.0, rel=0.02)


def test_tensor_cores_of_another_format_alone_have_a_rate(builder: Any) -> None:
    device = find_device("A100")
    peaks = {name: peak for name, peak in device.peak_tflops.items() if name != "fp16_tensor"}
    plan = KernelPlan.from_workload(Workload.from_graph(large_product(builder), Precision.BF16))
    times = [
        busy_ms(
            plan,
            plan.work.at([8]),
            devices=[each],
            conditions=Conditions(precision=Precision.BF16),
            rates=Rates(),
            kernels=load_kernel_model(),
        ).sum()
        for each in (device, replace(device, peak_tflops=peaks))
    ]
    assert times[1] == pytest.approx(times[0])


def depthwise(builder: Any, *, kernel: int = 7, channels: int = 256) -> Graph:
    x = builder.input(builder.N, channels, 28, 28)
    builder.node(
        OpKind.CONV, [x, builder.weight(channels, 1, kernel, kernel)], builder.N, channels, 28, 28,
        groups=channels, kernel=(kernel, kernel), stride=(1, 1), dilation=(1, 1), padding=(kernel // 2, kernel // 2),
    )  # fmt: skip
    return builder.graph()


@pytest.mark.parametrize("device", ["L4", "A10", "RTX 4090", "A100", "RTX A4000"])
def test_allowing_tf32_never_makes_a_recurrent_layer_slower(builder: Any, device: str) -> None:
    n, sizes = builder.N, {"hidden_size": 512, "num_layers": 2, "num_directions": 1, "batch_first": True}
    weights = [builder.weight(2048, 512) for _ in range(4)]
    builder.node(OpKind.LSTM, [builder.input(n, 128, 512), *weights], n, 128, 512, **sizes)
    graph, batches = builder.graph(), [8, 64, 512]
    strict, allowed = (
        time_of(graph, batches=batches, device=device, precision=precision)[:, 0]
        for precision in (Precision.FP32_STRICT, Precision.FP32)
    )
    assert (allowed <= strict).all()
    # FLOP of both products of each layer, at no more than a board sustains in FP32.
    flops = 2 * 2 * 128 * np.array(batches) * 2048 * 512 * 2
    assert (flops / (strict / 1e3) < 0.9e12 * find_device(device).peak_tflops["fp32"]).all()


@pytest.mark.parametrize("device", ["A100", "H100", "RTX 4090", "V100", "T4"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP32_STRICT, Precision.AMP])
def test_a_recurrent_layer_of_one_sample_waits_for_its_steps(builder: Any, device: str, precision: Precision) -> None:
    """Weights of 4 MB stay on the device, and one row of products is little: it is the steps that take the time."""
    n, sizes = builder.N, {"hidden_size": 512, "num_layers": 1, "num_directions": 1, "batch_first": True}
    weights = [builder.weight(2048, 512) for _ in range(2)]
    builder.node(OpKind.LSTM, [builder.input(n, 128, 512), *weights], n, 128, 512, **sizes)
    graph = builder.graph()
    one, two = time_of(graph, batches=[1, 2], device=device, precision=precision)[:, 0]
    step_ms = Rates().step_us / 1e3
    assert 128 * step_ms < one < 1.5 * 128 * step_ms
    assert one <= two < 1.1 * one


@pytest.mark.parametrize(("hidden", "is_held"), [(64, True), (96, True), (97, False)])
@pytest.mark.parametrize(("kind", "gates", "device"), [(OpKind.LSTM, 4, "H200"), (OpKind.GRU, 3, "A100")])
def test_steps_are_shorter_where_one_block_holds_the_weights(
    builder: Any, kind: OpKind, gates: int, device: str, hidden: int, is_held: bool
) -> None:
    n, sizes = builder.N, {"hidden_size": hidden, "num_layers": 1, "num_directions": 2, "batch_first": True}
    weights = [builder.weight(gates * hidden, width) for width in (hidden, hidden) * 2]
    builder.node(kind, [builder.input(n, 256, hidden), *weights], n, 256, 2 * hidden, **sizes)
    (one,) = time_of(builder.graph(), batches=[1], device=device, precision=Precision.FP32)[:, 0]
    step_ms = (Rates().held_step_us if is_held else Rates().step_us) / 1e3
    assert 2 * 256 * step_ms < one < 1.3 * 2 * 256 * step_ms


@pytest.mark.parametrize(("device", "issued"), [("A100", 2.0), ("RTX 4090", 1.0), ("P100", 1.0), ("T4", 2.0)])
@pytest.mark.parametrize(
    ("kernel", "precision", "layout", "rate"),
    [
        (3, Precision.AMP, Layout.NCHW, "direct_conv"),
        (7, Precision.AMP, Layout.NCHW, "own_depthwise"),
        (3, Precision.FP32, Layout.NCHW, "own_depthwise"),
        (3, Precision.AMP_BF16, Layout.NCHW, "own_depthwise"),
        (7, Precision.AMP, Layout.NHWC, "direct_conv_nhwc"),
        (9, Precision.AMP, Layout.NHWC, "wide_depthwise_nhwc"),
    ],
)
def test_each_depthwise_kernel_has_its_rate(
    builder: Any, kernel: int, precision: Precision, layout: Layout, rate: str, device: str, issued: float
) -> None:
    """PyTorch's own is held up by what is not arithmetic: by schedulers, of which there are as many as elsewhere."""
    graph = depthwise(builder, kernel=kernel)
    slow = dict.fromkeys(("direct_conv", "direct_conv_nhwc", "own_depthwise", "wide_depthwise_nhwc"), 1.0)
    rates = replace(Rates(), **{**slow, rate: 1e-4})
    peak = find_device(device).peak_tflops["fp32"] * 1e9 * (issued if rate == "own_depthwise" else 1.0)
    flops = 2.0 * 64 * 256 * 28 * 28 * kernel**2
    expected = flops / (1e-4 * peak) + rates.gap_us / 1e3
    given: Any = {"batches": [64], "device": device, "precision": precision, "layout": layout}
    own = time_of(graph, **given, rates=rates)[0, 0]
    casts = time_of(graph, **given, rates=replace(rates, **slow))[0, 0]
    # Casts of autocast come on top, and are little beside this.
    assert own == pytest.approx(expected, rel=0.01)
    assert casts < 0.01 * own


@pytest.mark.parametrize(("kernel", "rate"), [(5, "direct_conv"), (33, "own_depthwise")])
def test_a_wide_filter_along_a_line_in_fp16_computes_each_output_by_itself(
    builder: Any, kernel: int, rate: str
) -> None:
    """PyTorch hands all lines in FP16 to cuDNN, which has kernels of their own for small filters alone."""
    n, channels, frames = builder.N, 256, 840
    builder.node(
        OpKind.CONV, [builder.input(n, channels, frames), builder.weight(channels, 1, kernel)], n, channels, frames,
        groups=channels, kernel=(kernel,), stride=(1,), dilation=(1,), padding=(kernel // 2,),
    )  # fmt: skip
    graph, device = builder.graph(), "A100"
    slow = dict.fromkeys(("direct_conv", "direct_conv_nhwc", "own_depthwise", "wide_depthwise_nhwc"), 1.0)
    rates = replace(Rates(), **{**slow, rate: 1e-4})
    peak = find_device(device).peak_tflops["fp32"] * 1e9 * (2.0 if rate == "own_depthwise" else 1.0)
    expected = 2.0 * 64 * channels * frames * kernel / (1e-4 * peak) + rates.gap_us / 1e3
    own = time_of(graph, batches=[64], device=device, precision=Precision.AMP, rates=rates)[0, 0]
    assert own == pytest.approx(expected, rel=0.01)


def test_what_the_cache_holds_comes_at_the_clocks_pace_and_the_rest_at_the_memorys(builder: Any) -> None:
    n = builder.N
    builder.node(OpKind.RELU, [builder.input(n, 1024, 1024)], n, 1024, 1024)
    graph, half = builder.graph(), 2**20
    rates = replace(Rates(), stream=1.0, gap_us=0.0, cache_bytes_per_cycle=24.0)
    for device in ("H100", "H200"):
        card = find_device(device)
        few, many = time_of(graph, batches=[1, 64], device=device, precision=Precision.FP16, rates=rates)[:, 0]
        cycles_per_ms = card.sm_count * card.boost_clock_mhz * 1e3
        assert few == pytest.approx(2 * 2 * half / (24.0 * cycles_per_ms))
        warm = 0.5 * card.l2_mb * 2**20
        rest_ms = (64 * 4 * half - warm) / (card.bandwidth_gb_s * 1e6)
        assert many == pytest.approx(warm / (24.0 * cycles_per_ms) + rest_ms)
    # No cache is slower than the memory behind it.
    slow = replace(rates, cache_bytes_per_cycle=1.0)
    own = time_of(graph, batches=[1], device="H200", precision=Precision.FP16, rates=slow)[0, 0]
    assert own == pytest.approx(4 * half / (find_device("H200").bandwidth_gb_s * 1e6))


def test_a_group_norm_in_nhwc_copies_its_image_and_the_next_convolution_copies_it_back(builder: Any) -> None:
    n = builder.N
    point = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.GROUP_NORM, [builder.input(n, 64, 56, 56), builder.weight(64)], n, 64, 56, 56)
    x = builder.node(OpKind.RELU, [x], n, 64, 56, 56)
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 64, 1, 1)], n, 64, 56, 56, **point)
    # Of a single pixel both orders are the same.
    x = builder.node(OpKind.REDUCE, [x], n, 64, 1, 1, function="mean", axes=(2, 3))
    builder.node(OpKind.CONV, [x, builder.weight(64, 64, 1, 1)], n, 64, 1, 1, **point)
    graph = builder.graph()
    rates = replace(Rates(), nchw_shuffle=0.0, move=0.5, stream=1.0, cache_gain=1.0)
    plain, turned = (
        time_of(graph, batches=[256], device="P100", precision=Precision.FP32_STRICT, layout=layout, rates=rates)[0]
        for layout in (Layout.NCHW, Layout.NHWC)
    )
    moved = 2 * 4 * 256 * 64 * 56 * 56
    least_ms = 1e3 * moved / (find_device("P100").bandwidth_gb_s * 1e9)
    norm, relu, conv, mean, gate = (turned - plain).tolist()
    assert least_ms < norm < 4 * least_ms
    assert conv == pytest.approx(norm)
    assert (relu, mean, gate) == (0.0, 0.0, 0.0)


def test_a_convolution_on_permuted_tokens_needs_no_shuffle(builder: Any, new_builder: Callable[[], Any]) -> None:
    weight = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}

    def image(of: Any, *, is_permuted: bool) -> Graph:
        n = of.N
        if is_permuted:
            own = of.node(OpKind.COPY, [of.input(n, 28, 28, 256)], n, 28, 28, 256, function="clone")
            x = of.node(OpKind.VIEW, [own], n, 256, 28, 28, alias_of=own, function="permute", perm=(0, 3, 1, 2))
        else:
            x = of.node(OpKind.COPY, [of.input(n, 256, 28, 28)], n, 256, 28, 28, function="clone")
        of.node(OpKind.CONV, [x, of.weight(256, 256, 3, 3)], n, 256, 28, 28, **weight)
        return of.graph()

    rates = replace(Rates(), nchw_shuffle=1.0)
    permuted, plain = (
        time_of(graph, batches=[64], precision=Precision.AMP, rates=rates)[0, -1]
        for graph in (image(builder, is_permuted=True), image(new_builder(), is_permuted=False))
    )
    assert permuted < plain
    without = replace(rates, nchw_shuffle=0.0)
    graph = image(new_builder(), is_permuted=False)
    assert permuted == pytest.approx(time_of(graph, batches=[64], precision=Precision.AMP, rates=without)[0, -1])


@pytest.mark.parametrize("device", ["A100", "V100", "T4", "P4", "RTX 4090", "L4", "A10"])
@pytest.mark.parametrize(("inputs", "outputs"), [(768, 3072), (4096, 4096), (512, 1000)])
def test_a_linear_layer_in_fp32_takes_longer_for_more_rows(
    builder: Any, device: str, inputs: int, outputs: int
) -> None:
    """Tables of single products have bumps, which cards without a table are taken to have elsewhere, and larger."""
    n = builder.N
    builder.node(OpKind.LINEAR, [builder.input(n, inputs), builder.weight(outputs, inputs)], n, outputs)
    batches = list(range(1, 193))
    time_ms = time_of(builder.graph(), batches=batches, device=device, precision=Precision.FP32_STRICT)[:, 0]
    assert (np.diff(time_ms) >= -1e-12).all()
    # Beyond, tables and cards differ in what a last tile takes, and no more.
    (far,) = time_of(builder.graph(), batches=[4096], device=device, precision=Precision.FP32_STRICT)[:, 0]
    assert far > time_ms[-1]


@pytest.mark.parametrize("device", ["A100", "T4", "RTX 4090"])
@pytest.mark.parametrize("precision", [Precision.FP32_STRICT, Precision.AMP])
def test_weights_that_a_card_cannot_hold_are_read_at_every_step(
    builder: Any, device: str, precision: Precision
) -> None:
    n, hidden, steps = builder.N, 8192, 16
    sizes = {"hidden_size": hidden, "num_layers": 1, "num_directions": 1, "batch_first": True}
    weights = [builder.weight(4 * hidden, hidden) for _ in range(2)]
    builder.node(OpKind.LSTM, [builder.input(n, steps, hidden), *weights], n, steps, hidden, **sizes)
    (time_ms,) = time_of(builder.graph(), batches=[1], device=device, precision=precision)[:, 0]
    card = find_device(device)
    weight_bytes = 4 * hidden * hidden * (4 if precision is Precision.FP32_STRICT else 2)
    held = card.sm_count * 256 * 1024 + card.l2_mb * 2**20
    assert time_ms > steps * (weight_bytes - held) / (card.bandwidth_gb_s * 1e6)
