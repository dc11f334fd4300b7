"""What the networks use of PyTorch Geometric, and the warning that its import gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed: pip install 'dippm[train]'")

from dippm.models import geometric  # noqa: E402

_SCRIPT = """
import warnings
warnings.simplefilter("error", DeprecationWarning)
import dippm.models.geometric
try:
    warnings.warn("Something of the user's own.", DeprecationWarning)
except DeprecationWarning:
    print("told")
"""


def test_its_import_warns_of_nothing_and_leaves_other_warnings_as_they_were() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("global_add_pool", [[3.0, 1.0], [5.0, -4.0]]),
        ("global_max_pool", [[2.0, 3.0], [5.0, -4.0]]),
        ("global_mean_pool", [[1.5, 0.5], [5.0, -4.0]]),
    ],
)
def test_a_pool_takes_each_graph_by_itself(pool: str, expected: list[list[float]]) -> None:
    nodes = torch.tensor([[1.0, -2.0], [2.0, 3.0], [5.0, -4.0]])
    found = getattr(geometric, pool)(nodes, torch.tensor([0, 0, 1]))
    assert found.tolist() == expected


def test_graphsage_hears_of_the_mean_of_a_node_s_neighbours() -> None:
    layer = geometric.SAGEConv(1, 1)
    with torch.no_grad():
        # The names by which artefacts hold the weights: of the neighbours with the bias, and of the node itself.
        layer.lin_l.weight.fill_(2.0)
        layer.lin_l.bias.fill_(0.5)
        layer.lin_r.weight.fill_(10.0)
        found = layer(torch.tensor([[2.0], [4.0], [7.0]]), torch.tensor([[0, 1], [2, 2]]))
    assert found.tolist() == [[20.5], [40.5], [2.0 * 3.0 + 0.5 + 70.0]]


def test_gin_adds_a_node_to_the_sum_of_its_neighbours() -> None:
    layer = geometric.GINConv(torch.nn.Identity())
    found = layer(torch.tensor([[2.0], [4.0], [7.0]]), torch.tensor([[0, 1], [2, 2]]))
    assert found.tolist() == [[2.0], [4.0], [13.0]]
