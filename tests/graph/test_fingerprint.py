import random
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.graph import Dim, DType, Graph, Node, OpKind, OwnGradient, TensorRole, TensorSpec
from dippm.graph.fingerprint import fingerprint

Builder = Any


def block(builder: Builder, **changes: Any) -> Graph:
    """y = relu(conv(x)) + conv(x), with one choice changed."""
    x = builder.input(builder.N, 3, 8, 8)
    width = changes.get("width", 3)
    first = builder.weight(width, 3, 3, 3, dtype=changes.get("dtype", DType.FLOAT32))
    second = builder.weight(width, 3, 3, 3, role=changes.get("role", TensorRole.PARAMETER))
    shape = (builder.N, width, 8, 8)
    left = builder.node(OpKind.CONV, (x, first), *shape, kernel=(3, 3), groups=changes.get("groups", 1))
    right = builder.node(OpKind.CONV, (x, first if changes.get("is_shared") else second), *shape, kernel=(3, 3))
    active = builder.node(changes.get("kind", OpKind.RELU), (left,), *shape)
    ends = (right, active) if changes.get("is_swapped") else (active, right)
    total = builder.node(OpKind.ADD, ends, *shape)
    return builder.graph(*changes.get("outputs", lambda total, active: (total,))(total, active))


def test_it_is_known_and_stable(new_builder: Callable[[], Builder]) -> None:
    # Written down once: stored labels carry these hashes, on every machine and in every version.
    assert fingerprint(block(new_builder())) == "7d53be8bdf2929e1726a1220344ecc0d"


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 4},
        {"dtype": DType.FLOAT16},
        {"role": TensorRole.BUFFER},
        {"groups": 3},
        {"groups": True},
        {"kind": OpKind.SIGMOID},
        {"is_shared": True},
        {"is_swapped": True},
        {"outputs": lambda total, active: (total, active)},
        {"outputs": lambda total, active: (active, total)},
    ],
    ids="-".join,
)
def test_it_tells_computations_apart(new_builder: Callable[[], Builder], changes: dict[str, Any]) -> None:
    assert fingerprint(block(new_builder(), **changes)) != fingerprint(block(new_builder()))


def test_another_loss_is_another_model(new_builder: Callable[[], Builder]) -> None:
    graph = block(new_builder())
    assert fingerprint(replace(graph, is_scored_in_fp32=True)) != fingerprint(graph)


def test_a_gradient_of_its_own_makes_another_model(new_builder: Callable[[], Builder]) -> None:
    graph = block(new_builder())
    own = OwnGradient(
        name="f_1", outputs=(1,), given=(1,), inputs=(0,), results=(1,),
        nodes=(Node(kind=OpKind.MUL, inputs=(1, 1), outputs=(1,)),),
    )  # fmt: skip
    assert fingerprint(replace(graph, own_gradients=(own,))) != fingerprint(graph)


def test_order_of_outputs_counts(new_builder: Callable[[], Builder]) -> None:
    one = fingerprint(block(new_builder(), outputs=lambda total, active: (total, active)))
    other = fingerprint(block(new_builder(), outputs=lambda total, active: (active, total)))
    assert one != other


def test_a_tensor_read_twice_is_not_two_tensors(new_builder: Callable[[], Builder]) -> None:
    def graph(*, is_shared: bool) -> Graph:
        builder = new_builder()
        x = builder.input(builder.N, 4)
        one = builder.node(OpKind.RELU, (x,), builder.N, 4)
        other = one if is_shared else builder.node(OpKind.RELU, (x,), builder.N, 4)
        return builder.graph(builder.node(OpKind.MUL, (one, other), builder.N, 4))

    assert fingerprint(graph(is_shared=True)) != fingerprint(graph(is_shared=False))


def test_batch_and_fixed_sizes_differ(new_builder: Callable[[], Builder]) -> None:
    def graph(size: object) -> Graph:
        builder = new_builder()
        return builder.graph(builder.node(OpKind.RELU, (builder.input(size, 4),), size, 4))

    assert len({fingerprint(graph(size)) for size in (Dim(1, 0), Dim(2, 0), Dim(1, 1), 1)}) == 4


def test_an_absent_input_is_not_a_present_one(new_builder: Callable[[], Builder]) -> None:
    def graph(*, has_bias: bool) -> Graph:
        builder = new_builder()
        x, weight, extra = builder.input(builder.N, 4), builder.weight(4, 4), builder.weight(4)
        return builder.graph(
            builder.node(OpKind.LAYER_NORM, (x, weight, extra if has_bias else -1, extra), builder.N, 4)
        )

    assert fingerprint(graph(has_bias=True)) != fingerprint(graph(has_bias=False))


def test_unknown_operators_differ_by_their_own_name(new_builder: Callable[[], Builder]) -> None:
    def graph(kind: OpKind, source_op: str) -> Graph:
        builder = new_builder()
        builder.node(kind, (builder.input(builder.N, 4),), builder.N, 4)
        builder.nodes[0] = replace(builder.nodes[0], source_op=source_op)
        return builder.graph()

    assert fingerprint(graph(OpKind.UNKNOWN, "a.b")) != fingerprint(graph(OpKind.UNKNOWN, "a.c"))
    assert fingerprint(graph(OpKind.RELU, "aten.relu")) == fingerprint(graph(OpKind.RELU, "Relu"))


def test_what_does_not_matter(new_builder: Callable[[], Builder]) -> None:
    graph = block(new_builder())
    unread = TensorSpec(name="unread", shape=(Dim(0, 9),), dtype=DType.INT8, role=TensorRole.BUFFER)
    other = replace(
        graph,
        source="elsewhere",
        framework="onnx",
        has_lifetimes=True,
        warnings=("a word",),
        tensors=(*(replace(tensor, name="", storage_bytes_fixed=1) for tensor in graph.tensors), unread),
        nodes=tuple(
            replace(node, scope="a.b", source_op="Op", attributes=dict(reversed(list(node.attributes.items()))))
            for node in graph.nodes
        ),
    )
    assert fingerprint(other) == fingerprint(graph)


def random_graph(draw: random.Random, nodes: int) -> Graph:
    spec: dict[str, Any] = {"name": "", "dtype": DType.FLOAT32}
    shape = (Dim(1, 0), Dim(0, 4))
    tensors = [TensorSpec(shape=shape, role=TensorRole.INPUT, **spec) for _ in range(2)]
    tensors += [TensorSpec(shape=shape, role=TensorRole.PARAMETER, **spec) for _ in range(2)]
    made = []
    for _ in range(nodes):
        inputs = tuple(draw.randrange(len(tensors)) for _ in range(draw.choice((1, 2, 2))))
        outputs = []
        for _ in range(draw.choice((1, 1, 2))):
            outputs.append(len(tensors))
            tensors.append(TensorSpec(shape=shape, **spec))
        kind = draw.choice((OpKind.RELU, OpKind.ADD, OpKind.MUL))
        made.append(Node(kind=kind, inputs=inputs, outputs=tuple(outputs), attributes={"a": draw.randrange(2)}))
    outputs = tuple(draw.sample(range(4, len(tensors)), k=2))
    return Graph(source="", framework="", tensors=tuple(tensors), nodes=tuple(made), inputs=(0, 1), outputs=outputs)


def shuffled(graph: Graph, draw: random.Random) -> Graph:
    """The same graph with tensors renumbered and nodes in another order in which they can run."""
    place = list(range(len(graph.tensors)))
    draw.shuffle(place)
    tensors: list[Any] = [None] * len(place)
    for old, new in enumerate(place):
        tensors[new] = graph.tensors[old]
    ready = {index for index, tensor in enumerate(graph.tensors) if tensor.role is not TensorRole.ACTIVATION}
    waiting, order = list(graph.nodes), []
    while waiting:
        node = draw.choice([node for node in waiting if ready.issuperset(node.inputs)])
        waiting.remove(node)
        ready.update(node.outputs)
        order.append(
            replace(node, inputs=tuple(place[i] for i in node.inputs), outputs=tuple(place[i] for i in node.outputs))
        )
    return replace(
        graph,
        tensors=tuple(tensors),
        nodes=tuple(order),
        inputs=tuple(place[i] for i in graph.inputs),
        outputs=tuple(place[i] for i in graph.outputs),
    )


@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 14))
def test_numbering_and_order_do_not_matter(seed: int, nodes: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    graph = random_graph(draw, nodes)
    assert fingerprint(shuffled(graph, draw)) == fingerprint(graph)


def test_random_graphs_do_not_collide() -> None:
    draw = random.Random(5)  # noqa: S311
    graphs = [random_graph(draw, 12) for _ in range(500)]
    assert len({fingerprint(graph) for graph in graphs}) == 500


@given(seed=st.integers(0, 10**6))
def test_one_edge_moved_shows(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    graph = random_graph(draw, 6)
    node = graph.nodes[0]
    # An input in place of the weight or the other way round: another computation wherever it stands.
    moved = replace(node, inputs=((node.inputs[0] + 2) % 4, *node.inputs[1:]))
    assert fingerprint(replace(graph, nodes=(moved, *graph.nodes[1:]))) != fingerprint(graph)


def test_fifty_thousand_nodes_take_about_a_second(new_builder: Callable[[], Builder]) -> None:
    builder = new_builder()
    current = builder.input(builder.N, 64)
    for position in range(50_000):
        weight = builder.weight(64, 64)
        current = builder.node(OpKind.LINEAR, (current, weight), builder.N, 64, step=position % 50)
    graph = builder.graph(current)
    began = time.process_time()
    fingerprint(graph)
    assert time.process_time() - began < 3.0  # 0.6 s on an idle machine


def test_one_architecture_from_two_libraries() -> None:
    for package in ("torch", "timm", "torchvision"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from dippm.frontends import zoo
    from dippm.frontends.torch import read_module

    def read(name: str) -> Graph:
        module, inputs = zoo.build(name)
        return read_module(module, input=inputs, source=name)

    hashes = [fingerprint(read(name)) for name in ("timm:resnet18", "torchvision:resnet18", "timm:resnet26")]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]
