"""Values of small tensors in programs of torch.export: in archives and in memory."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import dippm  # noqa: E402
from dippm.frontends.torch.archive import EntryReader, open_archive  # noqa: E402
from dippm.frontends.torch.exported_values import stored_tensors, stored_values, values_in_memory  # noqa: E402


class Holding(nn.Module):
    """Tensors of all kinds: those whose values are kept first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(12).view(3, 4))
        self.register_buffer("row", self.places[1:2, 1:])
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("allowed", torch.tensor([True, False]), persistent=False)
        self.register_buffer("statistics", torch.randn(3))
        self.register_buffer("many", torch.arange(2**13 + 1))
        self.register_buffer("none", torch.zeros(0, dtype=torch.int64))
        self.linear = nn.Linear(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (self.places.sum() + self.row.sum() + self.many.sum() + self.none.sum()) * self.scale
        return self.linear(x) * kept * self.statistics.sum() * self.allowed.sum() + torch.tensor([1, 2, 3, 4])


def export(module: nn.Module, *inputs: torch.Tensor) -> Any:
    dims = tuple({0: torch.export.Dim("batch")} for _ in inputs)
    return torch.export.export(module.eval(), inputs, dynamic_shapes=dims)


@pytest.fixture(scope="module", name="program")
def _program() -> Any:
    return export(Holding(), torch.zeros(2, 1))


@pytest.fixture(scope="module", name="saved")
def _saved(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.pt2"
    torch.export.save(program, path)
    return path


def read(path: Path) -> dict[str, torch.Tensor]:
    with open_archive(path) as archive:
        reader = EntryReader(archive)
        return stored_values(
            reader, [each for kind in ("weights", "constants") for each in stored_tensors(reader, kind)]
        )


def changed(path: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


def test_small_whole_numbers_and_single_numbers_are_kept(program: Any, saved: Path) -> None:
    module = Holding()
    expected = {name: dict(module.named_buffers())[name] for name in ("places", "row", "scale", "allowed")}
    expected["lifted_tensor_0"] = torch.tensor([1, 2, 3, 4])
    for found in (read(saved), values_in_memory(program)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
            assert found[name].dtype is value.dtype


def test_weights_and_constants_are_told_apart(saved: Path) -> None:
    with open_archive(saved) as archive:
        reader = EntryReader(archive)
        weights, constants = ({name for name, *_ in stored_tensors(reader, kind)} for kind in ("weights", "constants"))
    assert {"linear.weight", "linear.bias", "places", "many"} <= weights
    assert {"allowed", "lifted_tensor_0"} <= constants
    assert not weights & constants


def cut(name: str, content: bytes) -> bytes | None:
    return content[: len(content) // 2 // 8 * 8] if "/weight_" in name else content


def without_bytes(name: str, content: bytes) -> bytes | None:
    return None if "/weight_" in name or "/tensor_" in name else content


def of_another_machine(name: str, content: bytes) -> bytes | None:
    return b"big" if name.endswith("byteorder") else content


def with_open_and_wrong_figures(name: str, content: bytes) -> bytes | None:
    if not name.endswith("_weights_config.json"):
        return content
    read = json.loads(content)
    metas = {key: payload["tensor_meta"] for key, payload in read["config"].items()}
    metas["places"]["strides"][0] = {"as_int": -1}
    metas["scale"]["dtype"] = 99
    metas["row"]["sizes"] = [{"as_expr": {"expr_str": "s0"}}]
    read["config"]["many"] = {"path_name": "weight_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    return json.dumps(read).encode()


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (cut, {"allowed", "lifted_tensor_0"}),
        (without_bytes, set()),
        (of_another_machine, set()),
        (with_open_and_wrong_figures, {"allowed", "lifted_tensor_0"}),
    ],
)
def test_what_does_not_fit_together_has_no_values(
    change: Callable[[str, bytes], bytes | None], left: set[str], saved: Path, tmp_path: Path
) -> None:
    found = read(changed(saved, tmp_path / "m.pt2", change))
    assert found.keys() - {"scale"} == left - {"scale"}


def test_tensors_without_values_are_passed_over(program: Any) -> None:
    class Program:
        constants = {"meta": torch.zeros(2, dtype=torch.int64, device="meta"), "script": object()}  # noqa: RUF012
        state_dict = {"sparse": torch.eye(2, dtype=torch.int64).to_sparse(), "weight": nn.Parameter(torch.ones(1))}  # noqa: RUF012

    assert values_in_memory(Program()) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["constant", "buffer"])
def test_a_loop_counts_from_a_tensor_of_the_program(place: str, tmp_path: Path) -> None:
    class Looping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("first", torch.tensor(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.first.clone() if place == "buffer" else torch.tensor(2)
            return while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, self.linear(y)), (first, x))[1]

    program = export(Looping(), torch.zeros(4, 16))
    torch.export.save(program, tmp_path / "m.pt2")
    for model in (tmp_path / "m.pt2", program):
        graph = dippm.load(model)
        assert [node.kind.value for node in graph.nodes].count("linear") == 3
        assert dippm.predict(graph, batch=2, device="A100").macs == 3 * 2 * 16 * 16
