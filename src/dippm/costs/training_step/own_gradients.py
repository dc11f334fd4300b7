"""Backward passes that a model defines itself: their operators run in the place of those of gradient rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.gradient_rules import run_backward
from dippm.costs.training_step.step_builder import PERMUTING, change_node
from dippm.graph import Graph, Node, OpKind, OwnGradient

__all__ = ["run_backward_of", "with_own_gradients_apart", "with_own_gradients_behind"]

_GIVEN = "own_gradient_given"


def with_own_gradients_behind(graph: Graph) -> Graph:
    """A graph with the model's own backward passes as nodes behind the forward pass, where passes over it see them."""
    if not graph.own_gradients:
        return graph
    nodes = list(graph.nodes)
    for gradient in graph.own_gradients:
        # Each gradient has the type of what it is the gradient of.
        nodes += [
            Node(kind=OpKind.COPY, inputs=(output,), outputs=(given,), source_op=_GIVEN)
            for output, given in zip(gradient.outputs, gradient.given, strict=True)
        ]
        nodes += gradient.nodes
    return replace(graph, nodes=tuple(nodes))


def with_own_gradients_apart(graph: Graph) -> Graph:
    """The graph of :func:`with_own_gradients_behind` as it was, with what passes have made of it."""
    if not graph.own_gradients:
        return graph
    name_of = {given: gradient.name for gradient in graph.own_gradients for given in gradient.given}
    nodes: list[Node] = []
    parts: dict[str, list[Node]] = {}
    current = nodes
    for node in graph.nodes:
        if node.source_op == _GIVEN:
            current = parts.setdefault(name_of[node.outputs[0]], [])
        else:
            current.append(node)
    gradients = tuple(replace(each, nodes=tuple(parts[each.name])) for each in graph.own_gradients)
    return replace(graph, nodes=tuple(nodes), own_gradients=gradients)


def run_backward_of(gradients: Gradients, nodes: Sequence[tuple[int, Node]]) -> None:
    """Append the backward pass of some nodes, the last one first.

    Args:
        gradients: The gradients so far.
        nodes: Nodes of the forward pass with their positions, in their order.
    """
    builder = gradients.builder
    has_run: set[str] = set()
    for position, node in reversed(nodes):
        builder.twin, builder.scope = position, node.scope
        own = gradients.own_gradient(node)
        if own is None:
            run_backward(gradients, node)
        elif own.name not in has_run:
            has_run.add(own.name)
            _run_own(gradients, own)


def _run_own(gradients: Gradients, own: OwnGradient) -> None:
    builder = gradients.builder
    taken = gradients.take([gradients.current(output) for output in own.outputs])
    if all(gradient is None for gradient in taken):
        return
    here: dict[int, int] = {}
    for output, given, gradient in zip(own.outputs, own.given, taken, strict=True):
        if gradient is None:
            gradient = builder.new_like(gradients.current(output))
            builder.run(OpKind.FILL, (), (gradient,), function="zeros")
        here[given] = gradient

    def index_here(tensor: int) -> int:
        return here.get(tensor, gradients.current(tensor))

    for node in own.nodes:
        for output in node.outputs:
            spec = builder.tensors[output]
            base = None if spec.alias_of is None else index_here(spec.alias_of)
            here[output] = builder.new_tensor(spec.shape, spec.dtype, name=spec.name, alias_of=base)
        inputs = tuple(map(index_here, node.inputs))
        outputs = tuple(here[output] for output in node.outputs)
        builder.append(change_node(node, inputs=inputs, outputs=outputs, releases=()))
        if node.kind is OpKind.VIEW:
            builder.views.update(outputs)
            if builder.is_permuted(inputs[0]) != (node.attributes.get("function") in PERMUTING):
                builder.permuted.update(outputs)
        end = len(builder.nodes) - 1
        gradients.free_after.update({builder.base(here[index]): end for index in node.releases if index in here})
    end = len(builder.nodes) - 1
    gradients.free_after.update({builder.base(gradients.current(index)): end for index in own.kept})
    gradients.held += map(gradients.current, own.held)
    for tensor, result in zip(own.inputs, own.results, strict=True):
        gradients.give(gradients.current(tensor), index_here(result))
