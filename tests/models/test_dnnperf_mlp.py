from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.dnnperf_mlp import DnnperfMLP  # noqa: E402


def test_the_blocks_stand_on_the_sums_alone(step_widths, steps):
    torch.manual_seed(3)
    network = DnnperfMLP(hidden=12, dropout=0.0, outputs=3, **step_widths).eval()
    assert torch.equal(network.encode(*steps), steps.graphs)
    torch.testing.assert_close(network(*steps), network.head(steps.graphs))
    assert {name.partition(".")[0] for name, _ in network.named_parameters()} == {"head"}
