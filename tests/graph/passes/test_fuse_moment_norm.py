from math import prod
from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_moment_norm import fuse_moment_norm


def write_norm(builder: Any, *, gamma: bool, beta: bool, is_negated: bool) -> None:
    whole, axes, one, sizes = (builder.N, 16, 64), (2,), (builder.N, 16, 1), (1, 1, 64)
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


def attach(
    builder: Any, x: int, axes: tuple[int, ...], weight: tuple[int, ...], *, mean: int, detour: Any = None
) -> int:
    """Scale and shift of a norm of ``x`` whose mean is given, the detour between the mean and what subtracts it."""
    whole = builder.tensors[x].shape
    one = tuple(1 if axis in axes else dim for axis, dim in enumerate(whole))
    subtracted = mean if detour is None else detour(mean)
    centred = builder.node(OpKind.SUB, [x, subtracted], *whole)
    square = builder.node(OpKind.MUL, [centred, centred], *whole)
    variance = builder.node(OpKind.REDUCE, [square], *one, function="mean", axes=axes)
    total = builder.node(OpKind.ADD, [variance], *one, scalar=1e-5)
    root = builder.node(OpKind.UNARY, [total], *one, function="sqrt")
    factor = builder.node(OpKind.UNARY, [root], *one, function="reciprocal")
    wide = tuple(max(a, b) if isinstance(a, int) else a for a, b in zip(one, weight, strict=True))
    factor = builder.node(OpKind.MUL, [factor, builder.weight(*weight)], *wide)
    scaled = builder.node(OpKind.MUL, [x, factor], *whole)
    negated = builder.node(OpKind.UNARY, [mean], *one, function="neg")
    moved = builder.node(OpKind.MUL, [negated, factor], *wide)
    moved = builder.node(OpKind.ADD, [moved, builder.weight(*weight)], *wide)
    return int(builder.node(OpKind.ADD, [scaled, moved], *whole))


def shapes(graph: Any) -> list[tuple[str, ...]]:
    return [tuple(map(str, graph.tensors[node.outputs[0]].shape)) for node in graph.nodes]


@pytest.mark.parametrize("sizes", [(8,), (6, 8), (4, 6, 8)])
def test_a_norm_over_the_channels_of_an_image_has_them_last(builder: Any, sizes: tuple[int, ...]) -> None:
    """As PyTorch's ConvNeXt has it; tf2onnx leaves the mean in the image's own order and views on the way."""
    x = builder.input(builder.N, 16, *sizes)
    ones = (1,) * len(sizes)
    mean = builder.node(OpKind.REDUCE, [x], builder.N, 1, *sizes, function="mean", axes=(1,))

    def moved(tensor: int) -> int:
        last = builder.node(OpKind.VIEW, [tensor], builder.N, *sizes, 1, function="reshape")
        return int(builder.node(OpKind.VIEW, [last], builder.N, 1, *sizes, function="reshape"))

    attach(builder, x, (1,), (1, 16, *ones), mean=mean, detour=moved)
    graph = fused(builder)
    to_last, norm, back = graph.nodes
    rank = len(sizes) + 2
    assert (norm.kind, norm.attributes) == (OpKind.LAYER_NORM, {"axes_size": 16})
    assert to_last.attributes == {"function": "transpose", "perm": (0, *range(2, rank), 1)}
    assert back.attributes == {"function": "transpose", "perm": (0, rank - 1, *range(1, rank - 1))}
    assert shapes(graph)[1:] == [("N", *map(str, sizes), "16"), ("N", "16", *map(str, sizes))]
    assert (len(norm.inputs), graph.parameter_count) == (3, 32)


def test_a_norm_whose_factor_is_transposed_is_one(builder: Any) -> None:
    """tf2onnx stops the transposition of a sequence half-way: mean and factor have the channels second, others last."""
    n, back = builder.N, {"function": "transpose", "perm": (0, 2, 1)}
    x = builder.input(n, 16, 30)
    mean = builder.node(OpKind.REDUCE, [x], n, 1, 30, function="mean", axes=(1,))
    last = builder.node(OpKind.VIEW, [mean], n, 30, 1, function="reshape")
    centred = builder.node(OpKind.SUB, [x, builder.node(OpKind.VIEW, [last], n, 1, 30, function="reshape")], n, 16, 30)
    square = builder.node(OpKind.MUL, [centred, centred], n, 16, 30)
    variance = builder.node(OpKind.REDUCE, [square], n, 1, 30, function="mean", axes=(1,))
    total = builder.node(OpKind.ADD, [variance], n, 1, 30, scalar=1e-5)
    root = builder.node(OpKind.UNARY, [total], n, 1, 30, function="rsqrt")
    factor = builder.node(OpKind.MUL, [root, builder.weight(1, 16, 1)], n, 16, 30)
    factor = builder.node(OpKind.VIEW, [factor], n, 30, 16, **back)
    negated = builder.node(OpKind.UNARY, [last], n, 30, 1, function="neg")
    moved = builder.node(OpKind.MUL, [negated, factor], n, 30, 16)
    moved = builder.node(OpKind.ADD, [moved, builder.weight(1, 1, 16)], n, 30, 16)
    turned = builder.node(OpKind.VIEW, [x], n, 30, 16, **back)
    builder.node(OpKind.ADD, [builder.node(OpKind.MUL, [turned, factor], n, 30, 16), moved], n, 30, 16)
    view, norm = fused(builder).nodes
    assert (view.kind, norm.kind, norm.attributes) == (OpKind.VIEW, OpKind.LAYER_NORM, {"axes_size": 16})


@pytest.mark.parametrize("sizes", [(30,), (6, 8), (4, 6, 8)])
def test_a_norm_of_groups_is_one_group_norm(builder: Any, sizes: tuple[int, ...]) -> None:
    ones, rank = (1,) * len(sizes), len(sizes) + 2
    x = builder.input(builder.N, *sizes, 16)
    split = builder.node(OpKind.VIEW, [x], builder.N, *sizes, 4, 4, function="reshape")
    axes = (*range(1, rank - 1), rank)
    mean = builder.node(OpKind.REDUCE, [split], builder.N, *ones, 4, 1, function="mean", axes=axes)
    norm = attach(builder, split, axes, (1, *ones, 4, 4), mean=mean)
    builder.node(OpKind.VIEW, [norm], builder.N, *sizes, 16, function="reshape")
    graph = fused(builder)
    to_second, group_norm, back = graph.nodes
    expected = (OpKind.GROUP_NORM, {"groups": 4, "axes_size": 4 * prod(sizes)})
    assert (group_norm.kind, group_norm.attributes) == expected
    assert to_second.attributes["perm"] == (0, rank - 1, *range(1, rank - 1))
    assert back.attributes["perm"] == (0, *range(2, rank), 1)
    assert shapes(graph)[1:] == [("N", "16", *map(str, sizes)), ("N", *map(str, sizes), "16")]
    assert (len(group_norm.inputs), graph.parameter_count) == (3, 32)


def test_groups_that_are_not_joined_again_stay(builder: Any) -> None:
    x = builder.input(builder.N, 30, 16)
    split = builder.node(OpKind.VIEW, [x], builder.N, 30, 4, 4, function="reshape")
    mean = builder.node(OpKind.REDUCE, [split], builder.N, 1, 4, 1, function="mean", axes=(1, 3))
    attach(builder, split, (1, 3), (1, 1, 4, 4), mean=mean)
    assert OpKind.GROUP_NORM not in {node.kind for node in fused(builder).nodes}


@pytest.mark.parametrize(("axes", "weight"), [((2,), (1, 1, 6, 1)), ((1,), (1, 1, 1, 8)), ((2, 3), (1, 16, 1, 1))])
def test_a_norm_that_pytorch_has_no_kernel_for_stays(
    builder: Any, axes: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    """Over the height, with a scale of another dimension than that of the mean, or of each channel of an instance."""
    x = builder.input(builder.N, 16, 6, 8)
    one = tuple(1 if axis in axes else size for axis, size in enumerate((builder.N, 16, 6, 8)))
    mean = builder.node(OpKind.REDUCE, [x], *one, function="mean", axes=axes)
    attach(builder, x, axes, weight, mean=mean)
    assert not {OpKind.LAYER_NORM, OpKind.GROUP_NORM} & {node.kind for node in fused(builder).nodes}


def test_a_mean_whose_pixels_are_exchanged_is_another(builder: Any) -> None:
    x = builder.input(builder.N, 16, 8, 8)
    mean = builder.node(OpKind.REDUCE, [x], builder.N, 1, 8, 8, function="mean", axes=(1,))

    def exchanged(tensor: int) -> int:
        perm = {"function": "transpose", "perm": (0, 1, 3, 2)}
        return int(builder.node(OpKind.VIEW, [tensor], builder.N, 1, 8, 8, **perm))

    attach(builder, x, (1,), (1, 16, 1, 1), mean=mean, detour=exchanged)
    assert OpKind.LAYER_NORM not in {node.kind for node in fused(builder).nodes}


def test_another_mean_is_no_norm(builder: Any) -> None:
    x, factor = builder.input(builder.N, 64), builder.input(builder.N, 64)
    mean = builder.node(OpKind.REDUCE, [x], builder.N, 1, function="mean", axes=(1,))
    scaled = builder.node(OpKind.MUL, [x, factor], builder.N, 64)
    moved = builder.node(OpKind.MUL, [mean, factor], builder.N, 64)
    builder.node(OpKind.SUB, [scaled, moved], builder.N, 64)
    assert len(fused(builder).nodes) == 4


def test_transpositions_that_cancel_where_a_shift_was_dropped(builder: Any) -> None:
    """TensorFlow Lite leaves out a shift of zeros, and the transpositions before and behind it stay."""
    n, wide, one = builder.N, (builder.N, 16, 8, 8), (builder.N, 1, 8, 8)
    x = builder.input(*wide)
    mean = builder.node(OpKind.REDUCE, [x], *one, function="mean", axes=(1,))
    centred = builder.node(OpKind.SUB, [x, mean], *wide)
    square = builder.node(OpKind.MUL, [centred, centred], *wide)
    variance = builder.node(OpKind.REDUCE, [square], *one, function="mean", axes=(1,))
    total = builder.node(OpKind.ADD, [variance], *one, scalar=1e-5)
    root = builder.node(OpKind.UNARY, [total], *one, function="sqrt")
    factor = builder.node(OpKind.UNARY, [root], *one, function="reciprocal")
    factor = builder.node(OpKind.MUL, [factor, builder.weight(1, 16, 1, 1)], *wide)
    scaled = builder.node(OpKind.MUL, [x, factor], *wide)
    negated = builder.node(OpKind.UNARY, [mean], *one, function="neg")
    moved = builder.node(OpKind.MUL, [negated, factor], *wide)
    last = builder.node(OpKind.VIEW, [moved], n, 8, 8, 16, function="transpose", perm=(0, 2, 3, 1))
    first = builder.node(OpKind.VIEW, [last], *wide, function="transpose", perm=(0, 3, 1, 2))
    builder.node(OpKind.ADD, [scaled, first], *wide)
    assert [node.kind for node in fused(builder).nodes] == [OpKind.VIEW, OpKind.LAYER_NORM, OpKind.VIEW]
