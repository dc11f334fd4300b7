"""Activation checkpointing: which nodes form a block that the backward pass computes again.

As ``torch.utils.checkpoint`` is used in practice (``set_grad_checkpointing`` of timm, ``gradient_checkpointing_enable``
of Hugging Face's models): around each block of a repeated structure. A block keeps what flows into it; all that it
computes is dropped in the forward pass and computed again right before its backward pass. A function of a model's own
that keeps its arguments alone (``torch.autograd.Function``, as Bloom's GELU) works alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.forward import append_forward_node
from dippm.costs.training_step.own_gradients import run_backward_of
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.errors import UnsupportedError
from dippm.graph import Attribute, Graph, Node

__all__ = ["AUTOGRAD_FUNCTION", "find_blocks", "find_functions", "run_block_backward"]


AUTOGRAD_FUNCTION = "autograd_function"
"""Attribute of nodes that a model runs in an autograd function of its own which keeps its arguments alone: its name."""


def find_blocks(graph: Graph) -> list[range]:
    """Stretches of nodes that belong to one block each, in their order.

    A block is a module whose path ends in a number and that has numbered siblings and modules of its own inside, the
    outermost such of each path: ``blocks.3``, ``layer1.0``, ``encoder.layer.11``.

    Raises:
        UnsupportedError: ``training.no_blocks`` where no path has a number.
    """
    repeated = _repeated_paths({node.scope for node in graph.nodes})
    blocks: list[range] = []
    start, current = 0, ""
    for position, node in enumerate(graph.nodes):
        block = _block_of(node.scope, repeated)
        if block != current:
            if current:
                blocks.append(range(start, position))
            start, current = position, block
    if current:
        blocks.append(range(start, len(graph.nodes)))
    if not blocks:
        raise UnsupportedError(
            f"'{graph.source}' names no repeated blocks whose activations could be computed again.",
            code="training.no_blocks",
            cure="Give the model as a module or by name, whose paths number its blocks, or leave checkpointing out.",
        )
    return blocks


def find_functions(graph: Graph) -> list[range]:
    """Stretches of nodes that belong to one autograd function each which keeps its arguments alone, in their order."""
    ends: dict[Attribute, tuple[int, int]] = {}
    for position, node in enumerate(graph.nodes):
        function = node.attributes.get(AUTOGRAD_FUNCTION)
        if function is not None:
            ends[function] = ends.get(function, (position, 0))[0], position + 1
    return [range(*span) for span in ends.values()]


def _repeated_paths(scopes: set[str]) -> set[str]:
    """Paths that hold several numbered modules which have modules of their own: a single layer is no block."""
    children: dict[str, set[str]] = {}
    for scope in scopes:
        parts = scope.split(".")
        for position, part in enumerate(parts[:-1]):
            if part.isdigit():
                children.setdefault(".".join(parts[:position]), set()).add(part)
    return {path for path, numbers in children.items() if len(numbers) > 1}


def _block_of(scope: str, repeated: set[str]) -> str:
    parts = scope.split(".")
    for position, part in enumerate(parts):
        if part.isdigit() and ".".join(parts[:position]) in repeated:
            return ".".join(parts[: position + 1])
    return ""


def run_block_backward(builder: StepBuilder, gradients: Gradients, nodes: Sequence[tuple[int, Node]]) -> None:
    """Compute a block again, then run its backward pass on what was computed.

    Args:
        builder: Where the nodes go.
        gradients: The gradients so far.
        nodes: Nodes of the block in the forward pass with their positions, in their order.
    """
    renamed: dict[int, int] = {}
    again: list[tuple[int, Node]] = []
    for position, node in nodes:
        # Nodes that run again are no gradients of anything.
        builder.twin, builder.scope = -1, node.scope
        for index in node.outputs:
            tensor = builder.tensors[index]
            base = builder.base(index)
            own = builder.new_tensor(
                tensor.shape,
                tensor.dtype,
                name=tensor.name,
                alias_of=None if base == index else renamed.get(base, base),
            )
            renamed[index] = own
        copy = replace(
            node,
            inputs=tuple(renamed.get(index, index) for index in node.inputs),
            outputs=tuple(renamed[index] for index in node.outputs),
            releases=(),
        )
        again.append((position, append_forward_node(builder, copy)))
    for old, new in renamed.items():
        gradients.rename(old, new)
    gradients.add_wanted([node for _, node in again])
    run_backward_of(gradients, again)
