"""Gradients of operators that move elements: views where the memory allows it, copies where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.graph import DType, Node, OpKind


@pytest.fixture(name="x")
def _x(builder: Any) -> int:
    """Something that depends on a weight."""
    n = builder.N
    return builder.node(OpKind.LINEAR, [builder.input(n, 8, 16), builder.weight(16, 16)], n, 8, 16)


def test_a_view_of_all_is_a_view_again(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    flat = builder.node(OpKind.VIEW, [x], n, 128, alias_of=x, function="view")
    builder.node(OpKind.LINEAR, [flat, builder.weight(10, 128)], n, 10)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert gradient.kind is OpKind.VIEW
    assert gradient.attributes["function"] == "view"


def test_a_slice_is_padded_with_zeros(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    token = builder.node(OpKind.VIEW, [x], n, 16, alias_of=x, function="select")
    builder.node(OpKind.LINEAR, [token, builder.weight(10, 16)], n, 10)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert (gradient.kind, gradient.attributes["function"]) == (OpKind.PAD, "slice_backward")


def test_an_expansion_is_summed(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    wide = builder.node(OpKind.VIEW, [x], n, 4, 8, 16, alias_of=x, function="expand")
    builder.node(OpKind.LINEAR, [wide, builder.weight(16, 16)], n, 4, 8, 16)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert (gradient.kind, gradient.attributes["function"]) == (OpKind.REDUCE, "sum")


@pytest.mark.parametrize(("used", "kinds"), [(2, [OpKind.CONCAT]), (1, [OpKind.PAD])])
def test_pieces_are_joined_where_all_of_them_have_a_gradient(
    builder: Any, x: int, gradients_of: Any, used: int, kinds: list[OpKind]
) -> None:
    n = builder.N
    pieces = tuple(builder.tensor(n, 8, size, alias_of=x) for size in (4, 12)[:used])
    builder.nodes.append(Node(kind=OpKind.VIEW, inputs=(x,), outputs=pieces, attributes={"function": "split"}))
    outputs = [
        builder.node(OpKind.LINEAR, [piece, builder.weight(16, size)], n, 8, 16)
        for piece, size in zip(pieces, (4, 12), strict=False)
    ]
    total = outputs[0] if used == 1 else builder.node(OpKind.ADD, outputs, n, 8, 16)
    assert [node.kind for node in gradients_of(builder.graph(total), 1)] == kinds


def test_each_part_of_a_concatenation_gets_a_view(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    builder.node(OpKind.CONCAT, [x, builder.input(n, 8, 4)], n, 8, 20)
    # The second part is an input of the model and gets none.
    (gradient,) = gradients_of(builder.graph(), 1)
    assert (gradient.kind, gradient.attributes["function"]) == (OpKind.VIEW, "slice")


def test_a_copy_in_another_order_is_copied_back_and_a_plain_one_is_not(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    builder.node(OpKind.COPY, [x], n, 8, 16, function="flip")
    assert [node.kind for node in gradients_of(builder.graph(), 1)] == [OpKind.COPY]
    builder.nodes.pop()
    builder.node(OpKind.COPY, [x], n, 8, 16, function="clone")
    assert gradients_of(builder.graph(), 1) == []


def test_a_view_that_is_copied_has_the_gradient_of_the_view(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    builder.node(OpKind.COPY, [x], n, 128, function="view_copy")
    assert [node.kind for node in gradients_of(builder.graph(), 1)] == [OpKind.VIEW]
    builder.nodes.pop()
    builder.node(OpKind.COPY, [x], n, 8, 4, function="slice_copy")
    assert [node.kind for node in gradients_of(builder.graph(), 1)] == [OpKind.PAD]


@pytest.mark.parametrize(("function", "reads_image"), [("constant", False), ("reflect", True)])
def test_padding_by_what_the_image_holds_keeps_the_image(
    builder: Any, x: int, gradients_of: Any, function: str, reads_image: bool
) -> None:
    builder.node(OpKind.PAD, [x], builder.N, 10, 16, function=function)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert (gradient.kind, gradient.attributes["function"]) == (OpKind.COPY, "unpad")
    assert (x in gradient.inputs) == reads_image


def test_looking_up_is_the_reverse_of_writing(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    rows = builder.input(n, 3, dtype=DType.INT64)
    builder.node(OpKind.GATHER, [x, rows], n, 3, 16)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert gradient.kind is OpKind.SCATTER
    assert rows in gradient.inputs
    builder.nodes.pop()
    builder.node(OpKind.SCATTER, [builder.input(n, 8, 16), rows, x], n, 8, 16)
    (gradient,) = gradients_of(builder.graph(), 1)
    assert gradient.kind is OpKind.GATHER
    assert rows in gradient.inputs


@pytest.mark.parametrize(("function", "expected"), [
    ("index", "index_put"), ("gather", "scatter_add"), ("index_select", "index_add"), ("nonesuch", "add"),
])  # fmt: skip
def test_the_gradient_of_a_lookup_is_added_up_as_autograd_does(
    builder: Any, x: int, gradients_of: Any, function: str, expected: str
) -> None:
    builder.node(
        OpKind.GATHER, [x, builder.input(builder.N, 3, dtype=DType.INT64)], builder.N, 3, 16, function=function
    )
    *kept, gradient = gradients_of(builder.graph(), 1)
    assert (gradient.kind, gradient.attributes["function"]) == (OpKind.SCATTER, expected)
    # A view for nothing but to keep what was read from.
    assert [(node.kind, node.inputs) for node in kept] == ([(OpKind.VIEW, (x,))] if function == "gather" else [])


def test_an_embedding_writes_to_the_whole_table(builder: Any, gradients_of: Any) -> None:
    n = builder.N
    table, words = builder.weight(1000, 16), builder.input(n, 8, dtype=DType.INT64)
    builder.node(OpKind.EMBEDDING, [table, words], n, 8, 16)
    graph = builder.graph()
    (gradient,) = gradients_of(graph, 0)
    assert gradient.kind is OpKind.SCATTER
    assert words in gradient.inputs


def test_what_overwrites_gets_the_gradient_and_what_is_overwritten_zeros(
    builder: Any, x: int, gradients_of: Any
) -> None:
    n = builder.N
    new = builder.node(OpKind.LINEAR, [builder.input(n, 8, 16), builder.weight(16, 16)], n, 8, 16)
    written = builder.node(OpKind.COPY, [x, new], n, 8, 16, alias_of=x, function="copy")
    graph = builder.graph(written)
    zeros = gradients_of(graph, 2)
    assert [(node.kind, node.attributes["function"]) for node in zeros] == [(OpKind.FILL, "zeros")]
    # The layer that made the new values is trained.
    assert gradients_of(graph, 1)[-1].kind is OpKind.MATMUL


@pytest.mark.parametrize(
    ("kind", "function", "keeps_input"),
    [
        (OpKind.SORT, "topk", False),
        (OpKind.SORT, "kthvalue", False),
        (OpKind.CUMULATIVE, "cummax", True),
    ],
)
def test_what_was_chosen_goes_back_to_its_places_among_zeros(
    builder: Any, x: int, train: Any, kind: OpKind, function: str, keeps_input: bool
) -> None:
    n = builder.N
    values, places = builder.tensor(n, 8, 4), builder.tensor(n, 8, 4, dtype=DType.INT64)
    builder.nodes.append(Node(kind=kind, inputs=(x,), outputs=(values, places), attributes={"function": function}))
    builder.node(OpKind.LINEAR, [values, builder.weight(10, 4)], n, 8, 10)
    training = train(builder.graph())
    nodes = training.graph.nodes
    first, second = (
        node for node, twin, phase in zip(nodes, training.twin, training.phase, strict=True) if (twin, phase) == (1, 1)
    )
    assert (first.kind, first.attributes["function"], second.kind) == (OpKind.FILL, "zeros", OpKind.SCATTER)
    assert first.inputs == ((x,) if keeps_input else ())
    assert second.inputs[:2] == (*first.outputs, places)
    # It is written in place, and the places are kept until then.
    assert training.graph.tensors[second.outputs[0]].alias_of == first.outputs[0]
    assert [node for node in nodes if places in node.releases] == [second]
    assert len(training.trained) == 2


def test_what_is_copied_is_summed_where_it_was_repeated(builder: Any, x: int, gradients_of: Any) -> None:
    n = builder.N
    target = builder.input(n, 4, 8, 16)
    builder.node(OpKind.COPY, [target, x], n, 4, 8, 16, alias_of=target, function="copy")
    (gradient,) = gradients_of(builder.graph(), 1)
    assert (gradient.kind, gradient.attributes["function"]) == (OpKind.REDUCE, "sum")


@pytest.mark.parametrize("function", ["unique", "histc"])
def test_what_has_no_derivative_cuts_the_gradient(builder: Any, x: int, train: Any, function: str) -> None:
    n = builder.N
    found = builder.node(OpKind.SORT, [x], n, 8, 16, function=function)
    weight = builder.weight(10, 16)
    builder.node(OpKind.LINEAR, [found, weight], n, 8, 10)
    assert train(builder.graph()).trained == (weight,)


@pytest.mark.parametrize(
    ("function", "sizes", "dtypes"),
    [
        ("view_as_complex", ((4, 2), (4,)), (DType.FLOAT32, DType.COMPLEX64)),
        ("view_as_real", ((4,), (4, 2)), (DType.COMPLEX64, DType.FLOAT32)),
    ],
)
def test_a_view_of_complex_numbers_is_a_view_again(
    builder: Any, train: Any, function: str, sizes: Any, dtypes: tuple[DType, DType]
) -> None:
    n = builder.N
    weight = builder.weight(*sizes[0], dtype=dtypes[0])
    x = builder.node(OpKind.MUL, [builder.input(n, *sizes[0], dtype=dtypes[0]), weight], n, *sizes[0], dtype=dtypes[0])
    y = builder.node(OpKind.VIEW, [x], n, *sizes[1], dtype=dtypes[1], alias_of=x, function=function)
    builder.node(OpKind.RELU, [y], n, *sizes[1], dtype=dtypes[1])
    training = train(builder.graph())
    (gradient,) = (
        node
        for node, twin, phase in zip(training.graph.nodes, training.twin, training.phase, strict=True)
        if (twin, phase) == (1, 1)
    )
    assert gradient.kind is OpKind.VIEW
    result = training.graph.tensors[gradient.outputs[0]]
    assert (result.shape, result.dtype) == (training.graph.tensors[x].shape, dtypes[0])
