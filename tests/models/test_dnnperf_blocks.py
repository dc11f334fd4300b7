from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
from dippm.models.dnnperf_blocks import AttentionReadout, softmax_by_group  # noqa: E402


def test_softmax_by_group_against_softmax():
    torch.manual_seed(1)
    scores = 50 * torch.randn(12, 3)
    group = torch.tensor([0] * 5 + [2] * 7)
    weights, normalizer = softmax_by_group(scores, group, groups=4)
    torch.testing.assert_close(weights[:5], scores[:5].softmax(dim=0))
    torch.testing.assert_close(weights[5:], scores[5:].softmax(dim=0))
    torch.testing.assert_close(normalizer[[0, 2]], torch.stack([scores[:5].logsumexp(0), scores[5:].logsumexp(0)]))
    assert not normalizer[[1, 3]].any()


def test_the_attention_readout_tells_a_graph_from_two_copies_of_it():
    torch.manual_seed(2)
    readout = AttentionReadout(6, 4)
    nodes, sums = torch.randn(7, 6), torch.rand(1, 4)
    one = readout(nodes, torch.zeros(7, dtype=torch.int64), sums)
    two = readout(torch.cat([nodes, nodes]), torch.zeros(14, dtype=torch.int64), sums)
    torch.testing.assert_close(one[:, :6], two[:, :6])
    torch.testing.assert_close(two[:, 6:] - one[:, 6:], torch.full((1, 6), float(np.log(2)) / 8))
