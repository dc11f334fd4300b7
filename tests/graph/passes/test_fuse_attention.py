from __future__ import annotations

import pytest

from dippm.graph import Dim, DType, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_attention import fuse_attention, fuse_converted_attention

N = Dim(1, 0)
HEADS = (N, 2, 6, 4)
SCORES = (N, 2, 6, 6)


def scores(sketch, *, key_scale: float = 0.5):
    sketch.input("q", *HEADS).input("k", *HEADS).input("v", *HEADS).node("qs", OpKind.MUL, "q", scalar=0.5)
    sketch.node("kt", OpKind.VIEW, "k", N, 2, 4, 6, function="transpose", perm=(0, 1, 3, 2))
    sketch.node("ks", OpKind.MUL, "kt", scalar=key_scale)
    return sketch.node("s", OpKind.MATMUL, "qs ks", *SCORES)


def finish(sketch, source: str):
    sketch.node("p", OpKind.SOFTMAX, source, axes=(3,))
    return sketch.node("y", OpKind.MATMUL, "p v", *HEADS).graph("y")


def test_scale_on_both_sides_is_fused_attention(sketch, after) -> None:
    scores(sketch)
    assert after(fuse_attention, finish(sketch, "s")) == [("attention", "q k v")]


def test_mask(sketch, after) -> None:
    scores(sketch).input("mask", N, 1, 6, 6).node("a", OpKind.ADD, "s mask")
    assert after(fuse_attention, finish(sketch, "a")) == [("attention", "q k v mask")]


def test_boolean_mask_is_read_as_such(sketch, after) -> None:
    scores(sketch).input("mask", N, 1, 6, 6).node("f", OpKind.BINARY, "mask", function="where")
    sketch.node("a", OpKind.ADD, "s f")
    assert after(fuse_attention, finish(sketch, "a")) == [("attention", "q k v mask")]


def test_causal_mask_is_an_attribute(sketch) -> None:
    scores(sketch).weight("mask", 6, 6).node("a", OpKind.ADD, "s mask", causal_mask=True)
    editor = GraphEditor(finish(sketch, "a"))
    fuse_attention(editor)
    node = editor.to_graph().nodes[-1]
    assert (node.kind, len(node.inputs), node.attributes["is_causal"]) == (OpKind.ATTENTION, 3, True)


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_product_of_keys_and_turned_queries_is_turned_itself(sketch, is_masked) -> None:
    sketch.input("q", N, 6, 2, 4).input("k", *HEADS).input("v", *HEADS).input("mask", N, 1, 6, 6)
    sketch.node("qs", OpKind.MUL, "q", scalar=0.5)
    sketch.node("qt", OpKind.VIEW, "qs", N, 2, 4, 6, function="transpose", perm=(0, 2, 3, 1))
    sketch.node("kq", OpKind.MATMUL, "k qt", *SCORES)
    sketch.node("s", OpKind.VIEW, "kq", *SCORES, function="transpose", perm=(0, 1, 3, 2))
    sketch.node("a", OpKind.ADD, "s mask")
    editor = GraphEditor(finish(sketch, "a" if is_masked else "s"))
    fuse_converted_attention(editor)
    editor.drop_unused()
    graph = editor.to_graph()
    view, attention = graph.nodes
    assert (view.kind, view.attributes["perm"]) == (OpKind.VIEW, (0, 2, 1, 3))
    names = [graph.tensors[index].name for index in (*view.inputs, *attention.inputs[1:])]
    assert names == ["q", "k", "v", *["mask"] * is_masked]


def choice(sketch, numbers: str, mask: str, name: str, replacement: float):
    """``mask numbers + (1 - mask) replacement`` as Keras writes it."""
    sketch.node(f"{name}1", OpKind.CAST, mask).node(f"{name}2", OpKind.MUL, f"{name}1 {numbers}", *SCORES)
    sketch.node(f"{name}3", OpKind.UNARY, mask, function="logical_not").node(f"{name}4", OpKind.CAST, f"{name}3")
    sketch.node(f"{name}5", OpKind.MUL, f"{name}4", scalar=replacement, scalar_first=True)
    return sketch.node(name, OpKind.ADD, f"{name}2 {name}5", *SCORES)


@pytest.mark.parametrize(
    ("again", "replacement", "is_one"), [("mask", 0.0, True), ("other", 0.0, False), ("mask", 1.0, False)]
)
def test_a_mask_of_yes_and_no_is_put_on_again_behind_the_softmax(sketch, again, replacement, is_one) -> None:
    sketch.input("mask", N, 1, 6, 6, dtype=DType.BOOL).input("other", N, 1, 6, 6, dtype=DType.BOOL)
    choice(scores(sketch, key_scale=1.0), "s", "mask", "a", -1e9).node("p", OpKind.SOFTMAX, "a", axes=(3,))
    graph = choice(sketch, "p", again, "w", replacement).node("y", OpKind.MATMUL, "w v", *HEADS).graph("y")
    editor = GraphEditor(graph)
    fuse_converted_attention(editor)
    editor.drop_unused()
    graph = editor.to_graph()
    assert any(node.kind is OpKind.ATTENTION for node in graph.nodes) == is_one
    if is_one:
        (attention,) = graph.nodes
        assert [graph.tensors[index].name for index in attention.inputs] == ["q", "k", "v", "mask"]


@pytest.mark.parametrize("axis", [2, 3])
def test_a_product_that_is_turned_behind_its_softmax(sketch, axis) -> None:
    sketch.input("q", N, 6, 2, 4).input("k", *HEADS).input("v", *HEADS).node("qs", OpKind.MUL, "q", scalar=0.5)
    sketch.node("qt", OpKind.VIEW, "qs", N, 2, 4, 6, function="transpose", perm=(0, 2, 3, 1))
    sketch.node("kq", OpKind.MATMUL, "k qt", *SCORES).node("p", OpKind.SOFTMAX, "kq", axes=(axis,))
    sketch.node("w", OpKind.VIEW, "p", *SCORES, function="transpose", perm=(0, 1, 3, 2))
    editor = GraphEditor(sketch.node("y", OpKind.MATMUL, "w v", *HEADS).graph("y"))
    fuse_converted_attention(editor)
    assert any(node.kind is OpKind.ATTENTION for node in editor.to_graph().nodes) == (axis == 2)


def test_guard_against_rows_without_a_key(sketch, after) -> None:
    scores(sketch).node("p", OpKind.SOFTMAX, "s", axes=(3,)).node("n", OpKind.UNARY, "p", function="isnan")
    sketch.node("w", OpKind.BINARY, "n p", *SCORES, function="where", scalar=0.0)
    graph = sketch.node("y", OpKind.MATMUL, "w v", *HEADS).graph("y")
    assert after(fuse_attention, graph) == [("attention", "q k v")]


def test_transposition_merged_with_the_one_before(sketch) -> None:
    sketch.input("q", *HEADS).input("k0", N, 6, 2, 4).input("v", *HEADS).node("qs", OpKind.MUL, "q", scalar=0.5)
    sketch.node("kt", OpKind.VIEW, "k0", N, 2, 4, 6, function="transpose", perm=(0, 2, 3, 1))
    sketch.node("ks", OpKind.MUL, "kt", scalar=0.5).node("s", OpKind.MATMUL, "qs ks", *SCORES)
    editor = GraphEditor(finish(sketch, "s"))
    fuse_attention(editor)
    graph = editor.to_graph()
    view, attention = graph.nodes
    assert view.attributes["perm"] == (0, 2, 1, 3)
    assert graph.tensors[attention.inputs[1]].shape == (N, Dim(0, 2), Dim(0, 6), Dim(0, 4))


@pytest.mark.parametrize(("perm", "is_fused"), [((0, 2, 1), True), ((1, 2, 0), False)])
def test_transposition_before_samples_and_heads_are_parted(sketch, perm, is_fused) -> None:
    joined = Dim(2, 0)
    sketch.input("q", *HEADS).input("k", joined, 6, 4).input("v", *HEADS).node("qs", OpKind.MUL, "q", scalar=0.5)
    sketch.node("kt", OpKind.VIEW, "k", joined, 4, 6, function="transpose", perm=perm)
    sketch.node("kr", OpKind.VIEW, "kt", N, 2, 4, 6, function="reshape")
    sketch.node("ks", OpKind.MUL, "kr", scalar=0.5).node("s", OpKind.MATMUL, "qs ks", *SCORES)
    editor = GraphEditor(finish(sketch, "s"))
    fuse_attention(editor)
    graph = editor.to_graph()
    assert (graph.nodes[-1].kind is OpKind.ATTENTION) == is_fused
    if is_fused:
        assert [node.kind for node in graph.nodes] == [OpKind.VIEW, OpKind.ATTENTION]
        assert graph.tensors[graph.nodes[-1].inputs[1]].shape == graph.tensors[graph.nodes[-1].inputs[0]].shape


def test_attention_spelt_out_by_the_model_stays(sketch, after) -> None:
    scores(sketch, key_scale=1.0)
    assert len(after(fuse_attention, finish(sketch, "s"))) == 6


def spelled_out(sketch, *, query: float | None = None, product: float | None = None, divisor: float | None = None):
    sketch.input("q", *HEADS).input("k", *HEADS).input("v", *HEADS)
    sketch.node("kt", OpKind.VIEW, "k", N, 2, 4, 6, function="transpose", perm=(0, 1, 3, 2))
    if query is not None:
        sketch.node("qs", OpKind.MUL, "q", scalar=query, scalar_first=True)
    sketch.node("s", OpKind.MATMUL, "q kt" if query is None else "qs kt", *SCORES)
    if product is not None:
        return sketch.node("t", OpKind.MUL, "s", scalar=product)
    return sketch.node("t", OpKind.DIV, "s", scalar=divisor) if divisor is not None else sketch


# A head of size 4: the scale is 1 / 2.
@pytest.mark.parametrize(
    ("scales", "source"), [({"query": 0.5}, "s"), ({"product": 0.5}, "t"), ({"divisor": 2.0}, "t")], ids=str
)
def test_converted_attention_has_its_scale_anywhere(sketch, after, scales, source) -> None:
    graph = finish(spelled_out(sketch, **scales), source)
    assert after(fuse_converted_attention, graph) == [("attention", "q k v")]
    assert "attention" not in [kind for kind, _ in after(fuse_attention, graph)]


@pytest.mark.parametrize(("scales", "source"), [({"query": 0.3}, "s"), ({}, "s"), ({"divisor": 4.0}, "t")], ids=str)
def test_another_scale_is_no_attention(sketch, after, scales, source) -> None:
    graph = finish(spelled_out(sketch, **scales), source)
    assert "attention" not in [kind for kind, _ in after(fuse_converted_attention, graph)]


def test_converted_attention_with_a_mask(sketch, after) -> None:
    spelled_out(sketch, product=0.5).input("mask", N, 1, 1, 6).node("a", OpKind.ADD, "t mask", *SCORES)
    assert after(fuse_converted_attention, finish(sketch, "a")) == [("attention", "q k v mask")]


def test_a_triangle_made_as_the_model_runs_is_the_causal_mask(sketch) -> None:
    spelled_out(sketch, query=0.5).node("full", OpKind.FILL, "", N, 2, 6, 6, function="full")
    sketch.node("mask", OpKind.UNARY, "full", function="trilu").node("a", OpKind.ADD, "s mask")
    editor = GraphEditor(finish(sketch, "a"))
    fuse_converted_attention(editor)
    (node,) = editor.to_graph().nodes
    assert node.kind is OpKind.ATTENTION
    assert node.attributes["is_causal"] is True
    assert len(node.inputs) == 3


@pytest.mark.parametrize(
    ("query", "out", "is_fused"),
    [
        ((N, 2, 6, 4), (N, 2, 6, 4), True),
        ((1, 2, 6, 4), (N, 2, 6, 4), False),
        ((N, 3, 2, 6, 4), (N, 3, 2, 6, 4), False),
    ],
)
def test_only_samples_and_heads_stand_before_the_last_two(sketch, after, query, out, is_fused) -> None:
    """Windows, or one query for all samples, would be counted once."""
    rank, ahead = len(out), out[:-2]
    perm = (*range(rank - 2), rank - 1, rank - 2)
    sketch.input("q", *query).input("k", *out).input("v", *out)
    sketch.node("qs", OpKind.MUL, "q", *query, scalar=0.5)
    sketch.node("kt", OpKind.VIEW, "k", *ahead, 4, 6, function="transpose", perm=perm)
    sketch.node("s", OpKind.MATMUL, "qs kt", *ahead, 6, 6)
    sketch.node("p", OpKind.SOFTMAX, "s", *ahead, 6, 6, axes=(rank - 1,))
    graph = sketch.node("y", OpKind.MATMUL, "p v", *out).graph("y")
    assert (after(fuse_converted_attention, graph) == [("attention", "q k v")]) is is_fused


@pytest.mark.parametrize(
    ("leading", "is_fused", "is_fused_converted"),
    [((N,), False, True), ((N, 2), True, True), ((N, 3, 2), False, False)],
)
def test_samples_and_heads_are_what_the_fused_kernels_take(sketch, leading, is_fused, is_fused_converted) -> None:
    last = len(leading) + 1
    perm = (*range(len(leading)), last, last - 1)
    for name in "qkv":
        sketch.input(name, *leading, 6, 4)
    sketch.node("qs", OpKind.MUL, "q", scalar=2**-0.5)
    sketch.node("kt", OpKind.VIEW, "k", *leading, 4, 6, function="transpose", perm=perm)
    sketch.node("ks", OpKind.MUL, "kt", scalar=2**-0.5).node("s", OpKind.MATMUL, "qs ks", *leading, 6, 6)
    sketch.node("p", OpKind.SOFTMAX, "s", axes=(last,))
    graph = sketch.node("y", OpKind.MATMUL, "p v", *leading, 6, 4).graph("y")
    for run, expected in ((fuse_attention, is_fused), (fuse_converted_attention, is_fused_converted)):
        editor = GraphEditor(graph)
        run(editor)
        assert (editor.to_graph().nodes[-1].kind is OpKind.ATTENTION) == expected


def test_scores_that_mixed_precision_widens_for_the_softmax(sketch, after) -> None:
    spelled_out(sketch).node("c", OpKind.CAST, "s").node("t", OpKind.MUL, "c", scalar=0.5)
    sketch.node("w", OpKind.SOFTMAX, "t", axes=(3,)).node("n", OpKind.CAST, "w")
    graph = sketch.node("y", OpKind.MATMUL, "n v", *HEADS).graph("y")
    assert ("attention", "q k v") in after(fuse_converted_attention, graph)
    assert "attention" not in [kind for kind, _ in after(fuse_attention, graph)]


def test_widened_scores_that_are_an_output_too_are_no_part_of_attention(sketch, after) -> None:
    spelled_out(sketch).node("c", OpKind.CAST, "s").node("t", OpKind.MUL, "c", scalar=0.5)
    sketch.node("w", OpKind.SOFTMAX, "t", axes=(3,)).node("n", OpKind.CAST, "w")
    graph = sketch.node("y", OpKind.MATMUL, "n v", *HEADS).graph("y", "c")
    assert "attention" not in [kind for kind, _ in after(fuse_converted_attention, graph)]
