from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402

VECTOR = parse_input_shapes("4")


class Spaced(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linspace(0.0, 1.0, 4)


class Halved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, 2, rounding_mode="floor")


class Filled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.full([4], 2.0)


class Enlarged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x.view(-1, 1, 2, 2), scale_factor=2.0, mode="bilinear").relu()


# Each operator sets another version of the archive, and from version 6 on it lies elsewhere.
VERSIONED = [
    (nn.GELU, "gelu", ".data/version"),
    (Spaced, "linspace", ".data/version"),
    (Filled, "full", "version"),
    (Halved, "div", "version"),
    (Enlarged, "upsample_bilinear2d", "version"),
]


@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize(("kind", "operator", "entry"), VERSIONED)
def test_archives_of_every_version_are_read(
    tmp_path: Path, save_script: Callable[..., Path], kind: type[nn.Module], operator: str, entry: str, is_traced: bool
) -> None:
    path = save_script(kind(), tmp_path / "m.pt", example=torch.zeros(1, 4) if is_traced else None)
    with zipfile.ZipFile(path) as archive:
        assert f"m/{entry}" in archive.namelist()
    graph = read_torch_file(path, input=VECTOR)
    assert f"aten.{operator}" in [node.source_op for node in graph.nodes]


def test_entries_that_no_program_needs_are_not_unpacked(tmp_path: Path, save_script: Callable[..., Path]) -> None:
    path = save_script(nn.Linear(4, 4), tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for index in range(10):
            archive.writestr(f"m/extra/{index}", b"\0" * 2**23)
            archive.writestr(f"m/data/9{index}", b"\0" * 2**23)
    assert read_torch_file(path, input=VECTOR).parameter_count == 20
