"""The features of PMGNS, every column that is not 0 worked out by hand."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from dippm.costs.workload import Workload
from dippm.errors import UnsupportedError, UsageError
from dippm.features.pmgns import (
    NODE_COLUMNS,
    NODE_FEATURES,
    OPERATOR_CLASSES,
    STATIC_COLUMNS,
    STATIC_FEATURES,
    EdgeMode,
    compute_features_of_batches,
)
from dippm.graph import TRAINING_KINDS, DType, OpKind, TensorRole

_CLASSES = len(OPERATOR_CLASSES)


def compute_features(graph, *, batch, edges=EdgeMode.DATA):
    (sample,) = compute_features_of_batches(graph, [batch], edges)
    return sample


def _rows(sample):
    """The class of each node, and its other features that are not 0 in plain units."""
    result = []
    for row in sample.node_features.astype(np.float64):
        (name,) = [NODE_COLUMNS[column] for column in np.flatnonzero(row[:_CLASSES])]
        assert row[:_CLASSES].sum() == 1.0
        values = np.expm1(row[_CLASSES:])
        result.append((name, {NODE_COLUMNS[_CLASSES + at]: values[at] for at in np.flatnonzero(values)}))
    return result


def _assert_rows(sample, expected):
    rows = _rows(sample)
    assert [name for name, _ in rows] == [name for name, _ in expected]
    for (name, values), (_, wanted) in zip(rows, expected, strict=True):
        assert values == pytest.approx(wanted, rel=1e-5), name


def _shape(*sizes):
    return {f"output_{axis}": size for axis, size in enumerate(sizes)}


def _edges(sample):
    return list(zip(*sample.edge_index.tolist(), strict=True))


def _convolution(kernel, stride=1, padding=0, dilation=1, groups=1):
    return {
        "kernel": kernel,
        "stride": (stride,) * len(kernel),
        "padding": (padding,) * len(kernel),
        "dilation": (dilation,) * len(kernel),
        "groups": groups,
    }


def _residual_block(builder):
    """Two paths of 3x3 and 1x1 convolutions with stride 2, then a classifier."""
    x = builder.input(builder.N, 16, 8, 8)
    shortcut = builder.node(
        OpKind.CONV, [x, builder.weight(32, 16, 1, 1)], builder.N, 32, 4, 4, **_convolution((1, 1), stride=2)
    )
    y = builder.node(
        OpKind.CONV, [x, builder.weight(32, 16, 3, 3)], builder.N, 32, 4, 4, **_convolution((3, 3), stride=2, padding=1)
    )
    y = builder.node(OpKind.BATCH_NORM, [y, *(builder.weight(32) for _ in range(4))], builder.N, 32, 4, 4)
    y = builder.node(OpKind.ADD, [y, shortcut], builder.N, 32, 4, 4, alias_of=y)
    y = builder.node(OpKind.RELU, [y], builder.N, 32, 4, 4, alias_of=y - 1)
    y = builder.node(OpKind.REDUCE, [y], builder.N, 32, 1, 1, axes=(2, 3), function="mean")
    y = builder.node(OpKind.VIEW, [y], builder.N, 32, alias_of=y)
    builder.node(OpKind.LINEAR, [y, builder.weight(10, 32), builder.weight(10)], builder.N, 10)
    return builder.graph()


def test_a_residual_block_by_hand(builder):
    sample = compute_features(_residual_block(builder), batch=4)
    image, out = 4 * 16 * 8 * 8, 4 * 32 * 4 * 4
    of_image = _shape(4, 32, 4, 4)
    window = {"stride": 2, "dilation": 1, "groups": 1, "input_elements": image} | of_image
    _assert_rows(
        sample,
        [
            # The sum reads the deeper path first, and so the traversal goes there first.
            ("convolution", {"kernel_height": 3, "kernel_width": 3, "padding": 1, "terms": 144} | window),
            ("batch_norm", {"input_elements": out} | of_image),
            ("convolution", {"kernel_height": 1, "kernel_width": 1, "terms": 16} | window),
            ("sum", {"input_elements": 2 * out} | of_image),
            ("relu", {"input_elements": out} | of_image),
            ("reduction", {"terms": 16, "input_elements": out} | _shape(4, 32, 1, 1)),
            ("dense", {"terms": 32, "input_elements": 128} | _shape(4, 10)),
        ],
    )
    assert _edges(sample) == [(0, 1), (1, 3), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert sample.static_features.tolist() == [out * 144 + out * 16 + 4 * 10 * 32, 4, 2, 1, 1]


def test_a_depthwise_convolution_by_hand(builder):
    x = builder.input(builder.N, 24, 14, 10)
    attributes = _convolution((5, 3), groups=24) | {"padding": (2, 1), "stride": (1, 2), "dilation": (3, 1)}
    builder.node(OpKind.CONV, [x, builder.weight(24, 1, 5, 3), builder.weight(24)], builder.N, 24, 6, 5, **attributes)
    sample = compute_features(builder.graph(), batch=2)
    _assert_rows(
        sample,
        [
            (
                "grouped_convolution",
                {
                    "kernel_height": 5,
                    "kernel_width": 3,
                    "stride": 2,
                    "padding": 2,
                    "dilation": 3,
                    "groups": 24,
                    "terms": 15,
                    "input_elements": 2 * 24 * 14 * 10,
                }
                | _shape(2, 24, 6, 5),
            )
        ],
    )
    assert sample.edge_index.shape == (2, 0)
    assert sample.static_features.tolist() == [2 * 24 * 6 * 5 * 15, 2, 1, 0, 0]


def _branches(builder):
    """A stem that a convolution, a pooling and the concatenation itself read, the last through a view."""
    x = builder.input(builder.N, 3, 8, 8)
    stem = builder.node(OpKind.RELU, [x], builder.N, 3, 8, 8)
    a = builder.node(OpKind.CONV, [stem, builder.weight(5, 3, 1, 1)], builder.N, 5, 8, 8, **_convolution((1, 1)))
    b = builder.node(
        OpKind.MAX_POOL, [stem], builder.N, 3, 8, 8, kernel=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1)
    )
    view = builder.node(OpKind.VIEW, [stem], builder.N, 3, 8, 8, alias_of=stem)
    builder.node(OpKind.CONCAT, [a, b, view], builder.N, 11, 8, 8)
    return builder.graph()


def test_a_branch_by_hand(builder):
    graph = _branches(builder)
    sample = compute_features(graph, batch=3)
    stem, of_stem = 3 * 3 * 64, _shape(3, 3, 8, 8)
    window = {"kernel_height": 1, "kernel_width": 1, "stride": 1, "dilation": 1, "groups": 1, "terms": 3}
    _assert_rows(
        sample,
        [
            ("relu", {"input_elements": stem} | of_stem),
            ("convolution", window | {"input_elements": stem} | _shape(3, 5, 8, 8)),
            (
                "pooling",
                {"kernel_height": 3, "kernel_width": 3, "stride": 1, "padding": 1, "terms": 9, "input_elements": stem}
                | of_stem,
            ),
            ("concatenation", {"input_elements": 3 * 11 * 64} | _shape(3, 11, 8, 8)),
        ],
    )
    assert _edges(sample) == [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)]


def test_a_chain_loses_the_branches(builder):
    graph = _branches(builder)
    data, chain = (compute_features(graph, batch=3, edges=mode) for mode in EdgeMode)
    assert _edges(chain) == [(0, 1), (1, 2), (2, 3)]
    assert chain.edge_index.dtype == data.edge_index.dtype == np.int64
    np.testing.assert_array_equal(chain.node_features, data.node_features)
    np.testing.assert_array_equal(chain.static_features, data.static_features)


def test_other_operators_by_hand(builder):
    """Whatever else fills the column of terms or the fifth dimension."""
    x = builder.input(builder.N, 6, 20)
    norm = builder.node(OpKind.LAYER_NORM, [x, builder.weight(20)], builder.N, 6, 20, axes_size=20)
    q = builder.node(OpKind.VIEW, [norm], builder.N, 2, 6, 10)
    attention = builder.node(OpKind.ATTENTION, [q, q, q], builder.N, 2, 6, 10)
    scores = builder.node(OpKind.MATMUL, [q, attention], builder.N, 2, 6, 6, contracted=10)
    soft = builder.node(OpKind.SOFTMAX, [scores], builder.N, 2, 6, 6, axes=(3,))
    five = builder.node(OpKind.COPY, [soft], builder.N, 2, 3, 2, 6)
    line = builder.node(OpKind.CONV, [norm, builder.weight(8, 6, 7)], builder.N, 8, 14, **_convolution((7,)))
    up = builder.node(
        OpKind.CONV_TRANSPOSE, [line, builder.weight(8, 4, 2)], builder.N, 4, 28, **_convolution((2,), stride=2)
    )
    lstm = builder.node(
        OpKind.LSTM, [up], builder.N, 4, 16, hidden_size=16, num_layers=1, num_directions=1, batch_first=True
    )
    whole = builder.node(OpKind.GLOBAL_POOL, [lstm], builder.N, 4, 1)
    sample = compute_features(builder.graph(five, whole), batch=2)
    window = {"kernel_height": 1, "dilation": 1, "groups": 1}
    _assert_rows(
        sample,
        [
            ("other_norm", {"terms": 20, "input_elements": 240} | _shape(2, 6, 20)),
            # Scores and their product with the values: 6 keys, 10 + 10 wide, over 10 outputs per query.
            ("attention", {"terms": 12, "input_elements": 720} | _shape(2, 2, 6, 10)),
            ("matmul", {"terms": 10, "input_elements": 480} | _shape(2, 2, 6, 6)),
            ("softmax", {"terms": 6, "input_elements": 144} | _shape(2, 2, 6, 6)),
            ("move", {"input_elements": 144} | _shape(2, 2, 3, 2) | {"output_rest": 6}),
            (
                "convolution",
                window | {"kernel_width": 7, "stride": 1, "terms": 42, "input_elements": 240} | _shape(2, 8, 14),
            ),
            (
                # Every input element meets 4 x 2 weights, and there are as many inputs as outputs.
                "transposed_convolution",
                window | {"kernel_width": 2, "stride": 2, "terms": 8, "input_elements": 224} | _shape(2, 4, 28),
            ),
            # Four gates of 28 inputs and 16 states each.
            ("recurrent", {"terms": 4 * (28 + 16), "input_elements": 224} | _shape(2, 4, 16)),
            ("reduction", {"terms": 16, "input_elements": 128} | _shape(2, 4, 1)),
        ],
    )


def test_six_dimensions_keep_their_product(builder):
    x = builder.input(builder.N, 2, 3, 4, 5, 6)
    builder.node(OpKind.COPY, [x], builder.N, 2, 3, 4, 5, 6)
    builder.node(OpKind.COPY, [x], 7)
    rows = _rows(compute_features(builder.graph(1, 2), batch=9))
    assert rows[0][1] == pytest.approx({"input_elements": 6480, "output_rest": 30} | _shape(9, 2, 3, 4), rel=1e-5)
    assert rows[1][1] == pytest.approx({"input_elements": 6480, "output_0": 7}, rel=1e-5)


def test_constants_and_weights_are_no_input_elements(builder):
    x = builder.input(builder.N, 8, dtype=DType.INT64)
    builder.node(OpKind.EMBEDDING, [builder.weight(100, 4), x], builder.N, 8, 4)
    table = builder.weight(8, 4, role=TensorRole.BUFFER)
    builder.node(OpKind.ADD, [2, table], builder.N, 8, 4)
    rows = _rows(compute_features(builder.graph(), batch=2))
    assert [(name, round(values["input_elements"])) for name, values in rows] == [("move", 16), ("sum", 64)]


def test_the_columns():
    assert len(NODE_COLUMNS) == len(set(NODE_COLUMNS)) == NODE_FEATURES == 32
    assert len(STATIC_COLUMNS) == STATIC_FEATURES == 5
    assert NODE_COLUMNS[:_CLASSES] == tuple(OPERATOR_CLASSES)
    assert NODE_COLUMNS[19:27] == (
        "kernel_height",
        "kernel_width",
        "stride",
        "padding",
        "dilation",
        "groups",
        "terms",
        "input_elements",
    )


def test_every_kind_has_one_class():
    listed = [kind for kinds in OPERATOR_CLASSES.values() for kind in kinds]
    assert sorted(listed) == sorted(set(OpKind) - TRAINING_KINDS - {OpKind.VIEW})


def _every_kind(builder):
    x = builder.input(builder.N, 8, 4, 4)
    weight = builder.weight(8, 8, 3, 3)
    kinds = [kind for kind in OpKind if kind not in TRAINING_KINDS]
    for kind in kinds:
        builder.node(kind, [x, weight, weight], builder.N, 8, 4, 4)
    return builder.graph(*range(2, 2 + len(kinds)))


def test_every_kind_is_finite(builder):
    for sample in compute_features_of_batches(_every_kind(builder), [1, 10**6]):
        assert sample.node_features.shape == (len(OpKind) - len(TRAINING_KINDS) - 1, 32)
        assert np.isfinite(sample.node_features).all()
        assert (sample.node_features >= 0).all()
        assert np.isfinite(sample.static_features).all()


@pytest.mark.parametrize("make", [_residual_block, _branches, _every_kind])
def test_macs_are_those_of_the_workload(builder, make):
    graph = make(builder)
    macs = Workload.from_graph(graph).at([1, 5, 64]).macs.sum(axis=1)
    samples = compute_features_of_batches(graph, [1, 5, 64])
    assert [sample.static_features[0] for sample in samples] == macs.tolist()


def test_all_batches_at_once_equal_one_by_one(builder):
    graph = _residual_block(builder)
    together = compute_features_of_batches(graph, [1, 3, 128])
    for batch, sample in zip((1, 3, 128), together, strict=True):
        alone = compute_features(graph, batch=batch)
        for field in dataclasses.fields(sample):
            np.testing.assert_array_equal(getattr(sample, field.name), getattr(alone, field.name))
        assert sample.edge_index is together[0].edge_index
    types = [getattr(together[0], field.name).dtype for field in dataclasses.fields(together[0])]
    assert types == [np.float32, np.int64, np.float64]


@pytest.mark.parametrize("edges", list(EdgeMode))
def test_a_graph_without_operators(builder, edges):
    builder.input(builder.N, 3)
    sample = compute_features(builder.graph(), batch=2, edges=edges)
    assert sample.node_features.shape == (0, 32)
    assert sample.edge_index.shape == (2, 0)
    assert sample.static_features.tolist() == [0, 2, 0, 0, 0]


def test_numbers_and_empty_slices_have_no_sizes(builder):
    x = builder.input(builder.N, 3)
    builder.node(OpKind.REDUCE, [x], axes=(0, 1), function="sum")
    builder.node(OpKind.COPY, [x], type(builder.N)(1, -4), 3)
    rows = _rows(compute_features(builder.graph(1, 2), batch=2))
    assert rows == [
        ("reduction", pytest.approx({"terms": 6, "input_elements": 6}, rel=1e-5)),
        ("move", pytest.approx({"input_elements": 6, "output_1": 3}, rel=1e-5)),
    ]


@pytest.mark.parametrize("batches", [[0], [2, -1], [1.5], []])
def test_a_batch_must_be_a_whole_number(builder, batches):
    with pytest.raises(UsageError) as caught:
        compute_features_of_batches(_residual_block(builder), batches)
    assert caught.value.code == "batch.invalid"


def test_a_fixed_batch_is_kept(builder):
    graph = dataclasses.replace(_residual_block(builder), fixed_batch=4, fixed_batch_reason="it reshapes to 4")
    assert compute_features(graph, batch=4).static_features[1] == 4
    with pytest.raises(UnsupportedError, match="batch 4 only: it reshapes to 4") as caught:
        compute_features_of_batches(graph, [4, 8])
    assert caught.value.code == "graph.fixed_batch"


def _residual_stack(builder, blocks):
    y = builder.input(builder.N, 32, 16, 16)
    for _ in range(blocks):
        shortcut = y
        y = builder.node(
            OpKind.CONV, [y, builder.weight(32, 32, 3, 3)], builder.N, 32, 16, 16, **_convolution((3, 3), padding=1)
        )
        y = builder.node(OpKind.BATCH_NORM, [y, *(builder.weight(32) for _ in range(4))], builder.N, 32, 16, 16)
        y = builder.node(OpKind.RELU, [y], builder.N, 32, 16, 16)
        y = builder.node(OpKind.ADD, [y, shortcut], builder.N, 32, 16, 16)
    return builder.graph()


def _seconds(run, *, runs):
    best = np.inf
    for _ in range(runs):
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best


def test_time_grows_linearly(new_builder):
    small, large = (_residual_stack(new_builder(), blocks) for blocks in (250, 2500))
    # Ten times the nodes; a quadratic step would show as a hundred times.
    assert _seconds(lambda: compute_features(large, batch=8), runs=3) < 40 * _seconds(
        lambda: compute_features(small, batch=8), runs=3
    )


def test_onnx_and_pytorch_give_the_same_features(export_onnx):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from torch import nn

    import dippm

    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.depthwise = nn.Conv2d(8, 8, 5, padding=4, dilation=2, groups=8)
            self.pool = nn.MaxPool2d(3, stride=1, padding=1)
            self.up = nn.ConvTranspose2d(16, 4, 2, stride=2)
            self.head = nn.Linear(4, 10)

        def forward(self, x):
            x = self.stem(x)
            x = torch.cat([x + self.depthwise(x), self.pool(x)], dim=1)
            x = self.up(x).sigmoid().mean((2, 3))
            return self.head(torch.flatten(x, 1)).softmax(-1)

    module = Branched().eval()
    graphs = dippm.load(module, input=(3, 16, 16)), dippm.load(export_onnx(module, torch.randn(2, 3, 16, 16)))
    ours, theirs = (compute_features_of_batches(graph, [1, 6]) for graph in graphs)
    assert ours[0].node_features.shape == (12, 32)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine.node_features, other.node_features)
        np.testing.assert_array_equal(mine.edge_index, other.edge_index)
        np.testing.assert_array_equal(mine.static_features, other.static_features)
