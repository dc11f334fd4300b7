"""A small module, files of it, and ways to change what is in them."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.torch import read_module
from dippm.graph import Graph, OpKind

if TYPE_CHECKING:
    from torch import nn


@pytest.fixture(scope="session")
def small() -> type[nn.Module]:
    """Convolution, batch norm, ReLU in place, dropout, linear layer."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.drop = torch.nn.Dropout(0.5)
            self.head = torch.nn.Linear(8, 10)

        def forward(self, x: Any) -> Any:
            x = functional.relu_(self.norm(self.conv(x)))
            x = self.drop(functional.adaptive_avg_pool2d(x, 1).flatten(1))
            return self.head(x)

    return Small


@pytest.fixture(scope="session")
def read() -> Callable[..., Graph]:
    """Read a module with its shapes as on the command line."""
    return lambda module, given, **options: read_module(module, input=parse_input_shapes(given), **options)


@pytest.fixture(scope="session")
def kinds() -> Callable[[Graph], list[OpKind]]:
    """Kinds of a graph's nodes in order, views left out."""
    return lambda graph: [node.kind for node in graph.nodes if node.kind is not OpKind.VIEW]


@pytest.fixture(scope="session")
def save_script() -> Callable[..., Path]:
    """Write a module as TorchScript, scripted, or traced with an example."""
    torch = pytest.importorskip("torch")

    def save(module: nn.Module, path: Path, *, example: Any = None) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.script(module.eval()) if example is None else torch.jit.trace(module, example)
            torch.jit.save(script, path)
        return path

    return save


@pytest.fixture(scope="session")
def export() -> Callable[..., Path]:
    """Write a module as ``torch.export`` does."""
    torch = pytest.importorskip("torch")

    def save(module: nn.Module, path: Path, *examples: Any, **options: Any) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(module.eval(), examples, **options), path)
        return path

    return save


@pytest.fixture(scope="session")
def rewrite() -> Callable[[Path, Callable[[str, bytes], bytes]], None]:
    """Change the entries of an archive."""

    def run(path: Path, change: Callable[[str, bytes], bytes]) -> None:
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, change(name, content))

    return run


@pytest.fixture(scope="session")
def rewrite_program(
    rewrite: Callable[[Path, Callable[[str, bytes], bytes]], None],
) -> Callable[[Path, Callable[[dict[str, Any]], Any]], None]:
    """Change the program in an exported file."""

    def run(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
        def change_entry(name: str, content: bytes) -> bytes:
            if not name.endswith("models/model.json"):
                return content
            program = json.loads(content)
            change(program)
            return json.dumps(program).encode()

        rewrite(path, change_entry)

    return run


@pytest.fixture(scope="session")
def export_call(
    export: Callable[..., Path], rewrite_program: Callable[[Path, Callable[[dict[str, Any]], Any]], None]
) -> Callable[[Path, str, list[dict[str, Any]]], Path]:
    """An exported ReLU before which an operator of the given name runs."""
    torch = pytest.importorskip("torch")

    def make(folder: Path, target: str, arguments: list[dict[str, Any]]) -> Path:
        path = export(torch.nn.ReLU(), folder / "m.pt2", torch.zeros(1, 4))
        node = {
            "target": target,
            "inputs": [{"name": "", "arg": item, "kind": 1} for item in arguments],
            "outputs": [],
            "metadata": {},
        }
        rewrite_program(path, lambda program: program["graph_module"]["graph"]["nodes"].insert(0, node))
        return path

    return make
