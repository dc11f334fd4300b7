"""Operators of packages in exported programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers_moe = pytest.importorskip("transformers.integrations.moe")

from torch import nn  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.frontends.inputs import InputShapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402

_READ = """
import sys
import dippm
assert "transformers" not in sys.modules
print(sum(node.source_op == "transformers.grouped_mm_fallback" for node in dippm.load(sys.argv[1]).nodes))
"""


class _Experts(nn.Module):
    """Eight experts of 32 to 48, of which each token takes two, as transformers writes them for a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 32, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.repeat(2, 1)
        ends = torch.arange(1, 9, dtype=torch.int32) * (rows.shape[0] // 8)
        return torch.ops.transformers.grouped_mm_fallback(rows, self.weight, ends)


@pytest.fixture
def path(tmp_path: Path, export: Callable[..., Path]) -> Path:
    dynamic = {"dynamic_shapes": ({0: torch.export.Dim.AUTO},)}
    return export(_Experts(), tmp_path / "moe.pt2", torch.zeros(16, 32), **dynamic)


def test_experts_of_transformers_have_their_products(path: Path) -> None:
    graph = read_torch_file(path, input=InputShapes())
    assert not graph.unsupported_ops
    assert graph.fixed_batch is None
    assert float(Workload.from_graph(graph).at([16]).macs.sum()) == 2 * 16 * 32 * 48


def test_the_package_is_imported_that_registers_an_operator(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _READ, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
