"""A part of a module is called without data, and the module is left as it was."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.frontends.inputs import InputEntry  # noqa: E402
from dippm.frontends.torch.asked_values import DataDependentError  # noqa: E402
from dippm.frontends.torch.recorded_call import call_without_data  # noqa: E402
from dippm.graph import DType  # noqa: E402


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 6)
        self.last: torch.Tensor | None = None

    def features(self, patches: torch.Tensor, sizes: torch.Tensor, *, scale: float) -> list[torch.Tensor]:
        assert not self.training
        self.last = self.project(patches) * scale
        return list(torch.split(self.last, sizes.tolist()))


def test_sizes_follow_from_rows_and_values() -> None:
    module = Encoder().train()
    entries = {
        "patches": InputEntry(shape=(4,), rows=5),
        "sizes": InputEntry(shape=(), dtype=DType.INT64, values=(5,)),
    }
    parts = call_without_data(module, module.features, entries, batch=3, scale=2.0)
    assert [part.shape for part in parts] == [(5, 6)] * 3
    assert module.last is None
    assert module.training


def test_what_is_not_stated_is_not_known() -> None:
    module = Encoder()
    entries = {"patches": InputEntry(shape=(4,), rows=5), "sizes": InputEntry(shape=(), dtype=DType.INT64)}
    with pytest.raises(DataDependentError):
        call_without_data(module, module.features, entries, batch=3, scale=2.0)
