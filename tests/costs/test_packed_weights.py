"""What weights in few bits take of device, host and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dippm
from dippm.costs import MemoryTimeline, Workload, live_memory
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.packed_weights import PackedWeights
from dippm.costs.packings import PACKED_BY, PACKINGS
from dippm.costs.precision import Precision
from dippm.devices import find_device
from dippm.graph import DType, Graph, OpKind

WIDTH = 8192
COUNT = WIDTH * WIDTH


@pytest.fixture
def decoder(builder: Any) -> Graph:
    """A wide layer for one row a sample, and a thin one that stays as it is."""
    n = builder.N
    x = builder.input(n, WIDTH, dtype=DType.BFLOAT16)
    y = builder.node(
        OpKind.LINEAR, [x, builder.weight(WIDTH, WIDTH, dtype=DType.BFLOAT16)], n, WIDTH, dtype=DType.BFLOAT16
    )
    z = builder.node(OpKind.LINEAR, [y, builder.weight(8, WIDTH, dtype=DType.BFLOAT16)], n, 8, dtype=DType.BFLOAT16)
    return builder.graph(z)  # type: ignore[no-any-return]


def _found(graph: Graph, *batches: int) -> PackedWeights | None:
    plan = KernelPlan.from_workload(Workload.from_graph(graph, Precision.BF16))
    return PackedWeights.of(plan, plan.work.at(list(batches)))


def _quantised(graph: Graph, weights: str) -> Graph:
    return dippm.load(graph, weights=weights)


def test_whole_weights_and_those_of_no_known_library_are_none(decoder: Graph) -> None:
    assert _found(decoder, 1) is None
    assert _found(_quantised(decoder, "fp8"), 1) is None


@pytest.mark.parametrize(
    ("weights", "packing", "rows", "is_unpacked"),
    [
        ("nf4", "bitsandbytes-4bit", [1, 2, 64], [False, True, True]),
        ("nf4-double", "bitsandbytes-4bit-nested", [1, 2], [False, True]),
        ("int8", "bitsandbytes-8bit-split", [1, 2, 4096], [False, False, False]),
        ("int4", "exllama", [1, 32, 33], [False, False, True]),
    ],
)
def test_more_rows_than_a_kernel_is_made_for_have_the_weight_unpacked(
    decoder: Graph, weights: str, packing: str, rows: list[int], is_unpacked: list[bool]
) -> None:
    found = _found(_quantised(decoder, weights), *rows)
    assert found is not None
    assert found.weights[:, 0].tolist() == [COUNT * each for each in is_unpacked]
    own = PACKINGS[packing]
    expected = [own.unpacking_us if each else own.host_us for each in is_unpacked]
    assert found.more_host_us().tolist() == [[each, 0.0] for each in expected]


def test_unpacking_is_bound_by_memory_or_by_the_multiprocessors(decoder: Graph) -> None:
    found = _found(_quantised(decoder, "nf4"), 1, 8)
    assert found is not None
    busy = np.zeros((2, 2))
    for name, seconds in (
        # 4 bits are read and 16 written at 85 % of 320 GB/s, and the 16 read.
        ("T4", COUNT * (2.5 + 2.0) / (0.85 * 320e9)),
        # 3.3 G weights a second of each of 132; the product reads 16 bits at 3,350 GB/s.
        ("H100 SXM", COUNT / (3.3e9 * 132) + COUNT * 2.0 / (0.85 * 3350e9)),
    ):
        slowed = found.slowed_ms(busy, find_device(name))
        assert slowed[0].tolist() == [0.0, 0.0]
        assert slowed[1] == pytest.approx([1e3 * seconds, 0.0], rel=0.01)
    # A product that the arithmetic binds reads in the meantime.
    busy[1, 0] = 1e4
    assert found.slowed_ms(busy, find_device("T4"))[1, 0] == pytest.approx(
        1e4 + 1e3 * COUNT * 2.5 / (0.85 * 320e9), rel=1e-6
    )


def test_of_a_stack_one_matrix_after_the_other_is_unpacked(builder: Any) -> None:
    n = builder.N
    x, experts = builder.input(n, 8, 64), builder.weight(8, 64, 32)
    quantised = _quantised(builder.graph(builder.node(OpKind.MATMUL, [x, experts], n, 8, 32)), "int4")
    timeline = MemoryTimeline.from_workload(Workload.from_graph(quantised, Precision.FP16))
    assert live_memory(timeline, [1]).workspace_bytes.tolist() == [64 * 32 * 2]


def test_an_unpacked_weight_is_scratch_of_its_product(decoder: Graph) -> None:
    def peak(graph: Graph) -> float:
        work = Workload.from_graph(graph, Precision.BF16)
        return float(live_memory(MemoryTimeline.from_workload(work), [4]).workspace_bytes[0])

    assert peak(decoder) == peak(_quantised(decoder, "int8")) == 0.0
    assert peak(_quantised(decoder, "nf4")) == peak(_quantised(decoder, "int4")) == 2.0 * COUNT


def test_the_time_of_a_model_grows_by_it_and_others_beside_it_do_not(decoder: Graph, builder: Any) -> None:
    quantised = _quantised(decoder, "nf4")
    given: dict[str, Any] = {"batch": [1, 8], "device": "H100 SXM", "precision": "bf16"}
    whole, packed = (dippm.predict(graph, **given) for graph in (decoder, quantised))
    # Eight rows have the weight unpacked, which takes longer than reading it whole.
    assert packed[1].latency_ms > max(packed[0].latency_ms, whole[1].latency_ms)
    both = dippm.predict_each([decoder, quantised], **given)
    assert [each.latency_ms for each in both[0]] == [each.latency_ms for each in whole]
    assert [each.latency_ms for each in both[1]] == [each.latency_ms for each in packed]


def test_an_unknown_mark_changes_nothing(decoder: Graph) -> None:
    quantised = _quantised(decoder, "fp8")
    marked = replace(
        quantised,
        nodes=tuple(replace(node, attributes={**node.attributes, PACKED_BY: "marlin"}) for node in quantised.nodes),
    )
    one, other = (dippm.predict(graph, batch=8, precision="bf16").latency_ms for graph in (quantised, marked))
    assert one == other
