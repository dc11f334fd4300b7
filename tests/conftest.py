"""Graphs built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dippm.graph import Attribute, Dim, DType, Graph, Node, OpKind, Shape, TensorRole, TensorSpec

N = Dim(1, 0)


def as_shape(sizes: Sequence[object]) -> Shape:
    return tuple(size if isinstance(size, Dim) else Dim(0, int(str(size))) for size in sizes)


class GraphBuilder:
    """Adds tensors and nodes one by one; sizes are numbers or ``Dim``."""

    N = N

    def __init__(self) -> None:
        self.tensors: list[TensorSpec] = []
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def tensor(
        self,
        *sizes: object,
        dtype: DType = DType.FLOAT32,
        role: TensorRole = TensorRole.ACTIVATION,
        alias_of: int | None = None,
        storage: tuple[int, int] | None = None,
    ) -> int:
        self.tensors.append(
            TensorSpec(
                name=f"t{len(self.tensors)}",
                shape=as_shape(sizes),
                dtype=dtype,
                role=role,
                alias_of=alias_of,
                storage_bytes_per_sample=None if storage is None else storage[0],
                storage_bytes_fixed=None if storage is None else storage[1],
            )
        )
        return len(self.tensors) - 1

    def input(self, *sizes: object, dtype: DType = DType.FLOAT32) -> int:
        self.inputs.append(self.tensor(*sizes, dtype=dtype, role=TensorRole.INPUT))
        return self.inputs[-1]

    def weight(self, *sizes: object, dtype: DType = DType.FLOAT32, role: TensorRole = TensorRole.PARAMETER) -> int:
        return self.tensor(*sizes, dtype=dtype, role=role)

    def node(
        self,
        kind: OpKind,
        inputs: Sequence[int],
        *sizes: object,
        dtype: DType = DType.FLOAT32,
        alias_of: int | None = None,
        releases: Sequence[int] = (),
        storage: tuple[int, int] | None = None,
        **attributes: Attribute,
    ) -> int:
        output = self.tensor(*sizes, dtype=dtype, alias_of=alias_of, storage=storage)
        self.nodes.append(
            Node(kind=kind, inputs=tuple(inputs), outputs=(output,), attributes=attributes, releases=tuple(releases))
        )
        return output

    def graph(self, *outputs: int, has_lifetimes: bool = False) -> Graph:
        return Graph(
            source="test",
            framework="test",
            tensors=tuple(self.tensors),
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            outputs=outputs or (len(self.tensors) - 1,),
            has_lifetimes=has_lifetimes,
        )


@pytest.fixture(name="builder")
def _builder() -> GraphBuilder:
    return GraphBuilder()


@pytest.fixture(name="new_builder", scope="session")
def _new_builder() -> Callable[[], GraphBuilder]:
    return GraphBuilder
