"""Modules without memory, and their weights counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture(autouse=True)
def _on_meta() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        yield


@pytest.fixture
def parameters() -> Callable[[torch.nn.Module], int]:
    """How many weights a module has."""
    return lambda module: sum(tensor.numel() for tensor in module.parameters())
