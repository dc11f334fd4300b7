"""Which nodes are linear layers, and which of them write a model's output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dippm
from dippm.graph import DType, Graph, OpKind, TensorRole
from dippm.graph.linear_layers import (
    count_all_quantised,
    count_frozen,
    count_quantised,
    find_multiplied_weights,
    find_output_layers,
    find_stacks,
    find_weight,
    is_of_layer,
    layer_of,
)


def _weights(graph: Graph) -> list[int]:
    return [find_weight(graph.tensors, node) for node in graph.nodes]


@pytest.mark.parametrize("kind", [OpKind.LINEAR, OpKind.MATMUL])
def test_a_product_with_a_matrix_that_is_stored_is_a_layer(builder: Any, kind: OpKind) -> None:
    n = builder.N
    x, weight = builder.input(n, 16), builder.weight(16, 16)
    frozen = builder.weight(16, 16, role=TensorRole.BUFFER)
    y = builder.node(kind, [x, weight], n, 16)
    builder.node(OpKind.RELU, [builder.node(kind, [y, frozen], n, 16)], n, 16)
    assert _weights(builder.graph()) == [weight, frozen, -1]


def test_products_of_activations_stacks_and_parts_of_weights_are_none(builder: Any) -> None:
    n = builder.N
    x, weight = builder.input(n, 16, 16), builder.weight(32, 16)
    part = builder.node(OpKind.VIEW, [weight], 16, 16, alias_of=weight)
    builder.node(OpKind.MATMUL, [x, x], n, 16, 16)
    builder.node(OpKind.MATMUL, [x, builder.weight(4, 16, 16)], n, 16, 16)
    builder.node(OpKind.LINEAR, [x, part], n, 16, 16)
    assert _weights(builder.graph()) == [-1] * 4


def test_a_whole_weight_is_found_behind_a_view_and_a_copy(builder: Any) -> None:
    n = builder.N
    x, weight = builder.input(n, 16), builder.weight(32, 16)
    copy = builder.node(OpKind.CAST, [weight], 32, 16)
    turned = builder.node(OpKind.VIEW, [weight], 16, 32, alias_of=weight)
    builder.node(OpKind.MATMUL, [x, turned], n, 32)
    builder.node(OpKind.LINEAR, [x, copy], n, 32)
    graph = builder.graph()
    assert _weights(graph) == [-1, -1, weight, -1]
    assert find_weight(graph.tensors, graph.nodes[-1], cast_from={copy: weight}) == weight


def test_layers_that_were_frozen_before_stay_as_they_are_too(builder: Any) -> None:
    trained, frozen = builder.weight(16, 16), builder.weight(8, 16, role=TensorRole.BUFFER)
    builder.weight(5, role=TensorRole.BUFFER)
    x = builder.node(OpKind.LINEAR, [builder.input(builder.N, 16), trained], builder.N, 16)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, frozen], builder.N, 8))
    tensors = list(graph.tensors)
    tensors[frozen] = replace(tensors[frozen], name="head.weight")
    assert count_frozen(replace(graph, tensors=tuple(tensors))) == 16 * 16 + 8 * 16


def test_quantised_weights_are_those_that_are_multiplied_with(builder: Any) -> None:
    n = builder.N
    x, whole = builder.input(n, 8, 16), builder.weight(16, 16)
    packed, experts = builder.weight(16, 16, dtype=DType.UINT4), builder.weight(8, 16, 16, dtype=DType.FLOAT8)
    builder.weight(64, dtype=DType.UINT8, role=TensorRole.BUFFER)
    for weight in (whole, packed, packed, experts):
        x = builder.node(OpKind.MATMUL, [x, weight], n, 8, 16)
    assert count_quantised(builder.graph()) == {DType.UINT4: 256, DType.FLOAT8: 2048}


def test_what_is_unpacked_before_it_is_multiplied_with_is_quantised_as_well(builder: Any) -> None:
    n = builder.N
    stored, packed = builder.weight(16, 16, dtype=DType.INT8), builder.weight(16, 16, dtype=DType.UINT4)
    builder.weight(64, dtype=DType.UINT8, role=TensorRole.BUFFER)
    whole = builder.node(OpKind.DEQUANTIZE, [stored], 16, 16)
    x = builder.node(OpKind.MATMUL, [builder.input(n, 8, 16), whole], n, 8, 16)
    builder.node(OpKind.MATMUL, [x, packed], n, 8, 16)
    assert count_all_quantised(builder.graph()) == {DType.INT8: 256, DType.UINT4: 256}
    assert dippm.predict(builder.graph()).model.quantised_weights == {"int8": 256, "uint4": 256}


def test_the_layer_of_the_first_output_is_found_through_views_casts_and_softmax(builder: Any) -> None:
    n = builder.N
    x, first, last, other = builder.input(n, 16), *(builder.weight(16, 16) for _ in range(3))
    hidden = builder.node(OpKind.RELU, [builder.node(OpKind.LINEAR, [x, first], n, 16)], n, 16)
    scores = builder.node(OpKind.LINEAR, [hidden, last], n, 16)
    second = builder.node(OpKind.LINEAR, [hidden, other], n, 16)
    capped = builder.node(OpKind.TANH, [builder.node(OpKind.DIV, [scores, builder.weight(1)], n, 16)], n, 16)
    result = builder.node(OpKind.SOFTMAX, [builder.node(OpKind.CAST, [capped], n, 16)], n, 16)
    assert find_output_layers(builder.graph(result, second)) == {last}
    assert find_output_layers(builder.graph(hidden)) == {first}
    # A residual reads more than the last layer.
    added = builder.node(OpKind.ADD, [scores, hidden], n, 16)
    assert find_output_layers(builder.graph(added)) == frozenset()


def test_a_layer_goes_by_the_name_of_its_weight(builder: Any) -> None:
    weight = builder.weight(4, 4)
    for name, expected in (("a.b.weight", "a.b"), ("onnx::MatMul_5", "onnx::MatMul_5")):
        assert layer_of(replace(builder.tensors[weight], name=name)) == expected


@pytest.mark.parametrize(
    ("role", "name", "expected"),
    [
        (TensorRole.PARAMETER, "onnx::MatMul_5", True),
        (TensorRole.PARAMETER, "experts.down_proj", True),
        (TensorRole.BUFFER, "layers.0.q_proj.weight", True),
        (TensorRole.BUFFER, "mel_filters", False),
        (TensorRole.ACTIVATION, "a.weight", False),
    ],
)
def test_a_frozen_weight_is_a_layers_and_a_table_is_not(
    builder: Any, role: TensorRole, name: str, expected: bool
) -> None:
    weight = builder.tensors[builder.weight(4, 4)]
    assert is_of_layer(replace(weight, role=role, name=name)) is expected


def test_weights_that_are_multiplied_are_found_in_stacks_and_behind_views(builder: Any) -> None:
    n = builder.N
    x, matrix, stack = builder.input(n, 16), builder.weight(16, 16), builder.weight(4, 16, 16)
    part = builder.node(OpKind.VIEW, [stack], 16, 16, alias_of=stack)
    x = builder.node(OpKind.LINEAR, [x, matrix, builder.weight(16)], n, 16)
    x = builder.node(OpKind.MATMUL, [x, part], n, 16)
    graph = builder.graph(builder.node(OpKind.MATMUL, [x, x], n, 16))
    assert find_multiplied_weights(graph) == {matrix, stack}
    assert find_stacks(graph) == {stack}
