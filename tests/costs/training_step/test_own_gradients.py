"""Backward passes that a model defines itself, among those of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dippm.costs.conditions import LowRankAdapters
from dippm.costs.precision import Precision
from dippm.costs.training_step.own_gradients import with_own_gradients_apart, with_own_gradients_behind
from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.graph import OWN_GRADIENT, DType, Graph, Node, OpKind, OwnGradient, TensorRole


def _graph(builder: Any) -> Graph:
    """A linear layer, a sigmoid with a gradient of its own that reads its result twice, and a linear layer."""
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(8, 8)], n, 8)
    y = builder.node(OpKind.SIGMOID, [x], n, 8, **{OWN_GRADIENT: "mine_1"})
    z = builder.node(OpKind.LINEAR, [y, builder.weight(4, 8)], n, 4)
    given, square, result = (builder.tensor(n, 8, role=TensorRole.ACTIVATION) for _ in range(3))
    own = OwnGradient(
        name="mine_1",
        outputs=(y,),
        given=(given,),
        inputs=(x,),
        results=(result,),
        kept=(y,),
        nodes=(
            Node(kind=OpKind.MUL, inputs=(y, y), outputs=(square,)),
            Node(kind=OpKind.MUL, inputs=(given, square), outputs=(result,), releases=(square,)),
        ),
    )
    graph: Graph = replace(builder.graph(z), own_gradients=(own,))
    return graph


def _backward(training: TrainingGraph, twin: int) -> list[Node]:
    rows = zip(training.graph.nodes, training.phase, training.twin, strict=True)
    return [node for node, phase, of in rows if phase == Phase.BACKWARD and of == twin]


def test_its_operators_run_in_the_place_of_the_rules(builder: Any, train: Callable[..., TrainingGraph]) -> None:
    training = train(_graph(builder))
    assert [node.kind for node in _backward(training, 1)] == [OpKind.MUL, OpKind.MUL]
    square, product = _backward(training, 1)
    assert product.inputs[1] == square.outputs[0]
    assert product.inputs[0] in _backward(training, 2)[0].outputs
    assert product.outputs[0] in {index for node in _backward(training, 0) for index in node.inputs}
    assert len(training.trained) == 2
    # The square goes with the last operator that reads it, before the sigmoid that is kept.
    assert {square.outputs[0], square.inputs[0]} <= set(product.releases)


def test_without_it_the_rules_run(builder: Any, train: Callable[..., TrainingGraph]) -> None:
    training = train(replace(_graph(builder), own_gradients=()))
    assert [node.kind for node in _backward(training, 1)] == [OpKind.ELEMENTWISE_GRAD]


def test_its_tensors_have_the_types_of_what_they_are_gradients_of(
    builder: Any, train: Callable[..., TrainingGraph]
) -> None:
    training = train(_graph(builder), precision=Precision.AMP)
    products = [node for node in training.graph.nodes if node.kind is OpKind.MUL]
    assert [training.graph.tensors[node.outputs[0]].dtype for node in products] == [DType.FLOAT16] * 2


def test_a_block_that_is_computed_again_reads_what_was(builder: Any, train: Callable[..., TrainingGraph]) -> None:
    graph = _graph(builder)
    graph = replace(graph, nodes=tuple(replace(node, scope=f"layers.{i}.x") for i, node in enumerate(graph.nodes)))
    training = train(graph, is_checkpointed=True)
    sigmoids = [node for node in training.graph.nodes if node.kind is OpKind.SIGMOID]
    square = next(node for node in training.graph.nodes if node.kind is OpKind.MUL)
    assert len(sigmoids) == 2
    assert square.inputs == (sigmoids[1].outputs[0],) * 2


def test_a_graph_comes_back_from_behind(builder: Any) -> None:
    graph = _graph(builder)
    behind = with_own_gradients_behind(graph)
    assert len(behind.nodes) == len(graph.nodes) + 3
    assert with_own_gradients_apart(behind) == graph


def test_adapters_stand_beside_layers_of_the_forward_pass_alone(
    builder: Any, train: Callable[..., TrainingGraph]
) -> None:
    n = builder.N
    weight, x = builder.weight(8, 8), builder.input(n, 8)
    first = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], n, 8)
    y = builder.node(OpKind.LINEAR, [first, weight], n, 8, **{OWN_GRADIENT: "mine_1"})
    builder.tensors[weight] = replace(builder.tensors[weight], name="mine.weight")
    z = builder.node(OpKind.LINEAR, [y, builder.weight(4, 8)], n, 4)
    given, result = builder.tensor(n, 8), builder.tensor(n, 8)
    backward = Node(kind=OpKind.LINEAR, inputs=(given, weight), outputs=(result,))
    own = OwnGradient(
        name="mine_1", outputs=(y,), given=(given,), inputs=(first,), results=(result,), nodes=(backward,)
    )

    def count_linear(own: OwnGradient, targets: tuple[str, ...]) -> int:
        graph = replace(builder.graph(z), own_gradients=(own,))
        training = train(graph, adapters=LowRankAdapters(rank=2, targets=targets))
        assert len(training.trained) == 2
        return sum(node.kind is OpKind.LINEAR for node in training.graph.nodes)

    # Three layers, two of the adapter, and the backward pass; that of a layer with an adapter follows the rules.
    assert count_linear(own, ("t2",)) == 6
    assert count_linear(replace(own, kept=(weight,)), ("mine",)) == 5
