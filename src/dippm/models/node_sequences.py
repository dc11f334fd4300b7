"""Graphs as sequences of nodes, for recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["NODES_PER_STEP", "count_nodes", "make_cells", "read_sequences"]

NODES_PER_STEP = 8
"""Nodes that a recurrent network reads at once: training steps have up to 9,000, far more than a cell remembers."""


def make_cells(hidden: int) -> nn.GRU:
    """Cells for :func:`read_sequences`, GRUs (Cho et al., 2014), one layer in one direction."""
    return nn.GRU(NODES_PER_STEP * hidden, hidden)


def count_nodes(graph_ids: Tensor, *, graphs: int) -> Tensor:
    """Nodes of each graph.

    Shapes:
        graph_ids: [N]; result: [G].
    """
    return torch.bincount(graph_ids, minlength=graphs)


def read_sequences(cells: nn.GRU, values: Tensor, graph_ids: Tensor, counts: Tensor, *, backwards: bool) -> Tensor:
    """The state after the last node of each graph, or after its first one where it is read backwards.

    A step reads :data:`NODES_PER_STEP` nodes side by side; in the last step of a graph zeros fill up what is missing.
    Sequences are padded behind what is read, and not packed: on a CPU the gradient of a packed sequence takes time with
    the square of its length.

    Args:
        cells: What :func:`make_cells` makes.
        values: Inputs, the nodes of each graph in their order.
        graph_ids: Graph of each node, ascending.
        counts: Nodes of each graph; the state of one without nodes is that after one step of zeros.
        backwards: Whether the last node is read first.

    Shapes:
        values: [N, hidden]; graph_ids: [N]; counts: [G]; result: [G, hidden].
    """
    graphs, width = len(counts), values.shape[1]
    first = torch.cumsum(counts, 0) - counts
    place = torch.arange(len(values), device=values.device) - first[graph_ids]
    if backwards:
        place = counts[graph_ids] - 1 - place
    last_step = torch.div((counts - 1).clamp(min=0), NODES_PER_STEP, rounding_mode="floor")
    steps = int(last_step.max()) + 1
    padded = values.new_zeros(steps, graphs, NODES_PER_STEP, width)
    padded[torch.div(place, NODES_PER_STEP, rounding_mode="floor"), graph_ids, place % NODES_PER_STEP] = values
    states, _ = cells(padded.reshape(steps, graphs, NODES_PER_STEP * width))
    result: Tensor = states[last_step, torch.arange(graphs, device=values.device)]
    return result
