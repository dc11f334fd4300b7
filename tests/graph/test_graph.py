from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dippm.errors import ModelReadError
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec, fixed_shape


def residual_block() -> Graph:
    """x -> conv -> relu -> add(x): one branch, one weight."""
    image = (Dim(1, 0), Dim(0, 8), Dim(0, 4), Dim(0, 4))
    return Graph(
        source="block",
        framework="test",
        tensors=(
            TensorSpec(name="x", shape=image, dtype=DType.FLOAT32, role=TensorRole.INPUT),
            TensorSpec(name="w", shape=fixed_shape(8, 8, 3, 3), dtype=DType.FLOAT32, role=TensorRole.PARAMETER),
            TensorSpec(name="conv", shape=image, dtype=DType.FLOAT32),
            TensorSpec(name="relu", shape=image, dtype=DType.FLOAT32, alias_of=2),
            TensorSpec(name="sum", shape=image, dtype=DType.FLOAT16),
        ),
        nodes=(
            Node(kind=OpKind.CONV, inputs=(0, 1), outputs=(2,)),
            Node(kind=OpKind.RELU, inputs=(2,), outputs=(3,)),
            Node(kind=OpKind.ADD, inputs=(3, 0), outputs=(4,)),
        ),
        inputs=(0,),
        outputs=(4,),
    )


def test_edges_follow_the_data_and_keep_the_branch() -> None:
    assert residual_block().edges() == [(0, 1, 2), (1, 2, 3)]


def test_parameters_are_counted_without_activations() -> None:
    assert residual_block().parameter_count == 8 * 8 * 9


def test_a_cycle_is_refused() -> None:
    spec = TensorSpec(name="t", shape=fixed_shape(1), dtype=DType.FLOAT32)
    with pytest.raises(ModelReadError, match="cycle") as caught:
        Graph(
            source="s",
            framework="test",
            tensors=(spec, spec),
            nodes=(
                Node(kind=OpKind.RELU, inputs=(1,), outputs=(0,)),
                Node(kind=OpKind.RELU, inputs=(0,), outputs=(1,)),
            ),
            inputs=(),
            outputs=(1,),
        )
    assert caught.value.code == "graph.invalid"


@pytest.mark.parametrize(("inputs", "outputs"), [((9,), (1,)), ((0,), (9,)), ((-2,), (1,))])
def test_indices_outside_the_graph_are_refused(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    spec = TensorSpec(name="t", shape=fixed_shape(1), dtype=DType.FLOAT32, role=TensorRole.INPUT)
    with pytest.raises(ModelReadError):
        Graph(
            source="s",
            framework="test",
            tensors=(spec, spec),
            nodes=(Node(kind=OpKind.RELU, inputs=inputs, outputs=outputs),),
            inputs=(0,),
            outputs=(1,),
        )


def _fault(roles: list[TensorRole], aliases: list[int | None], nodes: list[tuple[list[int], list[int]]]) -> bool:
    """What makes a graph invalid, told node by node and tensor by tensor."""
    is_ready = [role is not TensorRole.ACTIVATION for role in roles]
    for inputs, outputs in nodes:
        if any(index != -1 and not (0 <= index < len(roles) and is_ready[index]) for index in inputs):
            return True
        for index in outputs:
            if not 0 <= index < len(roles):
                return True
            is_ready[index] = True
    return any(
        base is not None and (not 0 <= base < index or aliases[base] is not None) for index, base in enumerate(aliases)
    )


indices = st.lists(st.integers(-2, 4), max_size=2)
ready = st.lists(st.sampled_from([TensorRole.INPUT, TensorRole.ACTIVATION]), min_size=2, max_size=4)


@settings(max_examples=500)
@given(ready, st.lists(st.tuples(indices, indices), max_size=3), st.data())
def test_what_is_refused(
    drawn: list[TensorRole], nodes: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    alias = st.one_of(st.none(), st.integers(-2, 4))
    aliases = data.draw(st.lists(alias, min_size=len(drawn), max_size=len(drawn)))
    try:
        Graph(
            source="s",
            framework="test",
            tensors=tuple(
                TensorSpec(name="t", shape=(), dtype=DType.FLOAT32, role=role, alias_of=base)
                for role, base in zip(drawn, aliases, strict=True)
            ),
            nodes=tuple(Node(kind=OpKind.RELU, inputs=tuple(reads), outputs=tuple(writes)) for reads, writes in nodes),
            inputs=(),
            outputs=(),
        )
    except ModelReadError as exc:
        assert exc.code == "graph.invalid"
        assert _fault(drawn, aliases, nodes)
    else:
        assert not _fault(drawn, aliases, nodes)


def test_an_absent_optional_input_is_allowed() -> None:
    spec = TensorSpec(name="t", shape=fixed_shape(1), dtype=DType.FLOAT32, role=TensorRole.INPUT)
    graph = Graph(
        source="s",
        framework="test",
        tensors=(spec, spec),
        nodes=(Node(kind=OpKind.CLIP, inputs=(0, -1), outputs=(1,)),),
        inputs=(0,),
        outputs=(1,),
    )
    assert graph.edges() == []


def test_more_dimensions_than_any_tensor_has_are_refused() -> None:
    deep = TensorSpec(name="deep", shape=fixed_shape(*[1] * 65), dtype=DType.FLOAT32, role=TensorRole.INPUT)
    with pytest.raises(ModelReadError, match="'deep' has 65 dimensions") as caught:
        Graph(source="x", framework="test", tensors=(deep,), nodes=(), inputs=(0,), outputs=(0,))
    assert caught.value.code == "graph.invalid"


def test_a_graph_holds_for_one_batch_or_from_one_on() -> None:
    graph = residual_block()
    assert [replace(graph, smallest_batch=2).holds_for(batch) for batch in (1, 2, 9)] == [False, True, True]
    proved = replace(graph, smallest_batch=2, proved_batch=8)
    assert [proved.is_proved_for(batch) for batch in (1, 2, 8, 9)] == [False, True, True, False]
    assert [replace(graph, fixed_batch=2).holds_for(batch) for batch in (1, 2, 9)] == [False, True, False]


def test_a_graph_serves_batches_at_which_its_model_goes_so() -> None:
    graph = residual_block()
    others, known = replace(graph, other_batches=(1,)), replace(graph, other_batches=(3,), known_batches=(2, 4))
    assert [others.serves(batch) for batch in (1, 2, 9)] == [False, True, True]
    assert [known.serves(batch) for batch in (1, 2, 3, 4)] == [False, True, False, True]
    assert [replace(others, smallest_batch=3).serves(batch) for batch in (2, 3)] == [False, True]
