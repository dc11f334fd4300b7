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


def test_entries_that_no_program_needs_are_not_unpacked(tmp_path: Path, save_script: Callable[..., Path]) -> None:
    path = save_script(nn.Linear(4, 4), tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for index in range(10):
            archive.writestr(f"m/extra/{index}", b"\0" * 2**23)
            archive.writestr(f"m/data/9{index}", b"\0" * 2**23)
    assert read_torch_file(path, input=VECTOR).parameter_count == 20
