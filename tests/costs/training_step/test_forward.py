"""What the forward pass keeps for the backward pass."""

from __future__ import annotations

import pytest

from dippm.costs.training_step.forward import append_forward_node
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.costs.training_step.training_graph import Phase
from dippm.graph import DType, OpKind


@pytest.mark.parametrize(("kind", "copies"), [(OpKind.SILU, 1), (OpKind.RELU, 0)])
def test_an_in_place_activation_that_needs_its_input_keeps_a_copy(builder, kind, copies, train, kinds):
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 16), builder.weight(16, 16)], n, 16)
    graph = builder.graph(builder.node(kind, [x], n, 16, alias_of=x))
    assert kinds(train(graph), Phase.FORWARD).count(OpKind.COPY) == copies


@pytest.mark.parametrize(
    ("kind", "attributes", "kept"),
    [
        (OpKind.BATCH_NORM, {}, [["4"], ["4"]]),
        (OpKind.LAYER_NORM, {"axes_size": 8}, [["N", "4", "6", "1"]] * 2),
        (OpKind.RMS_NORM, {"axes_size": 8}, [["N", "4", "6", "1"]]),
        (OpKind.GROUP_NORM, {"groups": 2}, [["N", "2"]] * 2),
        (OpKind.INSTANCE_NORM, {}, [["N", "4"]] * 2),
        (OpKind.MAX_POOL, {"kernel": (1, 1), "stride": (1, 1)}, [["N", "4", "6", "8"]]),
        (OpKind.LSTM, {"num_layers": 2}, [["8", "N", "4", "6", "8"]]),
        (OpKind.GRU, {}, [["3", "N", "4", "6", "8"]]),
        (OpKind.RELU, {}, []),
    ],
)
def test_what_an_operator_writes_for_its_gradient(builder, kind, attributes, kept):
    builder.node(kind, [builder.input(builder.N, 4, 6, 8)], builder.N, 4, 6, 8, **attributes)
    graph = builder.graph()
    step = StepBuilder(graph)
    node = append_forward_node(step, graph.nodes[0])
    assert [[str(dim) for dim in step.shape(index)] for index in node.outputs[1:]] == kept
    if kind is OpKind.MAX_POOL:
        assert step.dtype(node.outputs[1]) is DType.INT64
    assert node.attributes.get("is_training", False) == (kind is OpKind.BATCH_NORM)
    # A block that is computed again keeps nothing.
    assert append_forward_node(step, graph.nodes[0], is_kept=False).outputs == graph.nodes[0].outputs


def test_attention_keeps_a_number_per_query_and_a_mask_of_booleans_as_numbers(builder):
    query = builder.input(builder.N, 2, 6, 8, dtype=DType.FLOAT16)
    mask = builder.input(builder.N, 1, 6, 6, dtype=DType.BOOL)
    builder.node(OpKind.ATTENTION, [query, query, query, mask], builder.N, 2, 6, 8, dtype=DType.FLOAT16)
    graph = builder.graph()
    step = StepBuilder(graph)
    sums, numbers = append_forward_node(step, graph.nodes[0]).outputs[1:]
    assert (step.shape(sums), step.dtype(sums)) == (step.shape(query)[:-1], DType.FLOAT32)
    assert (step.shape(numbers), step.dtype(numbers)) == (step.shape(mask), DType.FLOAT16)
