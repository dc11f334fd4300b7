"""Shapes for what runs a model itself, with the batch where the graph has it."""

from __future__ import annotations

from dippm.frontends.batch_axes import place_batch
from dippm.frontends.inputs import InputEntry, InputShapes, parse_input_shapes
from dippm.graph import Dim, DType, Graph, TensorRole, TensorSpec


def _graph(**shapes: tuple[Dim, ...]) -> Graph:
    tensors = tuple(
        TensorSpec(name=name, shape=shape, dtype=DType.FLOAT32, role=TensorRole.INPUT) for name, shape in shapes.items()
    )
    count = tuple(range(len(tensors)))
    return Graph(source="net", framework="pytorch", tensors=tensors, nodes=(), inputs=count, outputs=())


BATCH = Dim(1, 0)
TIME_FIRST = _graph(x=(Dim(0, 20), BATCH, Dim(0, 16)), lengths=(BATCH,), table=(Dim(0, 8), Dim(0, 8)))


def test_shapes_given_by_position_and_by_name_follow_the_graph() -> None:
    by_position = place_batch(parse_input_shapes(["20,16", ((), "int64"), "8,8:unbatched"]), TIME_FIRST)
    assert [entry.at(4) for entry in by_position.entries] == [(20, 4, 16), (4,), (8, 8)]
    by_name = place_batch(parse_input_shapes({"lengths": ((), "int64"), "x": "20,16", "other": "3"}), TIME_FIRST)
    assert [entry.at(4) for entry in by_name.entries] == [(4,), (20, 4, 16), (4, 3)]


def test_shapes_that_the_file_says_are_those_of_the_graph() -> None:
    found = place_batch(InputShapes(), TIME_FIRST)
    assert [entry.at(4) for entry in found.positional] == [(20, 4, 16), (4,), (8, 8)]
    assert found.positional[0].dtype is DType.FLOAT32


def test_a_batch_in_front_changes_nothing() -> None:
    given = InputShapes(positional=(InputEntry(shape=(3, 8)),))
    graph = _graph(x=(BATCH, Dim(0, 3), Dim(0, 8)))
    assert place_batch(given, graph) is given
    assert place_batch(InputShapes(), graph).is_empty
