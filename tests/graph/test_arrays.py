from hypothesis import given
from hypothesis import strategies as st

from dippm.graph import Dim, DType, Graph, GraphArrays, TensorRole, TensorSpec

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
