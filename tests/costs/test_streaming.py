from __future__ import annotations

import numpy as np
import pytest

from dippm.costs import Workload
from dippm.graph import OpKind


def _at(builder):
    return Workload.from_graph(builder.graph()).at([2])


def test_softmax_over_the_last_and_over_another_dimension(builder):
    x = builder.input(builder.N, 12, 50, 60)
    y = builder.node(OpKind.SOFTMAX, [x], builder.N, 12, 50, 60, axes=(3,))
    builder.node(OpKind.SOFTMAX, [y], builder.N, 12, 50, 60, axes=(1,))
    row = _at(builder).row
    assert row.rows[0].tolist() == [2 * 12 * 50, 2 * 50 * 60]
    assert row.width[0].tolist() == [60, 12]
    assert row.is_last.tolist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "axes_size", "rows"),
    [(OpKind.LAYER_NORM, 768, 2 * 197), (OpKind.LAYER_NORM, (197, 768), 2), (OpKind.RMS_NORM, 768, 2 * 197)],
)
def test_norms_by_the_size_of_their_axes(builder, kind, axes_size, rows):
    x = builder.input(builder.N, 197, 768)
    builder.node(kind, [x], builder.N, 197, 768, axes_size=axes_size)
    row = _at(builder).row
    assert row.rows[0].tolist() == [rows]
    assert (row.rows * row.width)[0].tolist() == [2 * 197 * 768]


def test_group_norm_rows_are_samples_times_groups(builder):
    x = builder.input(builder.N, 64, 8, 8)
    builder.node(OpKind.GROUP_NORM, [x], builder.N, 64, 8, 8, groups=32, axes_size=2 * 64)
    assert _at(builder).row.rows[0].tolist() == [2 * 32]


def test_reductions_and_pools(builder):
    x = builder.input(builder.N, 64, 8, 8)
    y = builder.node(OpKind.MAX_POOL, [x], builder.N, 64, 4, 4, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    z = builder.node(OpKind.GLOBAL_POOL, [y], builder.N, 64, 1, 1, output_size=(1, 1))
    builder.node(OpKind.REDUCE, [z], builder.N, axes=(1, 2, 3), function="mean")
    pool = _at(builder).pool
    assert pool.window[0].tolist() == [9, 16]
    assert pool.out_elements[0].tolist() == [2048, 128]
    reduction = Workload.from_graph(builder.graph()).reduction.at(np.array([2.0]))
    assert reduction.in_elements.tolist() == [[128]]
    assert reduction.out_elements.tolist() == [[2]]
