from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs import MemoryTimeline, Precision, Purpose, Workload, live_memory, reserved_bytes
from dippm.costs.conditions import Layout, Optimizer
from dippm.costs.context import context_mb
from dippm.costs.memory import Headroom, absent_copies, estimate_memory_each
from dippm.costs.software import Software
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.devices import find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import OpKind

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}
_MIB = 2**20
_PARTS = {"context", "weights", "activations", "workspace", "slack"}


def estimate_memory(timeline, batches, devices, **conditions):
    (estimates,) = estimate_memory_each([timeline], batches, devices, **conditions)
    return estimates


def _timeline(graph, precision=Precision.FP32):
    return MemoryTimeline.from_workload(Workload.from_graph(graph, precision))


def _network(builder, *, widths=(16, 32, 64), size=64, classes=10):
    x, channels = builder.input(builder.N, 3, size, size), 3
    for width in widths:
        weight = builder.weight(width, channels, 3, 3)
        x = builder.node(OpKind.CONV, [x, weight], builder.N, width, size, size, **_CONV)
        x = builder.node(OpKind.RELU, [x], builder.N, width, size, size, alias_of=x)
        channels = width
    x = builder.node(OpKind.REDUCE, [x], builder.N, channels, axes=(2, 3), function="mean")
    builder.node(OpKind.LINEAR, [x, builder.weight(classes, channels)], builder.N, classes)
    return builder.graph()


def test_reserved_memory_by_hand(builder):
    # Input 24 MiB, then 40 MiB and 24 MiB: the input stays, so each takes a segment of its own.
    x = builder.input(builder.N, 6 * _MIB)
    y = builder.node(OpKind.TANH, [x], builder.N, 10 * _MIB)
    z = builder.node(OpKind.TANH, [y], builder.N, 6 * _MIB)
    # 4 MiB and 30 MiB: the 40 MiB that are free now serve both, one after the other.
    z = builder.node(OpKind.TANH, [z], builder.N, _MIB)
    builder.node(OpKind.TANH, [z], builder.N, 15 * _MIB // 2)
    timeline = _timeline(builder.graph())
    assert reserved_bytes(timeline, [1]).tolist() == [88 * _MIB]
    assert live_memory(timeline, [1]).peak_bytes.tolist() == [88 * _MIB]


def test_weights_are_allocated_one_by_one(builder):
    x = builder.input(builder.N, 8)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(96, 2**14)], builder.N, 8)  # 6 MiB each
    # Three weights fill 18 of the 20 MiB of one segment; all else is small.
    assert reserved_bytes(_timeline(builder.graph()), [1]).tolist() == [22 * _MIB]


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("layout", list(Layout))
def test_parts_add_up(builder, precision, layout):
    timeline = _timeline(_network(builder), precision)
    for device in ("A100", "V100", "P100", "H100"):
        (estimate,) = estimate_memory(timeline, [1, 8, 64], [find_device(device)], layout=layout)
        assert set(estimate.parts_mb) == _PARTS
        np.testing.assert_allclose(sum(estimate.parts_mb.values()), estimate.memory_mb)
        assert all((part >= 0).all() for part in estimate.parts_mb.values())


@pytest.mark.parametrize(
    ("groups", "layout", "has_copies"),
    [
        (1, Layout.NCHW, True),
        (1, Layout.NHWC, False),
        (4, Layout.NCHW, True),
        (4, Layout.NHWC, True),
        (32, Layout.NCHW, False),
        (32, Layout.NHWC, False),
    ],
)
def test_convolutions_in_groups_copy_images_of_either_order(builder, groups, layout, has_copies):
    x = builder.input(builder.N, 32, 64, 64)
    given = {**_CONV, "groups": groups}
    builder.node(OpKind.CONV, [x, builder.weight(32, 32 // groups, 3, 3)], builder.N, 32, 64, 64, **given)
    timeline = _timeline(builder.graph(), Precision.FP16)
    on_a100, on_p100 = estimate_memory(timeline, [8], [find_device(name) for name in ("A100", "P100")], layout=layout)
    assert (on_a100.parts_mb["workspace"] > 0).item() is has_copies
    # It has no tensor cores.
    assert on_p100.parts_mb["workspace"] == 0
    assert absent_copies(find_device("P100"), layout) >= {Purpose.GROUPED_HALF, Purpose.GROUPED_TF32}


def test_devices_differ_in_context_blas_and_tensor_cores(builder):
    timeline = _timeline(_network(builder))
    a100, v100, h100 = estimate_memory(timeline, [64], [find_device(name) for name in ("A100", "V100", "H100")])
    assert a100.parts_mb["weights"] == v100.parts_mb["weights"] == h100.parts_mb["weights"]
    # V100 has no TF32, so its convolutions copy nothing; Hopper's cuBLAS takes 32 MiB instead of 8.125.
    assert v100.parts_mb["workspace"].tolist() == [8.125]
    assert (h100.parts_mb["workspace"] - a100.parts_mb["workspace"]).tolist() == [pytest.approx(32 - 8.125)]
    assert a100.parts_mb["workspace"][0] > 8.125
    assert h100.parts_mb["context"] > a100.parts_mb["context"] > v100.parts_mb["context"]
    (nhwc,) = estimate_memory(timeline, [64], [find_device("A100")], layout=Layout.NHWC)
    assert nhwc.parts_mb["workspace"].tolist() == [8.125]


def test_one_device_at_a_time_is_the_same(builder):
    timeline = _timeline(_network(builder))
    devices = [find_device(name) for name in ("A100", "V100", "T4", "H100")]
    together = estimate_memory(timeline, [1, 16], devices)
    for device, estimate in zip(devices, together, strict=True):
        (alone,) = estimate_memory(timeline, [1, 16], [device])
        assert alone.memory_mb.tolist() == estimate.memory_mb.tolist()


def test_older_software_holds_its_kernels_and_lends_cublas_nothing(builder):
    timeline = _timeline(_network(builder))
    devices = [find_device("A100"), find_device("1g.5gb@A100")]
    old = Software.parse("torch 1.12+cu113")
    for today, before, device in zip(
        estimate_memory(timeline, [64], devices),
        estimate_memory(timeline, [64], devices, software=old),
        devices,
        strict=True,
    ):
        assert before.parts_mb["context"].tolist() == [context_mb(device, old)]
        assert today.parts_mb["workspace"] - before.parts_mb["workspace"] == pytest.approx(8.125)
        np.testing.assert_allclose(sum(before.parts_mb.values()), before.memory_mb)
        # cuBLAS's workspace lies in what activations have left.
        grown = context_mb(device, old) - context_mb(device)
        assert (before.memory_mb - today.memory_mb).tolist() == [pytest.approx(grown)]


def test_a_device_that_kernels_fill_holds_less(builder):
    timeline = _timeline(_chain(builder, (100, 60, 120, 80)))
    device = _device(context_mb(_device(40_000)) + 1000)
    assert estimate_memory(timeline, [1], [device])[0].fits.tolist() == [True]
    old = estimate_memory(timeline, [1], [device], software=Software.parse("torch 1.12+cu113"))[0]
    assert old.fits.tolist() == [False]


def _chain(builder, mib_sizes):
    """Tensors of these sizes per sample, each made from the one before it; the input takes 1 MiB."""
    x = builder.input(builder.N, _MIB // 4)
    for mib in mib_sizes:
        x = builder.node(OpKind.TANH, [x], builder.N, mib * _MIB // 4)
    return builder.graph()


def _device(memory_mb):
    return replace(find_device("A100-PCIE-40GB"), memory_mb=memory_mb, usable_memory_mb=None, mig_profiles=())


def test_a_small_device_gets_the_cache_back_before_it_fails(builder):
    # 100, 60, 120, 80: at most 200 MiB are live, and the cache would hold 100 + 60 + 120.
    timeline = _timeline(_chain(builder, (100, 60, 120, 80)))
    context = context_mb(_device(40_000))
    large, small, smaller = estimate_memory(timeline, [1], [_device(context + size) for size in (1000, 210, 190)])
    assert large.fits.tolist() == small.fits.tolist() == [True]
    assert large.memory_mb.tolist() == [pytest.approx(context + 2 + 280)]
    assert small.memory_mb.tolist() == [pytest.approx(context + 2 + 200)]
    # Where even that is not enough, the answer says what would do, which is less than what an allocator takes that may.
    assert smaller.fits.tolist() == [False]
    assert smaller.memory_mb.tolist() == small.memory_mb.tolist()
    for estimate in (large, small, smaller):
        np.testing.assert_allclose(sum(estimate.parts_mb.values()), estimate.memory_mb)


def test_weights_alone_can_be_too_large(builder):
    x = builder.input(builder.N, 8)
    builder.node(OpKind.LINEAR, [x, builder.weight(2**20, 2**10)], builder.N, 8)
    (estimate,) = estimate_memory(_timeline(builder.graph()), [1], [_device(2000)])
    assert estimate.fits.tolist() == [False]
    (estimate,) = estimate_memory(_timeline(builder.graph()), [1], [_device(300)])
    assert estimate.fits.tolist() == [False]


def test_a_graph_without_matrix_products_has_no_blas_workspace(builder):
    x = builder.input(builder.N, 100)
    builder.node(OpKind.RELU, [x], builder.N, 100)
    (estimate,) = estimate_memory(_timeline(builder.graph()), [1], [find_device("A100")])
    assert estimate.parts_mb["workspace"].tolist() == [0]
    assert estimate.memory_mb.tolist() == [pytest.approx(context_mb(find_device("A100")) + 2)]


def test_the_backward_pass_has_a_blas_workspace_of_its_own(builder):
    """PyTorch has one for each thread: two share a segment of 20 MiB, those of Hopper do not."""
    step = make_training_graph(_network(builder), TrainingSettings(optimizer=Optimizer.SGD, precision=Precision.FP32))
    timeline = _timeline(step.graph)
    devices = [find_device("V100"), find_device("H100")]
    old = estimate_memory(timeline, [4], devices, software=Software.parse("torch 1.12+cu113"))
    v100, h100 = (
        today.parts_mb["workspace"] - before.parts_mb["workspace"]
        for today, before in zip(estimate_memory(timeline, [4], devices), old, strict=True)
    )
    assert v100.tolist() == [pytest.approx(2 * 8.125)]
    assert h100.tolist() == [pytest.approx(2 * 32)]
    for device, without, segments in zip(devices, old, (20, 64), strict=True):
        (estimate,) = estimate_memory(timeline, [4], [device])
        held = estimate.memory_mb - estimate.parts_mb["context"] - without.memory_mb + without.parts_mb["context"]
        assert held.tolist() == [pytest.approx(segments)]


def test_a_graph_without_nodes(builder):
    builder.input(builder.N, 100)
    (estimate,) = estimate_memory(_timeline(builder.graph()), [1, 2], [find_device("A100")])
    assert estimate.live.peak_node.tolist() == [-1, -1]
    assert estimate.live.peak_bytes.tolist() == [400, 800]


@pytest.mark.parametrize("batch", [2**6, 2**40])
def test_absurd_sizes_are_refused(builder, batch):
    x = builder.input(builder.N, 2**22, 2**21)
    builder.node(OpKind.RELU, [x], builder.N, 2**22, 2**21)
    with pytest.raises(UnsupportedError) as caught:
        estimate_memory(_timeline(builder.graph()), [batch], [find_device("A100")])
    assert caught.value.code == "graph.too_large"


def test_huge_sizes_are_answered(builder):
    x = builder.input(builder.N, 2**20, 2**10)
    builder.node(OpKind.RELU, [x], builder.N, 2**20, 2**10)
    (estimate,) = estimate_memory(_timeline(builder.graph()), [2**16], [find_device("A100")])
    assert estimate.memory_mb[0] > 5e8


def test_wrong_batches_are_refused(builder):
    with pytest.raises(UsageError, match="at least 1"):
        estimate_memory(_timeline(_network(builder)), [0], [find_device("A100")])


@given(
    widths=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    size=st.integers(1, 80),
    batches=st.lists(st.integers(1, 400), min_size=2, max_size=5, unique=True).map(sorted),
    precision=st.sampled_from(list(Precision)),
)
def test_the_peak_grows_with_the_batch_and_fits_what_is_reserved(new_builder, widths, size, batches, precision):
    timeline = _timeline(_network(new_builder(), widths=widths, size=size), precision)
    everything: frozenset[Purpose] = frozenset()
    live = live_memory(timeline, batches, without=everything)
    assert (np.diff(live.peak_bytes) > 0).all()
    assert (live.live_bytes.max(axis=1) == live.peak_bytes).all()
    assert (reserved_bytes(timeline, batches, without=everything) >= live.peak_bytes).all()


def test_cached_memory_that_can_be_given_back_is_no_reason_to_doubt_a_fit(builder):
    n = builder.N
    x = builder.input(n, 1)
    # Ever larger results, of which no cached segment serves the next.
    for width in range(2, 40):
        x = builder.node(OpKind.RELU, [x], n, width * 100_000)
    timeline = MemoryTimeline.from_workload(Workload.from_graph(builder.graph()))
    device = find_device("T4")
    headroom = Headroom(share=0.1, fixed_mb=1000.0)
    batches = [300, 330, 360, 390]
    freely = estimate_memory(timeline, batches, [device])[0]
    careful = estimate_memory(timeline, batches, [device], headrooms=[headroom])[0]
    is_above = freely.memory_mb * 1.1 + 1000.0 > device.memory_mb
    assert is_above.any()
    assert freely.fits.all()
    np.testing.assert_array_equal(careful.memory_mb, freely.memory_mb)
    np.testing.assert_array_equal(careful.needed_mb[~is_above], freely.memory_mb[~is_above])
    assert (careful.needed_mb[is_above] < freely.memory_mb[is_above]).all()
    assert (careful.needed_mb * 1.1 + 1000.0 <= device.memory_mb * 1.01).all()


def test_what_is_held_grows_evenly_where_what_is_needed_jumps(builder):
    """A segment can be given back or not by how sizes are rounded; it is held all the same while there is room."""
    n = builder.N
    x = builder.input(n, 2**18)
    # Three MiB of each sample after three times one: of odd batches blocks are rounded up to whole segments of 2 MiB.
    for width in (3, 1, 3, 1, 24):
        x = builder.node(OpKind.RELU, [x], n, width * 2**18)
    timeline = _timeline(builder.graph())
    batches = list(range(200, 260))
    (estimate,) = estimate_memory(timeline, batches, [_device(9000)], headrooms=[Headroom(share=0.1, fixed_mb=800.0)])
    assert estimate.fits.all()
    assert (np.diff(estimate.memory_mb) > 0).all()
    assert (estimate.needed_mb <= estimate.memory_mb).all()
    assert (estimate.needed_mb < estimate.memory_mb).any()
    assert (estimate.needed_mb == estimate.memory_mb).any()


def test_a_captured_graph_has_a_pool_and_a_blas_workspace_of_its_own(builder):
    x = builder.input(builder.N, 8)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(96, 2**14)], builder.N, 8)  # 6 MiB each
    x = builder.node(OpKind.TANH, [x], builder.N, 2**18)  # 1 MiB, for which the weights' segment of 20 MiB has room
    builder.node(OpKind.TANH, [x], builder.N, 2**20)  # 4 MiB
    timeline, devices = _timeline(builder.graph()), [find_device("H200")]
    (eager,), (captured,) = (estimate_memory(timeline, [1], devices, is_captured=own) for own in (False, True))
    assert captured.parts_mb["workspace"] - eager.parts_mb["workspace"] == pytest.approx(32)
    held = {
        name: float((each.memory_mb - each.parts_mb["context"]).item())
        for name, each in zip(("eager", "captured"), (eager, captured), strict=True)
    }
    # Eager: 20 MiB of weights, 2 of small tensors, 20 for the 4 MiB, 32 of cuBLAS. Captured: 2, 32 and 2 more, of small
    # tensors, of cuBLAS before the capture, and of the state of its generator.
    assert held == {"eager": 74.0, "captured": 110.0}


def test_a_captured_graph_fits_where_both_pools_do(builder):
    device, timeline = find_device("T4"), _timeline(_network(builder))
    (estimate,) = estimate_memory(timeline, [1, 64, 2**20], [device], is_captured=True)
    (eager,) = estimate_memory(timeline, [1, 64, 2**20], [device])
    assert estimate.fits.tolist() == [True, True, False]
    assert np.all(estimate.memory_mb[:2] >= eager.memory_mb[:2])


def test_the_context_grows_with_captures_and_with_backward_passes(builder):
    graph, device = _network(builder), find_device("H200")
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD)).graph
    plain, captured, trained = (
        estimate_memory(_timeline(each), [4], [device], is_captured=is_captured)[0].parts_mb["context"].item()
        for each, is_captured in ((graph, False), (graph, True), (step, False))
    )
    assert plain == context_mb(device)
    assert (captured, trained) == (context_mb(device, is_captured=True), context_mb(device, trains=True))


def test_a_workspace_lies_where_there_is_room(builder):
    """The 32 MiB of cuBLAS find the segment of a tensor that was given back, if there is one as large."""
    x = builder.input(builder.N, 8)
    large = builder.node(OpKind.TANH, [x], builder.N, 10 * 2**20)  # 40 MiB
    small = builder.node(OpKind.REDUCE, [large], builder.N, 8)
    builder.node(OpKind.LINEAR, [small, builder.weight(8, 8)], builder.N, 8)
    timeline = _timeline(builder.graph())
    (alone,) = estimate_memory(timeline, [1], [find_device("H200")])
    held_mb = (alone.memory_mb - alone.parts_mb["context"]).item()
    # In the first pass the workspace takes the 40 MiB, so that the tensor needs another segment in the second.
    assert held_mb == 2 + 40 + 40
    assert alone.parts_mb["slack"].item() >= 0


def test_cublaslt_has_a_workspace_of_its_own_until_pytorch_2_12(builder):
    x = builder.input(builder.N, 8)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 8), builder.weight(8)], builder.N, 8)
    timeline, devices = _timeline(builder.graph()), [find_device("H200")]
    own, shared = (
        estimate_memory(timeline, [1], devices, software=Software.parse(f"torch {release}"))[0].parts_mb["workspace"]
        for release in ("2.11", "2.12")
    )
    assert (own - shared).tolist() == [1.0]


def test_convolutions_make_no_copies_where_a_device_has_no_room_for_them(builder):
    x = builder.input(builder.N, 64, 256, 256)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    builder.node(OpKind.CONV, [x, builder.weight(64, 64, 3, 3)], builder.N, 64, 256, 256, **square)
    timeline = _timeline(builder.graph())
    image_mb = 64 * 256 * 256 * 4 / 2**20
    for images, copies in ((4.5, 2.0), (3.0, 0.0)):
        device = _device(context_mb(_device(40_000)) + images * 64 * image_mb)
        (estimate,) = estimate_memory(timeline, [64], [device])
        assert estimate.fits.tolist() == [True]
        assert estimate.parts_mb["workspace"].item() / image_mb == pytest.approx(64 * copies, abs=0.1)
        np.testing.assert_allclose(sum(estimate.parts_mb.values()), estimate.memory_mb)
    (small,) = estimate_memory(timeline, [64], [_device(context_mb(_device(40_000)) + 1.5 * 64 * image_mb)])
    assert small.fits.tolist() == [False]
    # What copies would take is held until the device is full, so that more samples never need less.
    (growing,) = estimate_memory(
        timeline, list(range(1, 96)), [_device(context_mb(_device(40_000)) + 3 * 64 * image_mb)]
    )
    assert np.all(np.diff(growing.memory_mb) >= 0.0)
