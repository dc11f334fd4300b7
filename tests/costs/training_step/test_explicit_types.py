"""Autocast written down: formats of tensors and casts as nodes."""

from __future__ import annotations

import pytest

from dippm.costs import Precision
from dippm.costs.training_step.explicit_types import with_explicit_types
from dippm.graph import DType, OpKind, TensorRole


def test_autocast_keeps_half_precision_copies_for_the_backward_pass(network, train):
    training = train(network(), precision=Precision.AMP)
    tensors, nodes = training.graph.tensors, training.graph.nodes
    (weight_gradient,) = (node for node in nodes if node.kind is OpKind.CONV_WEIGHT_GRAD)
    assert {tensors[index].dtype for index in (*weight_gradient.inputs, *weight_gradient.outputs)} == {DType.FLOAT16}
    assert {tensor.dtype for tensor in tensors if tensor.role is TensorRole.GRADIENT} == {DType.FLOAT32}
    (norm,) = (node for node in nodes if node.kind is OpKind.BATCH_NORM)
    assert [tensors[index].dtype for index in norm.outputs] == [DType.FLOAT16, DType.FLOAT32, DType.FLOAT32]


def _casts(graph):
    return [node for node in graph.nodes if node.source_op == "autocast"]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32, Precision.FP32_STRICT])
def test_full_precision_is_written_down_already(network, precision):
    graph = network()
    assert with_explicit_types(graph, precision) == (graph, frozenset())


@pytest.mark.parametrize(("precision", "dtype"), [(Precision.AMP, DType.FLOAT16), (Precision.AMP_BF16, DType.BFLOAT16)])
def test_a_cast_of_a_weight_is_kept_and_read_by_all(builder, precision, dtype):
    n = builder.N
    weight = builder.weight(16, 16)
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), weight], n, 16)
    builder.node(OpKind.LINEAR, [x, weight], n, 16)
    graph, kept = with_explicit_types(builder.graph(), precision)
    first, second = (node for node in graph.nodes if node.kind is OpKind.LINEAR)
    assert first.inputs[1] == second.inputs[1] != weight
    assert kept == {first.inputs[1]}
    assert graph.tensors[weight].dtype is DType.FLOAT32
    assert {graph.tensors[index].dtype for node in (first, second) for index in (*node.inputs, *node.outputs)} == {
        dtype
    }
    # The image and the weight; what the first layer wrote is of that format already.
    assert len(_casts(graph)) == 2


def test_half_precision_throughout_needs_no_casts(builder):
    n = builder.N
    builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    tokens = builder.input(n, 4, dtype=DType.INT64)
    graph, kept = with_explicit_types(builder.graph(), Precision.BF16)
    assert (_casts(graph), kept) == ([], frozenset())
    assert [tensor.dtype for tensor in graph.tensors[:3]] == 3 * [DType.BFLOAT16]
    assert graph.tensors[tokens].dtype is DType.INT64


def test_one_format_of_16_bits_is_written_down_as_the_other(builder):
    n = builder.N
    builder.node(OpKind.LINEAR, [builder.input(n, 4), builder.weight(4, 4, dtype=DType.BFLOAT16)], n, 4)
    kept = with_explicit_types(builder.graph(), Precision.AMP)[0].tensors
    given = with_explicit_types(builder.graph(), Precision.FP16)[0].tensors
    assert (kept[1].dtype, given[1].dtype) == (DType.BFLOAT16, DType.FLOAT16)


def test_weights_in_the_other_format_of_16_bits_are_cast_at_every_use(builder):
    # Autocast keeps copies of FP32 weights alone: can_try_cache of ATen/autocast_mode.cpp.
    n = builder.N
    weight = builder.weight(16, 16, dtype=DType.BFLOAT16)
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), weight], n, 16)
    builder.node(OpKind.LINEAR, [x, weight], n, 16)
    graph, kept = with_explicit_types(builder.graph(), Precision.AMP)
    assert kept == frozenset()
    assert [node.inputs for node in _casts(graph)].count((weight,)) == 2
    layers = [node for node in graph.nodes if node.kind is OpKind.LINEAR]
    assert {graph.tensors[index].dtype for node in layers for index in (*node.inputs, *node.outputs)} == {DType.FLOAT16}


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP])
def test_an_autocast_of_the_models_own_is_written_down_at_every_precision(builder, precision):
    n = builder.N
    weight = builder.weight(16, 16)
    builder.node(OpKind.LINEAR, [builder.input(n, 16), weight], n, 16, lowers_to="bfloat16", other=1)
    graph, kept = with_explicit_types(builder.graph(), precision)
    (layer,) = (node for node in graph.nodes if node.kind is OpKind.LINEAR)
    assert {graph.tensors[index].dtype for index in (*layer.inputs, *layer.outputs)} == {DType.BFLOAT16}
    assert kept == {layer.inputs[1]}
    assert len(_casts(graph)) == 2
    # It is not to be done again.
    assert layer.attributes == {"other": 1}


def test_operands_of_products_are_cast_before_they_are_repeated(builder):
    # torch.matmul(shared, x) under autocast casts 8 matrices; the copy that its product reads has 8 of each sample.
    n = builder.N
    shared = builder.weight(1, 8, 64, 64)
    repeated = builder.node(OpKind.VIEW, [shared], n, 8, 64, 64, alias_of=shared, function="expand")
    copy = builder.node(OpKind.COPY, [repeated], n, 8, 64, 64, is_lowered=True)
    builder.node(OpKind.MATMUL, [copy, builder.input(n, 8, 64, 16)], n, 8, 64, 16)
    graph, kept = with_explicit_types(builder.graph(), Precision.AMP)
    (cast,) = (node.outputs[0] for node in _casts(graph) if node.inputs == (shared,))
    assert kept == {cast}
    assert graph.tensors[cast].shape == graph.tensors[shared].shape
    (read,) = next(node.inputs for node in graph.nodes if node.kind is OpKind.COPY)
    assert (graph.tensors[read].alias_of, graph.tensors[read].dtype) == (cast, DType.FLOAT16)
    assert graph.tensors[read].shape == graph.tensors[repeated].shape
