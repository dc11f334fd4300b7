"""Sizes and multiply-accumulates, worked out by hand."""

from __future__ import annotations

import pytest

from dippm.costs import Workload
from dippm.costs.contraction import PROJECTION
from dippm.graph import DType, OpKind


def _at(builder, *batches):
    return Workload.from_graph(builder.graph()).at(list(batches))


def _gemm(work):
    gemm = work.gemm
    return [
        [int(size) for size in (gemm.b[0, i], gemm.m[0, i], gemm.n[0, i], gemm.k[0, i])] for i in range(len(gemm.node))
    ]


def test_linear_takes_all_leading_dimensions_as_rows(builder):
    x = builder.input(builder.N, 197, 768)
    builder.node(OpKind.LINEAR, [x, builder.weight(3072, 768), builder.weight(3072)], builder.N, 197, 3072)
    work = _at(builder, 2, 8)
    assert _gemm(work) == [[1, 2 * 197, 3072, 768]]
    assert work.gemm.m[1].tolist() == [8 * 197]
    assert work.macs.tolist() == [[2 * 197 * 768 * 3072], [8 * 197 * 768 * 3072]]
    assert work.flops.tolist() == [[2 * 2 * 197 * 768 * 3072], [2 * 8 * 197 * 768 * 3072]]
    assert work.gemm.is_linear.tolist() == [True]
    assert work.gemm.has_bias.tolist() == [True]


@pytest.mark.parametrize(
    ("left", "right", "out", "expected"),
    [
        (("N", 12, 64, 32), ("N", 12, 32, 48), ("N", 12, 64, 48), [3 * 12, 64, 48, 32]),
        (("N", 64, 32), (32, 48), ("N", 64, 48), [1, 3 * 64, 48, 32]),
        (("N", 32), (32, 48), ("N", 48), [1, 3, 48, 32]),
        ((64, 32), ("N", 32, 48), ("N", 64, 48), [3, 64, 48, 32]),
        ((32,), ("N", 32, 48), ("N", 48), [3, 1, 48, 32]),
        (("N", 64, 32), (32,), ("N", 64), [1, 3 * 64, 1, 32]),
        ((32,), (32,), (), [1, 1, 1, 32]),
    ],
)
def test_matmul_like_numpy(builder, left, right, out, expected):
    shape = [[builder.N if size == "N" else size for size in sizes] for sizes in (left, right, out)]
    a, b = builder.input(*shape[0]), builder.input(*shape[1])
    builder.node(OpKind.MATMUL, [a, b], *shape[2])
    work = _at(builder, 3)
    assert _gemm(work) == [expected]
    products, rows, columns, depth = expected
    assert work.macs[0, 0] == products * rows * columns * depth


def test_contracted_overrides_the_last_dimension(builder):
    # einsum "bhij,bhkj->bik": sums over h and j.
    a, b = builder.input(builder.N, 4, 10, 16), builder.input(builder.N, 4, 20, 16)
    builder.node(OpKind.MATMUL, [a, b], builder.N, 10, 20, contracted=64)
    assert _at(builder, 2).macs[0, 0] == 2 * 10 * 20 * 64


@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.COMPLEX128])
@pytest.mark.parametrize("kind", [OpKind.MATMUL, OpKind.LINEAR])
def test_a_product_of_complex_numbers_is_four_of_real_ones(builder, kind, dtype):
    x, weight = builder.input(builder.N, 64, 32, dtype=dtype), builder.weight(32, 32, dtype=dtype)
    builder.node(kind, [x, weight], builder.N, 64, 32, dtype=dtype)
    work = _at(builder, 3)
    assert _gemm(work) == [[1, 3 * 64, 2 * 32, 2 * 32]]
    # (a + bi)(c + di) has four multiplications and, added to the sum, four additions.
    assert work.macs[0, 0] == 3 * 64 * 32 * 32
    assert work.flops[0, 0] == 8 * 3 * 64 * 32 * 32


def test_the_product_of_two_batches_grows_with_the_square(builder):
    # Image features against text features, as in CLIP.
    a, b = builder.input(builder.N, 512), builder.input(512, builder.N)
    builder.node(OpKind.MATMUL, [a, b], builder.N, builder.N)
    assert _at(builder, 2, 10).macs[:, 0].tolist() == [2 * 2 * 512, 10 * 10 * 512]


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_counts_scores_and_values_whole(builder, is_causal):
    q = builder.input(builder.N, 12, 100, 64)
    k, v = builder.input(builder.N, 12, 77, 64), builder.input(builder.N, 12, 77, 32)
    builder.node(OpKind.ATTENTION, [q, k, v], builder.N, 12, 100, 32, is_causal=is_causal)
    work = _at(builder, 2)
    assert work.macs[0, 0] == 2 * 12 * 100 * 77 * (64 + 32)
    attention = work.attention
    assert attention.is_causal.tolist() == [is_causal]
    assert attention.has_mask.tolist() == [False]
    sizes = (
        attention.batch,
        attention.heads,
        attention.queries,
        attention.keys,
        attention.width,
        attention.value_width,
    )
    assert [int(size[0, 0]) for size in sizes] == [2, 12, 100, 77, 64, 32]


def test_grouped_query_attention_counts_query_heads(builder):
    q = builder.input(builder.N, 32, 10, 64)
    k, v = builder.input(builder.N, 8, 20, 64), builder.input(builder.N, 8, 20, 64)
    builder.node(OpKind.ATTENTION, [q, k, v], builder.N, 32, 10, 64)
    work = _at(builder, 1)
    assert work.macs[0, 0] == 32 * 10 * 20 * 128
    assert work.attention.key_heads[0, 0] == 8


def test_attention_without_heads(builder):
    q, k, v = (builder.input(builder.N, 50, 64) for _ in range(3))
    builder.node(OpKind.ATTENTION, [q, k, v], builder.N, 50, 64)
    work = _at(builder, 4)
    assert work.macs[0, 0] == 4 * 50 * 50 * 128
    assert work.attention.batch[0, 0] == 4
    assert work.attention.heads[0, 0] == 1


def test_everything_before_the_heads_of_attention_is_samples(builder):
    # Windows, as Swin Transformer has.
    q, k, v = (builder.input(builder.N, 64, 3, 49, 32) for _ in range(3))
    builder.node(OpKind.ATTENTION, [q, k, v], builder.N, 64, 3, 49, 32)
    work = _at(builder, 2)
    assert work.macs[0, 0] == 2 * 64 * 3 * 49 * 49 * (32 + 32)
    assert [int(size[0, 0]) for size in (work.attention.batch, work.attention.heads)] == [2 * 64, 3]


@pytest.mark.parametrize("queries", [(1, 4, 16, 32), (4, 16, 32), (1, 1, 16, 32)])
def test_queries_of_all_samples_meet_the_keys_of_each(builder, queries):
    q = builder.weight(*queries)
    k, v = (builder.input(builder.N, 4, 10, 32) for _ in range(2))
    builder.node(OpKind.ATTENTION, [q, k, v], builder.N, 4, 16, 32)
    work = _at(builder, 8)
    assert work.macs[0, 0] == 8 * 4 * 16 * 10 * (32 + 32)
    assert [int(size[0, 0]) for size in (work.attention.batch, work.attention.heads)] == [8, 4]


@pytest.mark.parametrize(("kind", "gates"), [(OpKind.LSTM, 4), (OpKind.GRU, 3), (OpKind.RNN, 1)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers(builder, kind, gates, batch_first):
    steps, width, hidden = 30, 64, 128
    shape = (builder.N, steps) if batch_first else (steps, builder.N)
    x = builder.input(*shape, width)
    builder.node(
        kind, [x], *shape, 2 * hidden, hidden_size=hidden, num_layers=2, num_directions=2, batch_first=batch_first
    )
    work = _at(builder, 5)
    # Per direction and step: the first layer reads the input, the second both directions of the first.
    first = gates * hidden * (width + hidden)
    second = gates * hidden * (2 * hidden + hidden)
    assert work.macs[0, 0] == 5 * steps * 2 * (first + second)
    assert [int(work.recurrent.steps[0, 0]), int(work.recurrent.batch[0, 0])] == [steps, 5]
    assert work.recurrent.gates.tolist() == [gates]


def test_a_projected_lstm_hands_on_less(builder):
    x = builder.input(20, builder.N, 10)
    builder.node(OpKind.LSTM, [x], 20, builder.N, 8, hidden_size=32, num_layers=1, num_directions=1, batch_first=False)
    assert _at(builder, 1).macs[0, 0] == 20 * (4 * 32 * (10 + 8) + 32 * 8)


@pytest.mark.parametrize("told", [{PROJECTION: 8}, {}])
def test_the_gradient_of_a_projected_lstm_is_told_what_it_hands_on(builder, told):
    x = builder.input(20, builder.N, 10)
    settings = {"hidden_size": 32, "num_layers": 1, "num_directions": 1, "batch_first": False}
    builder.node(OpKind.RECURRENT_GRAD, [x], 20, builder.N, 8, function="lstm", **settings, **told)
    state = 4 * 32 * (10 + 8) + 32 * 8 if told else 4 * 32 * (10 + 32)
    assert _at(builder, 1).macs[0, 0] == 2 * 20 * state
