"""Gradients of element-wise operators and reductions: what they read, and what that keeps alive."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.graph import DType, Node, OpKind


def test_the_gradient_reads_the_mask_and_not_the_input(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 64)
    hidden = builder.node(OpKind.LINEAR, [x, builder.weight(128, 64)], n, 128)
    kept, mask = builder.tensor(n, 128), builder.tensor(n, 128, dtype=DType.BOOL)
    builder.nodes.append(Node(kind=OpKind.DROPOUT, inputs=(hidden,), outputs=(kept, mask)))
    graph = builder.graph(builder.node(OpKind.LINEAR, [kept, builder.weight(10, 128)], n, 10))
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD, precision=Precision.FP32))
    nodes = list(zip(step.graph.nodes, step.phase, strict=True))
    (gradient,) = (node for node, phase in nodes if phase == Phase.BACKWARD and mask in node.inputs)
    assert gradient.kind is OpKind.ELEMENTWISE_GRAD
    assert gradient.attributes["function"] == "dropout"
    assert hidden not in gradient.inputs
    given_back = {index: position for position, (node, _) in enumerate(nodes) for index in node.releases}
    assert given_back[hidden] < step.graph.nodes.index(gradient) == given_back[mask]


def _gradient_of(builder: Any, gradients_of: Any, kind: OpKind, *more: int, **attributes: Any) -> tuple[int, int, Node]:
    """Input, result and the last gradient node of an operator behind a layer."""
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    y = builder.node(kind, [x, *more], n, 64, **attributes)
    return x, y, gradients_of(builder.graph(), 1)[-1]


@pytest.mark.parametrize("kind", [OpKind.RELU, OpKind.SIGMOID, OpKind.TANH])
def test_some_activations_read_their_result(builder: Any, gradients_of: Any, kind: OpKind) -> None:
    x, y, gradient = _gradient_of(builder, gradients_of, kind)
    assert y in gradient.inputs
    assert x not in gradient.inputs


@pytest.mark.parametrize("kind", [OpKind.GELU, OpKind.SILU, OpKind.LEAKY_RELU, OpKind.ELU])
def test_other_activations_read_their_input(builder: Any, gradients_of: Any, kind: OpKind) -> None:
    x, y, gradient = _gradient_of(builder, gradients_of, kind)
    assert x in gradient.inputs
    assert y not in gradient.inputs


@pytest.mark.parametrize(("function", "reads"), [("exp", "result"), ("log", "input"), ("neg", "nothing")])
def test_functions_read_no_more_than_their_derivative(
    builder: Any, gradients_of: Any, function: str, reads: str
) -> None:
    x, y, gradient = _gradient_of(builder, gradients_of, OpKind.UNARY, function=function)
    assert gradient.attributes["function"] == function
    assert gradient.inputs[1:] == {"result": (y,), "input": (x,), "nothing": ()}[reads]


def test_what_is_taken_away_has_the_gradient_negated(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    y = builder.tensor(n, 64)
    builder.nodes.append(Node(kind=OpKind.SUB, inputs=(x,), outputs=(y,), source_op="aten.rsub"))
    (negated,) = gradients_of(builder.graph(y), 1)
    assert (negated.kind, negated.attributes["function"]) == (OpKind.UNARY, "neg")


def test_a_product_reads_the_other_factor(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    scale = builder.weight(64)
    builder.node(OpKind.MUL, [x, scale], n, 64)
    of_scale, of_x, total = gradients_of(builder.graph(), 1)
    assert of_x.inputs[1:] == (scale,)
    assert of_scale.inputs[1:] == (x,)
    # The scale was broadcast over the batch: its gradient is summed over it.
    assert (total.kind, total.attributes["function"]) == (OpKind.REDUCE, "sum")


def test_a_product_of_complex_numbers_reads_conjugated_copies(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    x, weight = builder.input(n, 64, dtype=DType.COMPLEX64), builder.weight(64, 64, dtype=DType.COMPLEX64)
    x = builder.node(OpKind.LINEAR, [x, weight], n, 64, dtype=DType.COMPLEX64)
    scale = builder.weight(64)
    builder.node(OpKind.MUL, [x, scale], n, 64, dtype=DType.COMPLEX64)
    conjugate, of_scale, of_x, real, total = gradients_of(builder.graph(), 1)
    assert (conjugate.inputs, conjugate.attributes["function"]) == ((x,), "conj_physical")
    assert of_scale.inputs[1:] == conjugate.outputs
    assert of_x.inputs[1:] == (scale,)  # which is real
    assert (real.kind, real.attributes["function"], real.inputs) == (OpKind.VIEW, "real", of_scale.outputs)
    assert (total.kind, total.inputs) == (OpKind.REDUCE, real.outputs)


@pytest.mark.parametrize("function", ["floor", "ceil", "round", "trunc", "sign", "sgn"])
def test_flat_functions_hand_on_zeros(builder: Any, gradients_of: Any, function: str) -> None:
    _, _, gradient = _gradient_of(builder, gradients_of, OpKind.UNARY, function=function)
    assert (gradient.kind, gradient.attributes["function"], gradient.inputs) == (OpKind.FILL, "zeros", ())


_COMPLEX = DType.COMPLEX64


@pytest.mark.parametrize(
    ("of_x", "of_y", "bins", "kinds"),
    [
        (_COMPLEX, _COMPLEX, 64, [OpKind.FFT]),
        (DType.FLOAT32, _COMPLEX, 64, [OpKind.FFT, OpKind.VIEW]),
        # Half of the frequencies are filled up with zeros, and those in between stand for two each.
        (DType.FLOAT32, _COMPLEX, 33, [OpKind.PAD, OpKind.FFT, OpKind.VIEW]),
        (_COMPLEX, DType.FLOAT32, 126, [OpKind.FFT, OpKind.VIEW, OpKind.MUL]),
    ],
)
def test_a_transform_is_transformed_back(
    builder: Any, gradients_of: Any, of_x: DType, of_y: DType, bins: int, kinds: list[OpKind]
) -> None:
    n = builder.N
    x = builder.node(
        OpKind.LINEAR, [builder.input(n, 64, dtype=of_x), builder.weight(64, 64, dtype=of_x)], n, 64, dtype=of_x
    )
    builder.node(OpKind.FFT, [x], n, bins, dtype=of_y, axes=(1,))
    graph = builder.graph()
    nodes = gradients_of(graph, 1)
    assert [node.kind for node in nodes] == kinds
    (back,) = (node for node in nodes if node.kind is OpKind.FFT)
    tensors = make_training_graph(graph, TrainingSettings()).graph.tensors
    assert tensors[back.outputs[0]].shape == tensors[x].shape
    assert tensors[back.outputs[0]].dtype is _COMPLEX


def test_a_sum_hands_its_gradient_on_without_work(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    layers = [builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64) for _ in range(2)]
    for kind, kinds in ((OpKind.ADD, []), (OpKind.SUB, [OpKind.UNARY])):
        builder.node(kind, layers, n, 64)
        assert [node.kind for node in gradients_of(builder.graph(), 2)] == kinds
        builder.nodes.pop()


def test_a_choice_keeps_its_mask_alone(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    mask = builder.input(n, 64, dtype=DType.BOOL)
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    builder.node(OpKind.BINARY, [mask, x, x], n, 64, function="where")
    gradients = [node for node in gradients_of(builder.graph(), 1) if node.kind is OpKind.ELEMENTWISE_GRAD]
    assert [node.inputs[1:] for node in gradients] == [(mask,), (mask,)]


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        ("sum", [OpKind.VIEW]),
        ("mean", [OpKind.VIEW, OpKind.ELEMENTWISE_GRAD]),
        ("norm", [OpKind.VIEW, OpKind.DIV, OpKind.MUL]),
    ],
)
def test_reductions_expand_their_gradient(builder: Any, gradients_of: Any, function: str, kinds: list[OpKind]) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 4, 64), builder.weight(64, 64)], n, 4, 64)
    builder.node(OpKind.REDUCE, [x], n, 4, function=function, axes=(2,))
    nodes = gradients_of(builder.graph(), 1)
    assert [node.kind for node in nodes] == kinds
    assert any(x in node.inputs for node in nodes) == (function == "norm")


@pytest.mark.parametrize(("cell", "sums"), [("lstm_cell", 1), ("gru_cell", 2)])
def test_a_step_of_a_recurrent_layer_goes_back_in_one_kernel(builder: Any, cell: str, sums: int) -> None:
    n, width = builder.N, 64 * (4 if cell == "lstm_cell" else 3)
    x = builder.input(n, 64)
    gates = [builder.node(OpKind.LINEAR, [x, builder.weight(width, 64)], n, width) for _ in range(2)]
    state, biases = builder.input(n, 64), [builder.weight(width) for _ in range(2)]
    after, kept = builder.tensor(n, 64), builder.tensor(n, width)
    builder.nodes.append(
        Node(
            kind=OpKind.BINARY,
            inputs=(*gates, state, *biases),
            outputs=(after, kept),
            attributes={"function": cell},
        )
    )
    graph = builder.graph(builder.node(OpKind.LINEAR, [after, builder.weight(10, 64)], n, 10))
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD, precision=Precision.FP32))
    (back,) = (node for node in step.graph.nodes if node.attributes.get("function") == cell and kept in node.inputs)
    assert back.kind is OpKind.ELEMENTWISE_GRAD
    assert len(back.outputs) == sums + 1
    reduced = [node for node in step.graph.nodes if node.kind is OpKind.REDUCE and node.inputs[0] in back.outputs]
    assert len(reduced) == sums
    assert set(biases) <= set(step.trained)
    # Autograd keeps the gates, too, which the kernel does not read.
    position = step.graph.nodes.index(back)
    assert not any(set(gates) & set(node.releases) for node in step.graph.nodes[: position - 3])


def test_the_gradient_of_a_product_divides_it_by_each_factor(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    y = builder.node(OpKind.REDUCE, [x], n, 1, function="prod")
    divided, spread = gradients_of(builder.graph(), 1)[-2:]
    assert (divided.kind, divided.inputs) == (OpKind.DIV, (y, x))
    assert spread.kind is OpKind.MUL
    assert divided.outputs[0] in spread.inputs
