"""What a graph network is told of a graph: who hears whom in each round of messages, and who belongs to which graph.

Operators that a network cannot tell apart after a round may share a row from there on, see
:mod:`dippm.training.alike_operators`; :func:`whole_graphs` gives every operator a row of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ROUNDS", "Members", "MessageRound", "whole_graphs"]

ROUNDS = 3
"""Graph blocks of a network."""


class MessageRound(NamedTuple):
    """Rows after one graph block, by the rows before it.

    Args:
        own: For each row after, the row before that holds its own value.
        edge_index: Row before that is heard, and row after that hears it.
        degrees: How many messages each row before gets: as many as its operators read tensors of others.

    Shapes:
        own: [N_after]; edge_index: [2, E]; degrees: [N_before].
    """

    own: Tensor
    edge_index: Tensor
    degrees: Tensor


class Members(NamedTuple):
    """Which rows after the last graph block make up each graph.

    Args:
        graph_ids: Graph, ascending.
        rows: A row of it.
        counts: How many operators of the graph the row stands for, float32.

    Shapes:
        All: [M].
    """

    graph_ids: Tensor
    rows: Tensor
    counts: Tensor


def whole_graphs(edge_index: Tensor, graph_ids: Tensor) -> tuple[tuple[MessageRound, ...], Members]:
    """Graphs in which every operator is a row.

    Args:
        edge_index: Producer and consumer of each edge, rows of the node features.
        graph_ids: Graph of each node, ascending.

    Shapes:
        edge_index: [2, E]; graph_ids: [N].
    """
    every = torch.arange(len(graph_ids), device=graph_ids.device)
    degrees = torch.bincount(edge_index[1], minlength=len(every))
    members = Members(graph_ids, every, torch.ones(len(every), device=graph_ids.device))
    return (MessageRound(every, edge_index, degrees),) * ROUNDS, members
