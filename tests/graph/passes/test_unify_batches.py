from dataclasses import replace

import pytest

from dippm.errors import UnsupportedError
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec, fixed_shape
from dippm.graph.passes.unify_batches import unify_batches


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
