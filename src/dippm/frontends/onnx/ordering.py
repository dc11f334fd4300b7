"""The order of operators: sorted where the file is not, cleared of what no output needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from dippm.errors import ModelReadError
from dippm.frontends.onnx.program import Op, Program, describe_node

if TYPE_CHECKING:
    import onnx

__all__ = ["order_nodes", "remove_unused"]


def order_nodes(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """The nodes so that each stands after those that it reads; the file's own order where it already is one.

    Raises:
        ModelReadError: ``onnx.cycle`` where no such order exists.
    """
    producer = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    if all(producer.get(name, -1) < position for position, node in enumerate(nodes) for name in _reads(node)):
        return nodes
    needs = [{producer[name] for name in _reads(node) if name in producer} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for position, sources in enumerate(needs):
        for source in sources:
            readers[source].append(position)
    waiting = [len(sources) for sources in needs]
    ready = [position for position, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    for position in ready:  # grows while it is walked
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(order) < len(nodes):
        stuck = next(node for position, node in enumerate(nodes) if waiting[position])
        raise ModelReadError(
            f"The ONNX graph has a cycle: {len(nodes) - len(order)} operators wait for each other, among them "
            f"{describe_node(stuck.op_type, stuck.name, stuck.output)}.",
            code="onnx.cycle",
            cure="A model that can run has none; export it again.",
        )
    return [nodes[position] for position in order]


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """Names that a node reads, those of its subgraphs included."""
    graphs = _graphs(node)
    return chain(node.input, _reads_inside(graphs)) if graphs else node.input


def _reads_inside(graphs: list[onnx.GraphProto]) -> Iterator[str]:
    """Names that subgraphs read from around them: what they name themselves hides what has that name outside."""
    waiting = [(graph, frozenset[str]()) for graph in graphs]
    while waiting:
        graph, around = waiting.pop()
        inner = around.union(
            (info.name for info in graph.input),
            (tensor.name for tensor in graph.initializer),
            (tensor.values.name for tensor in graph.sparse_initializer),
            (name for child in graph.node for name in child.output),
        )
        for child in graph.node:
            yield from (name for name in child.input if name not in inner)
            waiting.extend((own, inner) for own in _graphs(child))
        yield from (info.name for info in graph.output if info.name not in inner)


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs.extend(attribute.graphs)
    return graphs


def remove_unused(program: Program) -> None:
    """Drop operators that lead to no output, inside subgraphs too."""
    needed = set(program.outputs)
    program.ops = _sweep(program.ops, needed)


def _sweep(ops: list[Op], needed: set[int]) -> list[Op]:
    kept: list[Op] = []
    for op in reversed(ops):
        if needed.isdisjoint(op.outputs):
            continue
        for block in op.blocks():
            needed.update(block.outputs)
            block.ops = _sweep(block.ops, needed)
        needed.update(op.inputs)
        kept.append(op)
    kept.reverse()
    return kept
