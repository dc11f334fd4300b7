"""A module is left as it was found."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.graph import Graph, OpKind  # noqa: E402


def test_module_is_left_as_it_was(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    module = small().train()
    module.head.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    read(module, "3,32,32")
    assert module.training
    assert not module.head.training
    assert list(module.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(type(p) is nn.Parameter and p.device.type == "cpu" for p in module.parameters())
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.by_size: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1], dtype=torch.float32).cos()
        if x.shape[1] not in self.by_size:
            self.by_size[x.shape[1]] = torch.ones(x.shape[1]).exp()
        return x * self.table + self.by_size[x.shape[1]]


def test_caches_are_read_filled_and_left_empty(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    module = Caching()
    graph = read(module, "6")
    assert kinds(graph) == [OpKind.MUL, OpKind.ADD]
    assert module.table is None
    assert module.by_size == {}


class Frozen(OrderedDict[str, int]):
    """Settings that take no changes, as those of diffusers' models."""

    def __setitem__(self, key: str, value: int) -> None:
        if hasattr(self, "is_frozen"):
            raise RuntimeError("frozen")
        super().__setitem__(key, value)

    def clear(self) -> None:
        raise RuntimeError("frozen")

    def copy(self) -> Frozen:
        raise RuntimeError("frozen")


def test_containers_that_take_no_changes(read: Callable[..., Graph], small: type[nn.Module]) -> None:
    module = small()
    module.settings = settings = Frozen(width=3)
    settings.is_frozen = True  # type: ignore[attr-defined]
    assert read(module, "3,32,32").nodes
    assert module.settings is settings
    assert settings == {"width": 3}


class Hooking(nn.Module):
    """Adds hooks in its first call, and notes that it did, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.is_hooked = False
        self.heard: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_hooked:
            self.inner.register_forward_hook(lambda *_: self.heard.append(1))
            self.inner.register_forward_pre_hook(lambda *_: None)
            self.is_hooked = True
        self.heard.clear()
        result = self.inner(x)
        assert len(self.heard) == 1
        return torch.relu(result)


def test_hooks_that_a_call_adds_are_taken_away(read: Callable[..., Graph]) -> None:
    module = Hooking()
    own = module.inner.register_forward_hook(lambda *_: None)
    for _ in range(2):
        read(module, "4")
        assert not module.is_hooked
        assert list(module.inner._forward_hooks) == [own.id]
        assert not module.inner._forward_pre_hooks


@lru_cache(maxsize=4)
def places(count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(count, device=device).float() / count


def remember(function: Callable[..., Any]) -> Callable[..., Any]:
    """As the libraries decorate theirs, which remember nothing while a compiler runs."""
    remembering = lru_cache(maxsize=4)(function)

    @wraps(function)
    def wrapper(*args: Any) -> Any:
        return remembering(*args)

    return wrapper


class Remembering(nn.Module):
    """Has its tables made by functions that remember them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + places(x.shape[-1], x.device) + self.table(x.shape[-1], x.device)

    @staticmethod
    @remember
    def table(count: int, device: torch.device) -> torch.Tensor:
        return torch.arange(count, device=device).float().cos()


def test_what_functions_remember_of_a_recording_does_not_stay(read: Callable[..., Graph]) -> None:
    module = Remembering()
    graphs = [read(module, "4") for _ in range(2)]
    # As the module runs once its first call is over, in both: two sums.
    assert [len(graph.nodes) for graph in graphs] == [2, 2]
    assert graphs[0].fixed_batch is None
    assert module(torch.zeros(1, 4)).device.type == "cpu"
    # What was remembered before is left alone where nothing is added.
    assert places.cache_info().currsize == 1
    read(module, "4")
    assert places.cache_info().currsize == 1


class Absent:
    """Stands for a package that is not installed, as in MONAI: it raises whatever it is asked for."""

    def __getattribute__(self, name: str) -> Any:
        raise ImportError(f"a package that is not installed was asked for {name}")


class Optional(nn.Module):
    package = Absent()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


def test_packages_that_are_not_installed_are_asked_nothing(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    assert kinds(read(Optional(), "4")) == [OpKind.RELU]
