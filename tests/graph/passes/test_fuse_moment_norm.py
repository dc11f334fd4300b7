from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_moment_norm import fuse_moment_norm


def write_norm(builder: Any, *, gamma: bool, beta: bool, is_negated: bool, last_axis: bool = True) -> None:
    whole, axes = (builder.N, 16, 64), ((2,) if last_axis else (1,))
    one = (builder.N, 16, 1) if last_axis else (builder.N, 1, 64)
    sizes = (1, 1, 64) if last_axis else (1, 16, 1)
    x = builder.input(*whole)
    mean = builder.node(OpKind.REDUCE, [x], *one, function="mean", axes=axes)
    centred = builder.node(OpKind.SUB, [x, mean], *whole)
    square = builder.node(OpKind.MUL, [centred, centred], *whole)
    variance = builder.node(OpKind.REDUCE, [square], *one, function="mean", axes=axes)
    total = builder.node(OpKind.ADD, [variance], *one, scalar=1e-5)
    root = builder.node(OpKind.UNARY, [total], *one, function="sqrt")
    factor = builder.node(OpKind.UNARY, [root], *one, function="reciprocal")
    if gamma:
        factor = builder.node(OpKind.MUL, [factor, builder.weight(*sizes)], *whole)
    scaled = builder.node(OpKind.MUL, [x, factor], *whole)
    if is_negated:
        mean = builder.node(OpKind.UNARY, [mean], *one, function="neg")
    moved = builder.node(OpKind.MUL, [mean, factor], *whole)
    if beta:
        weight = builder.weight(*sizes)
        kind, inputs = (OpKind.ADD, [moved, weight]) if is_negated else (OpKind.SUB, [weight, moved])
        moved = builder.node(kind, inputs, *whole)
    builder.node(OpKind.ADD if is_negated or beta else OpKind.SUB, [scaled, moved], *whole)


def fused(builder: Any) -> Any:
    editor = GraphEditor(builder.graph())
    fuse_moment_norm(editor)
    return editor.to_graph()


@pytest.mark.parametrize("is_negated", [True, False])
@pytest.mark.parametrize(("gamma", "beta"), [(True, True), (True, False), (False, False)])
def test_the_form_with_moments_is_one_layer_norm(builder: Any, gamma: bool, beta: bool, is_negated: bool) -> None:
    write_norm(builder, gamma=gamma, beta=beta, is_negated=is_negated)
    graph = fused(builder)
    (norm,) = graph.nodes
    assert (norm.kind, norm.attributes) == (OpKind.LAYER_NORM, {"axes_size": 64})
    assert (norm.inputs[0], len(norm.inputs)) == (0, 1 + gamma + beta)
    assert graph.parameter_count == 64 * (gamma + beta)


def test_a_norm_over_another_dimension_stays(builder: Any) -> None:
    write_norm(builder, gamma=True, beta=True, is_negated=True, last_axis=False)
    assert OpKind.LAYER_NORM not in {node.kind for node in fused(builder).nodes}


def test_another_mean_is_no_norm(builder: Any) -> None:
    x, factor = builder.input(builder.N, 64), builder.input(builder.N, 64)
    mean = builder.node(OpKind.REDUCE, [x], builder.N, 1, function="mean", axes=(1,))
    scaled = builder.node(OpKind.MUL, [x, factor], builder.N, 64)
    moved = builder.node(OpKind.MUL, [mean, factor], builder.N, 64)
    builder.node(OpKind.SUB, [scaled, moved], builder.N, 64)
    assert len(fused(builder).nodes) == 4
