from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.settle_views import settle_views

N = Dim(1, 0)


def settled(graph):
    editor = GraphEditor(graph)
    settle_views(editor)
    return editor.to_graph()


def kinds(graph) -> list[str]:
    return [node.kind.value for node in graph.nodes]


def turned(sketch):
    return sketch.input("x", N, 6, 8).node("t", OpKind.VIEW, "x", N, 8, 6, function="transpose", perm=(0, 2, 1))


def test_views_share_their_sources_storage(sketch) -> None:
    turned(sketch).node("u", OpKind.VIEW, "t", N, 2, 4, 6, function="reshape")
    graph = settled(sketch.graph("u"))
    assert kinds(graph) == ["view", "view"]
    assert [tensor.alias_of for tensor in graph.tensors] == [None, 0, 0]


def test_reshape_that_strides_forbid_is_a_copy(sketch) -> None:
    turned(sketch).node("y", OpKind.VIEW, "t", N, 48, function="reshape")
    graph = settled(sketch.graph("y"))
    assert kinds(graph) == ["view", "copy"]
    assert graph.tensors[graph.outputs[0]].alias_of is None


def test_layer_norm_copies_what_is_not_in_row_order(sketch) -> None:
    turned(sketch).weight("g", 6).node("y", OpKind.LAYER_NORM, "t g", axes_size=6)
    assert kinds(settled(sketch.graph("y"))) == ["view", "copy", "layer_norm"]


def test_elementwise_result_keeps_its_inputs_order(sketch) -> None:
    turned(sketch).node("r", OpKind.RELU, "t").node("y", OpKind.VIEW, "r", N, 48, function="reshape")
    assert kinds(settled(sketch.graph("y"))) == ["view", "relu", "copy"]


def test_linear_layer_on_turned_input(sketch) -> None:
    turned(sketch).weight("w", 5, 6).weight("b", 5).node("y", OpKind.LINEAR, "t w b", N, 8, 5)
    graph = settled(sketch.graph("y"))
    # As the module's own recording has it; the bias's kernel is left out in both.
    assert kinds(graph) == ["view", "copy", "linear"]
    assert len(graph.nodes[2].inputs) == 3


def test_matrix_product_of_heads_copies_them(sketch) -> None:
    sketch.input("x", N, 6, 2, 4).node("q", OpKind.VIEW, "x", N, 2, 6, 4, function="transpose", perm=(0, 2, 1, 3))
    sketch.input("k", N, 2, 4, 6).node("y", OpKind.MATMUL, "q k", N, 2, 6, 6)
    graph = settled(sketch.graph("y"))
    assert [kind for kind in kinds(graph) if kind != "view"] == ["copy", "matmul"]
    assert [str(dim) for dim in graph.tensors[graph.nodes[-2].outputs[0]].shape] == ["2N", "6", "6"]


def test_transposed_keys_need_no_copy(sketch) -> None:
    sketch.input("q", N, 2, 6, 4).input("k", N, 2, 6, 4)
    sketch.node("kt", OpKind.VIEW, "k", N, 2, 4, 6, function="transpose", perm=(0, 1, 3, 2))
    graph = settled(sketch.node("y", OpKind.MATMUL, "q kt", N, 2, 6, 6).graph("y"))
    functions = [node.attributes.get("function", "") for node in graph.nodes]
    assert functions == ["transpose", "expand", "reshape", "expand", "reshape", "", "reshape"]


def test_broadcast_matrix_is_copied(sketch) -> None:
    sketch.input("q", N, 2, 6, 4).weight("w", 1, 2, 4, 6)
    graph = settled(sketch.node("y", OpKind.MATMUL, "q w", N, 2, 6, 6).graph("y"))
    copy = next(node for node in graph.nodes if node.kind is OpKind.COPY)
    assert graph.tensors[copy.outputs[0]].shape == (N, Dim(0, 2), Dim(0, 4), Dim(0, 6))


def test_heads_of_fused_attention_merge_without_a_copy(sketch) -> None:
    for name in "qkv":
        sketch.input(name, N, 2, 6, 4)
    sketch.node("a", OpKind.ATTENTION, "q k v", is_causal=False)
    sketch.node("t", OpKind.VIEW, "a", N, 6, 2, 4, function="transpose", perm=(0, 2, 1, 3))
    graph = settled(sketch.node("y", OpKind.VIEW, "t", N, 6, 8, function="reshape").graph("y"))
    assert kinds(graph) == ["attention", "view", "view"]


def test_images_turned_to_channels_last_stay_so_through_convolutions(sketch) -> None:
    sketch.input("x", N, 4, 4, 8).weight("w", 8, 8, 1, 1).weight("g", 8)
    sketch.node("i", OpKind.VIEW, "x", N, 8, 4, 4, function="transpose", perm=(0, 3, 1, 2))
    sketch.node("c", OpKind.CONV, "i w", N, 8, 4, 4).node("r", OpKind.RELU, "c")
    sketch.node("o", OpKind.VIEW, "r", N, 4, 4, 8, function="transpose", perm=(0, 2, 3, 1))
    graph = settled(sketch.node("y", OpKind.LAYER_NORM, "o g", axes_size=8).graph("y"))
    assert kinds(graph) == ["view", "conv", "relu", "view", "layer_norm"]


def test_convolution_copies_an_image_in_no_known_order(sketch) -> None:
    sketch.input("x", N, 4, 8, 6).weight("w", 8, 8, 1, 1)
    sketch.node("i", OpKind.VIEW, "x", N, 8, 4, 6, function="transpose", perm=(0, 2, 1, 3))
    assert kinds(settled(sketch.node("y", OpKind.CONV, "i w", N, 8, 4, 6).graph("y"))) == ["view", "copy", "conv"]


def test_expansion_is_a_view(sketch) -> None:
    sketch.weight("c", 1, 1, 8).input("x", N, 6, 8).node("e", OpKind.VIEW, "c", N, 1, 8, function="expand")
    graph = settled(sketch.node("y", OpKind.CONCAT, "e x", N, 7, 8, axis=1).graph("y"))
    assert graph.tensors[graph.nodes[0].outputs[0]].alias_of == graph.nodes[0].inputs[0]


def test_einstein_sum_is_a_product_of_stacks_of_matrices(sketch) -> None:
    sketch.input("x", N, 4, 6, 8).weight("w", 4, 8, 5)
    sketch.node("y", OpKind.MATMUL, "x w", N, 4, 6, 5, contracted=8, equation="bhtd,hde->bhte")
    graph = settled(sketch.graph("y"))
    assert [kind for kind in kinds(graph) if kind != "view"] == ["copy", "matmul"]
    (product,) = (node for node in graph.nodes if node.kind is OpKind.MATMUL)
    assert [str(dim) for dim in graph.tensors[product.outputs[0]].shape] == ["4", "6N", "5"]
    assert product.attributes == {}
    # The result is a view of the product, whose stacks stand first; what reads it in a row copies it.
    assert graph.tensors[graph.outputs[0]].alias_of == product.outputs[0]


def test_einstein_sum_whose_rows_would_grow_twice_stays(sketch) -> None:
    sketch.input("x", N, N, 8).weight("w", 8, 5)
    sketch.node("y", OpKind.MATMUL, "x w", N, N, 5, contracted=8, equation="bcd,de->bce")
    (node,) = settled(sketch.graph("y")).nodes
    assert node.attributes == {"contracted": 8}


def test_diagonal_steps_along_both_dimensions(sketch) -> None:
    sketch.input("x", N, 6, 6).node("d", OpKind.VIEW, "x", N, 6, function="diagonal", axes=(1, 2))
    sketch.node("y", OpKind.VIEW, "d", Dim(6, 0), function="reshape")
    assert kinds(settled(sketch.graph("y"))) == ["view", "copy"]
