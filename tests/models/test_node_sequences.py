from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
from dippm.models.node_sequences import NODES_PER_STEP, make_cells, read_sequences  # noqa: E402


def test_sequences_against_one_by_one():
    torch.manual_seed(4)
    cells, counts = make_cells(3), torch.tensor([2 * NODES_PER_STEP, 0, NODES_PER_STEP + 1, 3])
    graph_ids = torch.repeat_interleave(torch.arange(4), counts)
    values = torch.randn(len(graph_ids), 3)
    for backwards in (False, True):
        found = read_sequences(cells, values, graph_ids, counts, backwards=backwards)
        for graph in range(4):
            rows = values[graph_ids == graph]
            rows = rows.flip(0) if backwards else rows
            steps = max(-(-len(rows) // NODES_PER_STEP), 1)
            filled = torch.zeros(steps * NODES_PER_STEP, 3)
            filled[: len(rows)] = rows
            _, last = cells(filled.reshape(steps, -1))
            torch.testing.assert_close(found[graph], last[0])
