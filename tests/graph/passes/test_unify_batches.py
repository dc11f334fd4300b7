from dataclasses import replace

import pytest

from dippm.errors import UnsupportedError
from dippm.graph import Dim, DType, Graph, Node, OpKind, OwnGradient, TensorRole, TensorSpec, fixed_shape
from dippm.graph.passes.unify_batches import check_batch, unify_batches


def at_batch(batch: int, *, tokens: int | None = None, kind: OpKind = OpKind.VIEW) -> Graph:
    """[N, 5, 4] seen as [5N + 1, 4] (or ``tokens`` rows)."""
    return Graph(
        source="s",
        framework="test",
        tensors=(
            TensorSpec(name="x", shape=fixed_shape(batch, 5, 4), dtype=DType.FLOAT32, role=TensorRole.INPUT),
            TensorSpec(
                name="y", shape=fixed_shape(5 * batch + 1 if tokens is None else tokens, 4), dtype=DType.FLOAT32
            ),
        ),
        nodes=(Node(kind=kind, inputs=(0,), outputs=(1,), source_op=kind.value),),
        inputs=(0,),
        outputs=(1,),
    )


def test_dimensions_become_linear_in_the_batch() -> None:
    graph = unify_batches(at_batch(2), at_batch(3), batches=(2, 3))
    assert graph.tensors[0].shape == (Dim(1, 0), Dim(0, 5), Dim(0, 4))
    assert graph.tensors[1].shape == (Dim(5, 1), Dim(0, 4))


def test_a_stated_storage_grows_too() -> None:
    def with_storage(batch: int) -> Graph:
        graph = at_batch(batch)
        return replace(graph, tensors=(graph.tensors[0], replace(graph.tensors[1], storage_bytes_fixed=512 * batch)))

    tensor = unify_batches(with_storage(2), with_storage(4), batches=(2, 4)).tensors[1]
    assert (tensor.storage_bytes_per_sample, tensor.storage_bytes_fixed) == (512, 0)


@pytest.mark.parametrize("second", [at_batch(4, tokens=14), at_batch(4, tokens=1), at_batch(4, kind=OpKind.COPY)])
def test_what_does_not_grow_in_proportion_is_refused(second: Graph) -> None:
    with pytest.raises(UnsupportedError) as caught:
        unify_batches(at_batch(2), second, batches=(2, 4))
    assert caught.value.code == "graph.batch_dependent"


def test_an_attribute_that_follows_the_batch_is_refused() -> None:
    def grouped(batch: int) -> Graph:
        graph = at_batch(batch, kind=OpKind.CONV)
        return replace(graph, nodes=(replace(graph.nodes[0], attributes={"groups": batch}),))

    with pytest.raises(UnsupportedError, match="attribute"):
        unify_batches(grouped(2), grouped(3), batches=(2, 3))


def test_a_straight_line_is_proved_at_a_third_batch() -> None:
    graph = unify_batches(at_batch(2), at_batch(3), batches=(2, 3))
    assert check_batch(graph, at_batch(64), 64) == replace(graph, proved_batch=64)


def _with_storage(batch: int, storage: int) -> Graph:
    graph = at_batch(batch)
    return replace(graph, tensors=(graph.tensors[0], replace(graph.tensors[1], storage_bytes_fixed=storage)))


def _with_groups(groups: int) -> Graph:
    graph = at_batch(2 if groups == 1 else 64, kind=OpKind.CONV)
    return replace(graph, nodes=(replace(graph.nodes[0], attributes={"groups": groups}),))


@pytest.mark.parametrize(
    ("concrete", "said"),
    [
        (at_batch(64, tokens=20), r"\[20, 4\] at batch 64, not \[321, 4\]"),
        (replace(at_batch(64), nodes=()), "0 operators at batch 64"),
        (replace(at_batch(64), nodes=at_batch(64).nodes * 2), "2 operators"),
        (replace(at_batch(64), tensors=(*at_batch(64).tensors, at_batch(64).tensors[0])), "operators"),
        (at_batch(64, kind=OpKind.COPY), "operator 0 is copy"),
        (replace(at_batch(64), outputs=(0,)), "outputs"),
        (
            replace(at_batch(64), tensors=(at_batch(64).tensors[0], replace(at_batch(64).tensors[1], alias_of=0))),
            "storage",
        ),
    ],
)
def test_what_leaves_the_line_at_a_third_batch_is_refused(concrete: Graph, said: str) -> None:
    graph = unify_batches(at_batch(2), at_batch(3), batches=(2, 3))
    with pytest.raises(UnsupportedError, match=said) as caught:
        check_batch(graph, concrete, 64)
    assert caught.value.code == "graph.batch_dependent"


def test_a_stated_storage_is_proved_too() -> None:
    graph = unify_batches(_with_storage(2, 1024), _with_storage(3, 1536), batches=(2, 3))
    check_batch(graph, _with_storage(64, 512 * 64), 64)
    with pytest.raises(UnsupportedError, match="2048 bytes at batch 64, not 32768"):
        check_batch(graph, _with_storage(64, 2048), 64)


def test_an_attribute_that_follows_large_batches_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="attribute"):
        check_batch(_with_groups(1), _with_groups(17), 64)


def test_a_number_in_the_code_may_follow_the_batch() -> None:
    def scaled(batch: int, scalar: float) -> Graph:
        graph = at_batch(batch, kind=OpKind.MUL)
        return replace(graph, nodes=(replace(graph.nodes[0], attributes={"scalar": scalar}),))

    check_batch(unify_batches(scaled(2, 1.0), scaled(3, 1.0), batches=(2, 3)), scaled(64, 2.0), 64)


def with_gradient(batch: int, *, kind: OpKind = OpKind.MUL, name: str = "f_1") -> Graph:
    """The same with a gradient that the model defines."""
    graph = at_batch(batch)
    own = OwnGradient(
        name=name, outputs=(1,), given=(2,), inputs=(0,), results=(2,),
        nodes=(Node(kind=kind, inputs=(1, 1), outputs=(2,), source_op=kind.value),),
    )  # fmt: skip
    return replace(graph, tensors=(*graph.tensors, replace(graph.tensors[1], name="g")), own_gradients=(own,))


def test_gradients_of_its_own_become_linear_in_the_batch() -> None:
    graph = unify_batches(with_gradient(2), with_gradient(3), batches=(2, 3))
    assert graph.tensors[2].shape == (Dim(5, 1), Dim(0, 4))
    assert check_batch(graph, with_gradient(7), 7).own_gradients == graph.own_gradients
    for other in (
        with_gradient(7, kind=OpKind.ADD),
        with_gradient(7, name="g_1"),
        replace(with_gradient(7), own_gradients=()),
    ):
        with pytest.raises(UnsupportedError, match="in proportion"):
            check_batch(graph, other, 7)
        with pytest.raises(UnsupportedError, match="in proportion"):
            unify_batches(with_gradient(2), other, batches=(2, 7))
