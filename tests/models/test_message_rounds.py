"""Graphs as networks are told of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.models.message_rounds import ROUNDS, whole_graphs  # noqa: E402


def test_every_operator_is_a_row_of_whole_graphs():
    edges = torch.tensor([[0, 0, 1, 3], [1, 2, 2, 4]])
    rounds, members = whole_graphs(edges, torch.tensor([0, 0, 0, 1, 1]))
    assert len(rounds) == ROUNDS
    for messages in rounds:
        assert messages.own.tolist() == [0, 1, 2, 3, 4]
        assert torch.equal(messages.edge_index, edges)
        assert messages.degrees.tolist() == [0, 1, 2, 0, 1]
    assert members.graph_ids.tolist() == [0, 0, 0, 1, 1]
    assert members.rows.tolist() == [0, 1, 2, 3, 4]
    assert members.counts.tolist() == [1.0] * 5
