"""Small graphs, written as lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from dippm.graph import Attribute, Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec
from dippm.graph.editor import GraphEditor

Line = tuple[str, OpKind, str, Mapping[str, Attribute]]
N = Dim(1, 0)


class Sketch:
    """Builds a graph from named tensors."""

    def __init__(self) -> None:
        self.tensors: list[TensorSpec] = []
        self.nodes: list[Node] = []
        self.index: dict[str, int] = {}

    def tensor(
        self,
        name: str,
        *shape: int | Dim,
        role: TensorRole = TensorRole.ACTIVATION,
        dtype: DType = DType.FLOAT32,
    ) -> Sketch:
        dims = tuple(size if isinstance(size, Dim) else Dim(0, size) for size in shape)
        self.index[name] = len(self.tensors)
        self.tensors.append(TensorSpec(name=name, shape=dims, dtype=dtype, role=role))
        return self

    def input(self, name: str, *shape: int | Dim, dtype: DType = DType.FLOAT32) -> Sketch:
        return self.tensor(name, *shape, role=TensorRole.INPUT, dtype=dtype)

    def weight(self, name: str, *shape: int | Dim) -> Sketch:
        return self.tensor(name, *shape, role=TensorRole.PARAMETER)

    def node(self, output: str, kind: OpKind, inputs: str, *shape: int | Dim, **attributes: Attribute) -> Sketch:
        sources = tuple(self.index[name] for name in inputs.split())
        if not shape:
            shape = tuple(self.tensors[sources[0]].shape)
        self.tensor(output, *shape, dtype=DType.BOOL if attributes.get("function") == "logical_not" else DType.FLOAT32)
        self.nodes.append(Node(kind=kind, inputs=sources, outputs=(self.index[output],), attributes=attributes))
        return self

    def graph(self, *outputs: str) -> Graph:
        return Graph(
            source="sketch",
            framework="test",
            tensors=tuple(self.tensors),
            nodes=tuple(self.nodes),
            inputs=tuple(i for i, tensor in enumerate(self.tensors) if tensor.role is TensorRole.INPUT),
            outputs=tuple(self.index[name] for name in outputs),
        )


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


@pytest.fixture
def after() -> Callable[..., list[tuple[str, str]]]:
    """Run one pass and tell each node left as (kind, names of its inputs)."""

    def run(run_pass: Callable[[GraphEditor], None], graph: Graph) -> list[tuple[str, str]]:
        editor = GraphEditor(graph)
        run_pass(editor)
        done = editor.to_graph()
        return [
            (node.kind.value, " ".join(done.tensors[index].name for index in node.inputs if index >= 0))
            for node in done.nodes
        ]

    return run
