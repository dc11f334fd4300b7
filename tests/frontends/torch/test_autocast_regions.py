"""Models that switch autocast on or off themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp.autocast_mode import autocast

import dippm
from dippm.costs.autocast import UNCAST
from dippm.costs.precision import Arithmetic, Precision, plan_types
from dippm.graph import Graph, OpKind


class Net(nn.Module):
    """Two layers, the second in a region of its own."""

    def __init__(self, region: Callable[[torch.Tensor], autocast]) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.region = region

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with self.region(x):
            x = self.second(x.float())
        return self.third(x)


def _off(_: torch.Tensor) -> autocast:
    return torch.autocast("cuda", enabled=False)


def _marked(graph: Graph) -> list[bool]:
    return [UNCAST in node.attributes for node in graph.nodes if node.kind is OpKind.LINEAR]


@pytest.mark.parametrize(
    "region",
    [
        _off,
        lambda x: torch.autocast(x.device.type, enabled=False),
        lambda _: torch.amp.autocast("cuda", dtype=torch.bfloat16, enabled=False),
    ],
)
def test_what_a_model_keeps_from_autocast_computes_in_its_own_type(region: Callable[[torch.Tensor], autocast]) -> None:
    graph = dippm.load(Net(region).eval(), input="8")
    assert _marked(graph) == [False, True, False]
    assert not [warning for warning in graph.warnings if "autocast" in warning]
    types = plan_types(graph, Precision.AMP)
    arithmetic = [
        types.is_computed_in(Arithmetic.FP16)[i] for i, n in enumerate(graph.nodes) if n.kind is OpKind.LINEAR
    ]
    assert arithmetic == [True, False, True]
    # What the second layer reads is cast by hand, and what the third one does by autocast.
    linear = [number for number, node in enumerate(graph.nodes) if node.kind is OpKind.LINEAR]
    casts = types.casts
    assert [casts.to_bytes[casts.node == node].tolist() for node in linear] == [[2.0] * 3, [4.0], [2.0] * 3]


def test_graphs_without_regions_and_other_precisions_know_nothing_of_it() -> None:
    plain = dippm.load(Net(lambda _: torch.no_grad()).eval(), input="8")  # type: ignore[arg-type,return-value]
    kept = dippm.load(Net(_off).eval(), input="8")
    assert not any(_marked(plain))
    for precision in (Precision.FP32, Precision.FP16, Precision.BF16):
        ours, others = (plan_types(graph, precision) for graph in (kept, plain))
        assert ours.arithmetic_number.tolist() == others.arithmetic_number.tolist()


def test_a_model_that_switches_autocast_on_is_told_of() -> None:
    def on(_: torch.Tensor) -> autocast:
        return torch.autocast("cuda", dtype=torch.bfloat16)

    graph = dippm.load(Net(on).eval(), input="8")
    assert not any(_marked(graph))
    (warning,) = [warning for warning in graph.warnings if "autocast" in warning]
    assert warning.startswith("The model switches autocast on")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU PyTorch says whether it is on")
def test_a_region_that_was_made_before_without_a_gpu_is_told_of() -> None:
    region = torch.autocast("cuda", enabled=False)
    graph = dippm.load(Net(lambda _: region).eval(), input="8")
    assert not any(_marked(graph))
    assert [warning for warning in graph.warnings if "nobody can tell whether it is on" in warning]


def test_an_exported_program_says_it(tmp_path: Path) -> None:
    program = torch.export.export(Net(_off).eval(), (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    assert _marked(dippm.load(tmp_path / "net.pt2")) == [False, True, False]


def test_autocast_is_as_it_was_afterwards_and_elsewhere() -> None:
    before = autocast.__init__, autocast.__enter__, autocast.__exit__
    seen: list[torch.dtype] = []

    def other() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen.append((torch.zeros(2, 2) @ torch.zeros(2, 2)).dtype)

    class Starts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return x + 1

    dippm.load(Starts(), input="8")
    assert seen
    assert set(seen) == {torch.bfloat16}
    assert (autocast.__init__, autocast.__enter__, autocast.__exit__) == before

    kept: list[autocast] = []

    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(torch.autocast("cpu", dtype=torch.bfloat16))
            with kept[-1]:
                return x @ x

    dippm.load(Keeps(), input="8,8")
    with kept[-1]:
        assert (torch.zeros(2, 2) @ torch.zeros(2, 2)).dtype is torch.bfloat16

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                raise RuntimeError("so")

    with pytest.raises(dippm.DippmError):
        dippm.load(Fails(), input="8")
    assert (autocast.__init__, autocast.__enter__, autocast.__exit__) == before
