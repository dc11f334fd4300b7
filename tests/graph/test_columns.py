import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.errors import ModelReadError
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec, fixed_shape
from dippm.graph.columns import NONE, GraphColumns, IndexLists

lists = st.lists(st.lists(st.integers(-1, 9), max_size=4).map(tuple), max_size=6)


@given(lists)
def test_lists_lie_end_to_end(drawn: list[tuple[int, ...]]) -> None:
    laid = IndexLists.of(drawn)
    elements = [(owner, position, value) for owner, own in enumerate(drawn) for position, value in enumerate(own)]
    assert list(zip(laid.owner.tolist(), laid.position.tolist(), laid.values.tolist(), strict=True)) == elements
    assert [tuple(laid.values[a:b].tolist()) for a, b in zip(laid.start, laid.start[1:], strict=False)] == drawn


def test_lists_of_several_graphs_are_numbered_through() -> None:
    first, second = IndexLists.of([(0, NONE), ()]), IndexLists.of([(NONE, 1)])
    joined = IndexLists.joined([first, second, first], np.array([0, 5, 7]))
    assert joined.values.tolist() == [0, NONE, NONE, 6, 7, NONE]
    assert joined.owner.tolist() == [0, 0, 2, 2, 3, 3]
    assert first.values.tolist() == [0, NONE]


def test_columns_say_what_tensors_and_nodes_say() -> None:
    shape = (Dim(1, 0), Dim(0, 4))
    tensors = (
        TensorSpec(name="x", shape=shape, dtype=DType.FLOAT16, role=TensorRole.INPUT),
        TensorSpec(name="w", shape=fixed_shape(4), dtype=DType.FLOAT32, role=TensorRole.PARAMETER),
        TensorSpec(name="y", shape=shape, dtype=DType.FLOAT16, storage_bytes_per_sample=8, storage_bytes_fixed=512),
        TensorSpec(name="z", shape=shape, dtype=DType.FLOAT16, alias_of=2),
    )
    nodes = (
        Node(kind=OpKind.CLIP, inputs=(0, -1, 1), outputs=(2,)),
        Node(kind=OpKind.VIEW, inputs=(2,), outputs=(3,), releases=(2, 0)),
    )
    columns = GraphColumns.of(tensors, nodes)
    assert columns.shapes == (shape, fixed_shape(4))
    assert columns.shape.tolist() == [0, 1, 0, 0]
    assert [list(DType)[number] for number in columns.dtype] == [tensor.dtype for tensor in tensors]
    assert [list(TensorRole)[number] for number in columns.role] == [tensor.role for tensor in tensors]
    assert columns.alias_of.tolist() == [NONE, NONE, NONE, 2]
    assert columns.stated.tolist() == [[2, 8, 512]]
    assert [list(OpKind)[number] for number in columns.kind] == [OpKind.CLIP, OpKind.VIEW]
    assert columns.inputs.values.tolist() == [0, NONE, 1, 2]
    assert columns.outputs.values.tolist() == [2, 3]
    assert columns.releases.owner.tolist() == [1, 1]
    assert columns.releases.values.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("tensor", "node"),
    [
        ({}, {"inputs": (2**70,), "outputs": (0,)}),
        ({}, {"inputs": (0,), "outputs": (0,), "releases": (-(2**70),)}),
        ({"alias_of": 2**70}, {}),
        ({"storage_bytes_per_sample": 2**70}, {}),
    ],
)
def test_numbers_beyond_64_bits_are_refused(tensor: dict[str, int], node: dict[str, tuple[int, ...]]) -> None:
    spec = TensorSpec(name="t", shape=(), dtype=DType.FLOAT32, role=TensorRole.INPUT, **tensor)  # type: ignore[arg-type]
    nodes = (Node(kind=OpKind.RELU, **node),) if node else ()  # type: ignore[arg-type]
    with pytest.raises(ModelReadError, match="64 bits") as caught:
        Graph(source="s", framework="test", tensors=(spec,), nodes=nodes, inputs=(), outputs=())
    assert caught.value.code == "graph.invalid"


def test_functions_are_numbered_once_and_what_is_no_word_is_none() -> None:
    tensors = [TensorSpec(name="x", dtype=DType.FLOAT32, shape=fixed_shape(2), role=TensorRole.INPUT)]
    given = ["add", None, "mul", "add", 3, [1]]
    nodes = [
        Node(kind=OpKind.UNKNOWN, inputs=(0,), outputs=(), attributes={} if value is None else {"function": value})
        for value in given
    ]
    columns = GraphColumns.of(tensors, nodes)
    assert columns.functions == ("add", "mul")
    assert columns.function.tolist() == [0, NONE, 1, 0, NONE, NONE]


def _attributes_of(given: list[dict[str, object]]) -> tuple[list[object], list[int]]:
    tensors = [TensorSpec(name="x", dtype=DType.FLOAT32, shape=fixed_shape(2), role=TensorRole.INPUT)]
    nodes = [Node(kind=OpKind.UNKNOWN, inputs=(0,), outputs=(), attributes=each) for each in given]  # type: ignore[arg-type]
    columns = GraphColumns.of(tensors, nodes)
    assert [columns.attributes[place] for place in columns.attribute.tolist()] == given
    return list(columns.attributes), columns.attribute.tolist()


def test_equal_attributes_are_there_once() -> None:
    stride = {"stride": (2, 2), "groups": 1}
    held, places = _attributes_of([{}, stride, dict(stride), {}, {"groups": 2, "stride": (2, 2)}])
    assert held == [{}, stride, {"groups": 2, "stride": (2, 2)}]
    assert places == [0, 1, 1, 0, 2]


def test_attributes_of_other_types_are_not_alike() -> None:
    held, places = _attributes_of([{"groups": True}, {"groups": 1}, {"groups": 1.0}, {"groups": "1"}])
    assert places == [0, 1, 2, 3]
    assert [type(each["groups"]) for each in held] == [bool, int, float, str]  # type: ignore[index]


def test_where_an_attribute_is_a_list_each_node_has_its_own() -> None:
    assert _attributes_of([{"axes": [1]}, {}, {}])[1] == [0, 1, 2]
