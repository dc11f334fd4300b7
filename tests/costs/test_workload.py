from __future__ import annotations

import time

import numpy as np
import pytest

from dippm.costs import Precision, Workload
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.errors import UsageError
from dippm.graph import OpKind

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


def _residual_block(builder):
    x = builder.input(builder.N, 16, 8, 8)
    y = builder.node(OpKind.CONV, [x, builder.weight(16, 16, 3, 3)], builder.N, 16, 8, 8, **_CONV)
    y = builder.node(OpKind.BATCH_NORM, [y, *(builder.weight(16) for _ in range(4))], builder.N, 16, 8, 8)
    y = builder.node(OpKind.ADD, [y, x], builder.N, 16, 8, 8, alias_of=y)
    y = builder.node(OpKind.RELU, [y], builder.N, 16, 8, 8, alias_of=y - 1)
    y = builder.node(OpKind.REDUCE, [y], builder.N, 16, axes=(2, 3), function="mean")
    y = builder.node(OpKind.VIEW, [y], builder.N, 16, alias_of=y)
    return builder.node(OpKind.LINEAR, [y, builder.weight(10, 16), builder.weight(10)], builder.N, 10)


def test_a_residual_block_by_hand(builder):
    _residual_block(builder)
    graph = builder.graph()
    work = Workload.from_graph(graph)
    at = work.at([1, 4])
    image = 16 * 64
    for row, batch in enumerate((1, 4)):
        macs = [batch * image * 144, 0, 0, 0, 0, 0, batch * 160]
        assert at.macs[row].tolist() == macs
        plain = [0, 2 * batch * image, batch * image, batch * image, batch * image, 0, 0]
        assert at.flops[row].tolist() == [2 * m + p for m, p in zip(macs, plain, strict=True)]
        read = [image * batch + 2304, image * batch + 64, 2 * image * batch, image * batch, image * batch, 0]
        assert at.bytes_read[row].tolist() == [4 * r for r in [*read, 16 * batch + 160 + 10]]
        written = [image * batch] * 4 + [16 * batch, 0, 10 * batch]
        assert at.bytes_written[row].tolist() == [4 * w for w in written]


def test_every_node_is_in_the_family_of_its_kind(builder):
    _residual_block(builder)
    graph = builder.graph()
    work = Workload.from_graph(graph)
    at = work.at([1])
    assert work.family == tuple(FAMILY_OF_KIND[node.kind] for node in graph.nodes)
    listed = {
        WorkFamily.CONVOLUTION: at.convolution.node,
        WorkFamily.GEMM: at.gemm.node,
        WorkFamily.REDUCTION: work.reduction.table.node,
    }
    for family, nodes in listed.items():
        assert nodes.tolist() == [i for i, name in enumerate(work.family) if name is family]


def test_all_batches_at_once_equal_one_by_one(builder):
    _residual_block(builder)
    work = Workload.from_graph(builder.graph(), Precision.AMP)
    batches = [1, 3, 17, 1024]
    together = work.at(batches)
    for row, batch in enumerate(batches):
        alone = work.at(batch)
        for name in ("macs", "flops", "bytes_read", "bytes_written"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name)[0])
        np.testing.assert_array_equal(together.convolution.batch[row], alone.convolution.batch[0])


def test_a_graph_without_nodes(builder):
    builder.input(builder.N, 3)
    at = Workload.from_graph(builder.graph()).at([1, 2])
    assert at.macs.shape == at.bytes_read.shape == at.bytes_written.shape == (2, 0)
    assert at.gemm.m.shape == at.convolution.batch.shape == (2, 0)


def test_every_kind_can_be_costed(builder):
    x = builder.input(builder.N, 8, 4, 4)
    weight = builder.weight(8, 8, 3, 3)
    for kind in OpKind:
        builder.node(kind, [x, weight, weight], builder.N, 8, 4, 4)
    work = Workload.from_graph(builder.graph()).at([1, 2])
    for values in (work.macs, work.flops, work.bytes_read, work.bytes_written):
        assert np.isfinite(values).all()
        assert (values >= 0).all()


@pytest.mark.parametrize("kind", list(OpKind))
def test_every_kind_survives_a_node_without_inputs_and_outputs_of_rank_zero(builder, kind):
    builder.node(kind, [])
    work = Workload.from_graph(builder.graph()).at([1])
    assert np.isfinite(work.flops).all()


def test_a_wrong_batch_is_refused(builder):
    _residual_block(builder)
    with pytest.raises(UsageError, match="at least 1"):
        Workload.from_graph(builder.graph()).at([4, 0])


def test_time_grows_linearly(new_builder):
    def seconds(nodes):
        builder = new_builder()
        x, weight = builder.input(builder.N, 8, 4, 4), builder.weight(8, 8, 3, 3)
        for _ in range(nodes // 2):
            x = builder.node(OpKind.CONV, [x, weight], builder.N, 8, 4, 4, **_CONV)
            x = builder.node(OpKind.RELU, [x], builder.N, 8, 4, 4)
        graph = builder.graph()
        best = np.inf
        for _ in range(3):
            start = time.perf_counter()
            Workload.from_graph(graph).at([1, 8])
            best = min(best, time.perf_counter() - start)
        return best

    # Ten times the nodes; a quadratic step would show as a hundred times.
    assert seconds(20_000) < 40 * seconds(2_000)
