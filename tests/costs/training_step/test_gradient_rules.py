"""Which kernels the backward pass of contractions, norms, pooling and recurrent layers runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.costs.contraction import PROJECTION
from dippm.graph import Node, OpKind, TensorRole

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


def _after_a_layer(builder):
    """An image that depends on a weight, so that what reads it has to hand a gradient on."""
    n = builder.N
    return builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), builder.weight(4, 3, 3, 3)], n, 4, 8, 8, **_CONV)


def test_a_convolution_has_a_kernel_for_its_input_one_for_its_weight_and_a_sum_for_its_bias(builder, gradients_of):
    n = builder.N
    x = _after_a_layer(builder)
    builder.node(OpKind.CONV, [x, builder.weight(6, 4, 3, 3), builder.weight(6)], n, 6, 8, 8, **_CONV)
    graph = builder.graph()
    of_input, of_weight, of_bias = gradients_of(graph, 1)
    assert (of_input.kind, of_weight.kind, of_bias.kind) == (
        OpKind.CONV_TRANSPOSE,
        OpKind.CONV_WEIGHT_GRAD,
        OpKind.REDUCE,
    )
    assert x in of_weight.inputs
    assert x not in of_input.inputs
    assert of_weight.attributes["is_transposed"] is False
    # The image itself needs no gradient.
    assert [node.kind for node in gradients_of(graph, 0)] == [OpKind.CONV_WEIGHT_GRAD]


def test_the_image_of_a_filter_that_is_not_trained_is_kept(builder, gradients_of):
    n = builder.N
    x = builder.node(OpKind.CONV, [builder.input(n, 3, 32, 32), builder.weight(8, 3, 3, 3)], n, 8, 32, 32)
    padded = builder.node(OpKind.PAD, [x], n, 8, 34, 34, function="constant")
    blur = builder.tensor(8, 1, 3, 3, role=TensorRole.BUFFER)
    builder.node(OpKind.CONV, [padded, blur], n, 8, 32, 32)
    nodes = gradients_of(builder.graph(), 2)
    assert [node.kind for node in nodes] == [OpKind.CONV_TRANSPOSE, OpKind.VIEW]
    assert nodes[1].inputs == (padded,)


def test_the_input_of_a_transposed_convolution_gets_its_gradient_by_a_convolution(builder, gradients_of):
    n = builder.N
    builder.node(OpKind.CONV_TRANSPOSE, [_after_a_layer(builder), builder.weight(4, 6, 3, 3)], n, 6, 8, 8, **_CONV)
    of_input, of_weight = gradients_of(builder.graph(), 1)
    assert of_input.kind is OpKind.CONV
    assert of_weight.attributes["is_transposed"] is True


def test_a_product_of_two_activations_has_two_products(builder, gradients_of):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 6, 8), builder.weight(8, 8)], n, 6, 8)
    y = builder.node(OpKind.LINEAR, [builder.input(n, 8, 5), builder.weight(5, 5)], n, 8, 5)
    builder.node(OpKind.MATMUL, [x, y], n, 6, 5)
    nodes = gradients_of(builder.graph(), 2)
    assert [node.kind for node in nodes if node.kind is not OpKind.VIEW] == [OpKind.MATMUL, OpKind.MATMUL]


def test_a_contraction_over_other_axes_is_one_kernel_of_each_input(builder, gradients_of):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 6, 8), builder.weight(8, 8)], n, 6, 8)
    builder.node(OpKind.MATMUL, [x, builder.weight(8, 6, 5)], n, 5, contracted=2)
    nodes = [node for node in gradients_of(builder.graph(), 1) if node.kind is not OpKind.REDUCE]
    assert [node.kind for node in nodes] == 2 * [OpKind.ELEMENTWISE_GRAD]


def test_attention_is_one_kernel_that_reads_what_it_kept(builder, gradients_of):
    n = builder.N
    heads = [builder.node(OpKind.LINEAR, [builder.input(n, 2, 8, 16), builder.weight(16, 16)], n, 2, 8, 16)] * 3
    result = builder.node(OpKind.ATTENTION, heads, n, 2, 8, 16)
    nodes = gradients_of(builder.graph(), 1)
    (gradient,) = (node for node in nodes if node.kind is OpKind.ATTENTION_GRAD)
    assert result in gradient.inputs
    assert len(gradient.outputs) == 3
    # All three are of one tensor and are added up.
    assert [node.source_op for node in nodes if node.kind is OpKind.ADD] == ["accumulate", "accumulate"]


def test_the_mask_of_attention_gets_a_gradient_where_it_is_a_weight(builder, gradients_of):
    n = builder.N
    heads = [builder.node(OpKind.LINEAR, [builder.input(n, 2, 8, 16), builder.weight(16, 16)], n, 2, 8, 16)] * 3
    builder.node(OpKind.ATTENTION, [*heads, builder.weight(1, 2, 8, 8)], n, 2, 8, 16)
    nodes = gradients_of(builder.graph(), 1)
    (gradient,) = (node for node in nodes if node.kind is OpKind.ATTENTION_GRAD)
    assert len(gradient.outputs) == 4
    # It is one for each score first, and then summed over the samples that the mask was repeated for.
    (total,) = (node for node in nodes if node.kind is OpKind.REDUCE)
    assert total.inputs == (gradient.outputs[3],)


def test_a_filter_that_is_computed_is_kept_where_the_image_needs_no_gradient(builder, gradients_of):
    n = builder.N
    centred = builder.node(OpKind.RELU, [builder.weight(6, 3, 3, 3)], 6, 3, 3, 3)
    builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), centred], n, 6, 8, 8, **_CONV)
    nodes = gradients_of(builder.graph(), 1)
    assert [node.kind for node in nodes] == [OpKind.VIEW, OpKind.CONV_WEIGHT_GRAD]
    assert nodes[0].inputs == (centred,)


def test_what_an_unknown_operator_writes_beside_its_result_is_kept(builder, gradients_of):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(8, 8)], n, 8)
    loss = builder.node(OpKind.UNKNOWN, [x], n)
    beside = builder.tensor(n, 8, 17)
    builder.nodes[-1] = replace(builder.nodes[-1], outputs=(loss, beside))
    (gradient,) = gradients_of(builder.graph(loss), 1)
    assert gradient.inputs[1:] == (x, beside)


def test_a_recurrent_layer_computes_the_gradients_of_input_and_weights_at_once(builder, gradients_of):
    n = builder.N
    weights = [builder.weight(64, 8), builder.weight(64, 16)]
    builder.node(OpKind.LSTM, [builder.input(n, 5, 8), *weights], n, 5, 16, hidden_size=16)
    (gradient,) = gradients_of(builder.graph(), 0)
    assert gradient.kind is OpKind.RECURRENT_GRAD
    assert len(gradient.outputs) == 3  # cuDNN writes the input's too, wanted or not


@pytest.mark.parametrize(
    ("kind", "shape", "told"),
    [
        (OpKind.LSTM, (5, 2 * 8), {PROJECTION: 8}),
        (OpKind.LSTM, (5, 2 * 16), {}),
        (OpKind.GRU, (5, 2 * 16), {}),
        (OpKind.LSTM, (2, 1, 8), {PROJECTION: 8}),  # as ONNX lays out directions
        (OpKind.LSTM, (2, 1, 16), {}),
    ],
)
def test_a_projected_state_is_told_to_the_gradient_and_no_other(builder, gradients_of, kind, shape, told):
    settings = {"hidden_size": 16, "num_directions": 2}
    builder.node(kind, [builder.input(builder.N, 5, 8), builder.weight(64, 8)], builder.N, *shape, **settings)
    (gradient,) = gradients_of(builder.graph(), 0)
    assert gradient.attributes == {**settings, "function": kind.value, **told}


@pytest.mark.parametrize("kind", [OpKind.MAX_POOL, OpKind.AVG_POOL])
def test_windows_of_pooling_read_the_input_and_what_was_kept(builder, gradients_of, kind):
    n = builder.N
    x = _after_a_layer(builder)
    builder.node(kind, [x], n, 4, 4, 4, kernel=(2, 2), stride=(2, 2))
    graph = builder.graph()
    (gradient,) = gradients_of(graph, 1)
    assert gradient.kind is OpKind.POOL_GRAD
    assert x in gradient.inputs
    # The index of every maximum is read as well.
    assert len(gradient.inputs) == (3 if kind is OpKind.MAX_POOL else 2)


def test_a_global_mean_is_a_mean_and_a_global_maximum_is_pooling(builder, gradients_of):
    n = builder.N
    builder.node(OpKind.GLOBAL_POOL, [_after_a_layer(builder)], n, 4, 1, 1)
    mean = builder.graph()
    assert [node.kind for node in gradients_of(mean, 1)] == [OpKind.VIEW, OpKind.ELEMENTWISE_GRAD]
    builder.nodes[1] = Node(
        kind=OpKind.GLOBAL_POOL,
        inputs=builder.nodes[1].inputs,
        outputs=builder.nodes[1].outputs,
        source_op="GlobalMaxPool",
    )
    assert [node.kind for node in gradients_of(builder.graph(), 1)] == [OpKind.POOL_GRAD]


def test_softmax_reads_its_result_and_not_its_input(builder, gradients_of):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 6, 8), builder.weight(8, 8)], n, 6, 8)
    y = builder.node(OpKind.SOFTMAX, [x], n, 6, 8, axes=(2,))
    (gradient,) = gradients_of(builder.graph(), 1)
    assert gradient.kind is OpKind.SOFTMAX_GRAD
    assert y in gradient.inputs
    assert x not in gradient.inputs


def test_an_operator_without_a_rule_reads_all_that_it_read(builder, gradients_of):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(8, 8)], n, 8)
    other = builder.input(n, 8)
    builder.node(OpKind.UNKNOWN, [x, other], n, 8)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert gradient.kind is OpKind.UNKNOWN
    assert gradient.inputs[1:] == (x, other)
    assert len(gradient.outputs) == 1  # the other is no weight and depends on none
