"""Bytes by hand: each input once, each output once, only what is fetched."""

from __future__ import annotations

import pytest

from dippm.costs import Precision, Workload
from dippm.graph import DType, OpKind


def _bytes(builder, precision=Precision.FP32, batch=2):
    work = Workload.from_graph(builder.graph(), precision).at([batch])
    return work.bytes_read[0].tolist(), work.bytes_written[0].tolist()


def test_convolution_reads_image_weight_and_bias(builder):
    x = builder.input(builder.N, 3, 32, 32)
    builder.node(
        OpKind.CONV, [x, builder.weight(8, 3, 3, 3), builder.weight(8)], builder.N, 8, 30, 30, kernel=(3, 3),
        stride=(1, 1), dilation=(1, 1), padding=(0, 0), groups=1,
    )  # fmt: skip
    assert _bytes(builder) == ([4 * (2 * 3 * 1024 + 8 * 27 + 8)], [4 * 2 * 8 * 900])


def test_a_tensor_read_twice_by_one_node_is_read_once(builder):
    x = builder.input(builder.N, 100)
    builder.node(OpKind.MUL, [x, x], builder.N, 100)
    assert _bytes(builder) == ([800], [800])


def test_in_place_still_writes(builder):
    x = builder.input(builder.N, 100)
    y = builder.node(OpKind.TANH, [x], builder.N, 100)
    builder.node(OpKind.RELU, [y], builder.N, 100, alias_of=y)
    assert _bytes(builder) == ([800, 800], [800, 800])


def test_views_move_nothing_and_are_read_by_their_own_size(builder):
    x = builder.input(builder.N, 100)
    y = builder.node(OpKind.TANH, [x], builder.N, 100)
    piece = builder.node(OpKind.VIEW, [y], builder.N, 25, alias_of=y, function="slice")
    builder.node(OpKind.RELU, [piece], builder.N, 25)
    assert _bytes(builder) == ([800, 0, 200], [800, 0, 200])


def test_an_expanded_tensor_is_read_as_large_as_its_storage(builder):
    x = builder.input(builder.N, 10, 64)
    token = builder.weight(1, 10, 64)
    many = builder.node(OpKind.VIEW, [token], builder.N, 10, 64, alias_of=token, function="expand")
    builder.node(OpKind.ADD, [x, many], builder.N, 10, 64)
    assert _bytes(builder, batch=8) == ([0, 4 * (8 * 640 + 640)], [0, 4 * 8 * 640])


def test_embedding_reads_the_rows_that_it_fetches(builder):
    tokens = builder.input(builder.N, 128, dtype=DType.INT64)
    builder.node(OpKind.EMBEDDING, [builder.weight(30000, 768), tokens], builder.N, 128, 768)
    assert _bytes(builder) == ([2 * 128 * (4 * 768 + 8)], [2 * 128 * 768 * 4])


def test_a_bag_reads_a_row_for_each_index_and_returns_their_sum(builder):
    indices = builder.input(builder.N, 80, dtype=DType.INT64)
    builder.node(OpKind.EMBEDDING, [builder.weight(30000, 128), indices], builder.N, 128)
    assert _bytes(builder) == ([2 * 80 * (4 * 128 + 8)], [2 * 128 * 4])


def test_a_small_table_is_read_once_however_many_rows_are_fetched(builder):
    tokens = builder.input(builder.N, 128, dtype=DType.INT64)
    builder.node(OpKind.EMBEDDING, [builder.weight(300, 768), tokens], builder.N, 128, 768)
    for batch, rows in ((1, 128), (2, 256), (3, 300), (100, 300)):
        assert _bytes(builder, batch=batch)[0] == [rows * 768 * 4 + batch * 128 * 8]


def test_a_mixture_reads_one_expert_for_each_row_and_at_most_all(builder):
    rows = builder.input(builder.N, 64)
    experts = builder.weight(8, 64, 32)
    turned = builder.node(OpKind.VIEW, [experts], 8, 64, 32, alias_of=experts, function="transpose")
    builder.node(OpKind.MATMUL, [rows, turned], builder.N, 32)
    for batch, read in ((1, 1), (3, 3), (8, 8), (100, 8)):
        assert _bytes(builder, batch=batch)[0] == [0, 4 * (64 * batch + read * 64 * 32)]


def test_a_product_with_every_matrix_of_a_stack_reads_them_all(builder):
    x = builder.input(builder.N, 64)
    builder.node(OpKind.MATMUL, [x, builder.weight(8, 64, 32)], 8, builder.N, 32)
    assert _bytes(builder, batch=1)[0] == [4 * (64 + 8 * 64 * 32)]


def test_gather_and_a_copied_slice_read_what_they_return(builder):
    x = builder.input(builder.N, 1000, 8)
    index = builder.weight(10, dtype=DType.INT64)
    builder.node(OpKind.GATHER, [x, index], builder.N, 10, 8)
    builder.node(OpKind.COPY, [x], builder.N, 50, 8, function="slice")
    assert _bytes(builder) == ([4 * 2 * 80 + 80, 4 * 2 * 400], [4 * 2 * 80, 4 * 2 * 400])


def test_fill_and_random_only_write(builder):
    builder.node(OpKind.FILL, [], builder.N, 10)
    x = builder.input(builder.N, 10)
    builder.node(OpKind.RANDOM, [x], builder.N, 10)
    assert _bytes(builder) == ([0, 0], [80, 80])


def test_scatter_copies_unless_it_is_in_place(new_builder):
    for is_in_place in (False, True):
        builder = new_builder()
        x = builder.input(builder.N, 1000)
        base = builder.node(OpKind.TANH, [x], builder.N, 1000)
        index, updates = builder.weight(5, dtype=DType.INT64), builder.input(builder.N, 5)
        builder.node(OpKind.SCATTER, [base, index, updates], builder.N, 1000, alias_of=base if is_in_place else None)
        read, written = _bytes(builder)
        assert read[1] == (0 if is_in_place else 8000) + 40 + 40
        assert written[1] == (40 if is_in_place else 8000)


def test_max_pooling_writes_the_indices_that_nobody_asked_for(builder):
    x = builder.input(builder.N, 4, 8, 8)
    builder.node(OpKind.MAX_POOL, [x], builder.N, 4, 4, 4, kernel=(2, 2), stride=(2, 2), padding=(0, 0))
    assert _bytes(builder) == ([4 * 512], [(4 + 8) * 128])


@pytest.mark.parametrize(("precision", "element"), [(Precision.FP32, 4), (Precision.FP16, 2), (Precision.BF16, 2)])
def test_integers_keep_their_size(builder, precision, element):
    tokens = builder.input(builder.N, 128, dtype=DType.INT64)
    builder.node(OpKind.EMBEDDING, [builder.weight(30000, 768), tokens], builder.N, 128, 768)
    assert _bytes(builder, precision) == ([2 * 128 * (element * 768 + 8)], [2 * 128 * 768 * element])
