from typing import Any

from dippm.costs.sizes import GraphSizes
from dippm.graph import Dim, DType, Graph, GraphArrays, OpKind, TensorRole, TensorSpec


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
    assert arrays.shape.tolist() == [0, 1, 0, 0, 2]


def test_dimensions_end_in_ones(builder: Any) -> None:
    builder.input(builder.N, 4)
    builder.weight(3)
    arrays = GraphArrays.from_graph(builder.graph())
    n, four, three, one = [0, 1], [4, 0], [3, 0], [1, 0]
    assert arrays.dimensions.tolist() == [[n, four, one], [three, one, one], [one, one, one]]


def test_several_graphs_are_numbered_through(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    y = builder.node(OpKind.VIEW, [x], 4, builder.N, alias_of=x)
    first = builder.graph()
    builder.node(OpKind.RELU, [y], 4, builder.N)
    second = builder.graph()
    arrays = GraphArrays.from_graphs([first, second, first])
    assert arrays.node_start.tolist() == [0, 1, 3, 4]
    assert arrays.tensor_start.tolist() == [0, 2, 5, 7]
    assert arrays.storage.tolist() == [0, 0, 2, 2, 4, 5, 5]
    # Shapes are alike within graphs.
    assert arrays.shape.tolist() == [0, 1, 2, 3, 3, 4, 5, 6]


def test_equal_attributes_of_several_graphs_are_held_once(builder: Any, new_builder: Any) -> None:
    graphs = []
    for own, values in ((builder, (1, True)), (new_builder(), (True, 2, 1))):
        x = own.input(own.N, 4)
        for value in values:
            own.node(OpKind.UNARY, [x], own.N, 4, groups=value)
        graphs.append(own.graph())
    arrays = GraphArrays.from_graphs(graphs)
    assert [repr(each["groups"]) for each in arrays.attributes] == ["1", "True", "2"]
    assert arrays.attribute.tolist() == [0, 1, 1, 2, 0]


def test_trained_weights_are_counted_by_type_and_graph() -> None:
    def spec(dtype: DType, *shape: int, role: TensorRole = TensorRole.PARAMETER, alias_of: int | None = None) -> Any:
        dims = tuple(Dim(0, size) for size in shape)
        return TensorSpec(name="", shape=dims, dtype=dtype, role=role, alias_of=alias_of)

    first = (
        spec(DType.FLOAT16, 2**40, 2**40),
        spec(DType.FLOAT32, 3, 5),
        spec(DType.FLOAT32, 3, 5),
        spec(DType.FLOAT32, 15, alias_of=1),
        spec(DType.FLOAT32, 7, role=TensorRole.BUFFER),
    )
    graphs = [
        Graph(source="", framework="", tensors=tensors, nodes=(), inputs=(), outputs=())
        for tensors in (first, (), (spec(DType.FLOAT32, 3, 5),))
    ]
    counted = GraphArrays.from_graphs(graphs).parameters()
    assert counted == [{DType.FLOAT16: 2**80, DType.FLOAT32: 30}, {}, {DType.FLOAT32: 15}]
    assert list(counted[0]) == [DType.FLOAT16, DType.FLOAT32]
    assert [sum(of_graph.values()) for of_graph in counted] == [graph.parameter_count for graph in graphs]


def test_functions_of_several_graphs_are_numbered_through(builder: Any, new_builder: Any) -> None:
    graphs = []
    for own, functions in ((builder, ("exp", "sin")), (new_builder(), ("sin", "tan"))):
        x = own.input(own.N, 4)
        for function in functions:
            x = own.node(OpKind.UNARY, [x], own.N, 4, function=function)
        own.node(OpKind.RELU, [x], own.N, 4)
        graphs.append(own.graph())
    arrays = GraphArrays.from_graphs(graphs)
    assert arrays.functions == ("exp", "sin", "tan")
    assert arrays.function.tolist() == [0, 1, -1, 1, 2, -1]
    sizes = GraphSizes.from_graphs(graphs)
    assert sizes.has_function("sin", "relu").tolist() == [False, True, False, True, False, False]


def test_numbers_of_weights_are_exact_whatever_their_size(builder: Any) -> None:
    builder.weight(2**60 + 1)
    builder.weight(3)
    arrays = GraphArrays.from_graph(_with_a_node(builder))
    assert arrays.parameters() == arrays.kept() == [{DType.FLOAT32: 2**60 + 4}]


def test_numbers_of_weights_beyond_what_floats_hold_are_counted(builder: Any) -> None:
    builder.weight(*[2**62] * 20)
    (counted,) = GraphArrays.from_graph(_with_a_node(builder)).parameters()
    assert counted == {DType.FLOAT32: 2 ** (62 * 20)}


def _with_a_node(builder: Any) -> Graph:
    builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4)
    graph: Graph = builder.graph()
    return graph
