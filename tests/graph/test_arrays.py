from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dippm.graph import Dim, DType, Graph, GraphArrays, OpKind, TensorRole, TensorSpec

shapes = st.lists(st.builds(Dim, st.integers(0, 5), st.integers(0, 9)), max_size=5).map(tuple)


@given(st.lists(shapes, min_size=1, max_size=8), st.integers(1, 64))
def test_arrays_agree_with_the_tensors_one_by_one(drawn: list[tuple[Dim, ...]], batch: int) -> None:
    tensors = tuple(
        TensorSpec(name=str(i), shape=shape, dtype=DType.FLOAT16, role=TensorRole.INPUT)
        for i, shape in enumerate(drawn)
    )
    graph = Graph(source="s", framework="test", tensors=tensors, nodes=(), inputs=(), outputs=())
    expected = []
    for shape in drawn:
        size = 1
        for dim in shape:
            size *= dim.at(batch)
        expected.append(2.0 * size)
    assert GraphArrays.from_graph(graph).nbytes([batch])[0].tolist() == expected


def test_kinds_types_roles_and_shapes_are_numbers(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    weight = builder.weight(4, 4, dtype=DType.FLOAT16)
    y = builder.node(OpKind.LINEAR, [x, weight], builder.N, 4)
    builder.node(OpKind.RELU, [y], builder.N, 4)
    arrays = GraphArrays.from_graph(builder.graph())
    assert [list(OpKind)[kind] for kind in arrays.kind] == [OpKind.LINEAR, OpKind.RELU]
    assert [list(DType)[dtype] for dtype in arrays.dtype[:2]] == [DType.FLOAT32, DType.FLOAT16]
    assert [list(TensorRole)[role] for role in arrays.role] == [
        TensorRole.INPUT,
        TensorRole.PARAMETER,
        TensorRole.ACTIVATION,
        TensorRole.ACTIVATION,
    ]
    assert arrays.shape.tolist() == [0, 1, 0, 0]


def test_dimensions_end_in_ones(builder: Any) -> None:
    builder.input(builder.N, 4)
    builder.weight(3)
    arrays = GraphArrays.from_graph(builder.graph())
    n, four, three, one = [0, 1], [4, 0], [3, 0], [1, 0]
    assert arrays.dimensions.tolist() == [[n, four, one], [three, one, one], [one, one, one]]
