from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.frontends.torch.scopes import ScopeTracker  # noqa: E402
from dippm.graph import Graph  # noqa: E402


def test_scope_is_the_modules_path(read: Callable[..., Graph]) -> None:
    graph = read(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))), "4")
    assert [node.scope for node in graph.nodes] == ["0", "1.0", "1.1"]


def test_the_innermost_module_that_runs_is_told_and_exceptions_are_survived() -> None:
    seen: list[str] = []

    class Tells(nn.Module):
        def __init__(self, fails: bool = False) -> None:
            super().__init__()
            self.fails = fails

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(tracker.current())
            if self.fails:
                raise ValueError("no")
            return x

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(Tells())
            self.broken = Tells(fails=True)
            self.last = Tells()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            with contextlib.suppress(ValueError):
                self.broken(x)
            x = self.last(x)
            seen.append(tracker.current())
            return x

    root = Root()
    tracker = ScopeTracker(root)
    with tracker:
        root(torch.zeros(1))
    assert seen[:3] == ["first.0", "broken", "last"]
    assert tracker.current() == ""
    seen.clear()
    root(torch.zeros(1))  # nothing is followed any more
    assert seen == ["", "", "", ""]
