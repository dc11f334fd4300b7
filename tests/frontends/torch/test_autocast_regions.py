"""Models that switch autocast on or off themselves."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.autocast_mode import autocast

import dippm
from dippm.costs.autocast import DEFAULT_FORMAT, LOWERS_TO, UNCAST
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
    assert not [text for text in graph.warnings if "autocast" in text]
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


def _asked(graph: Graph) -> list[object]:
    return [node.attributes.get(LOWERS_TO) for node in graph.nodes if node.kind is OpKind.LINEAR]


@pytest.mark.parametrize(
    ("region", "asked"),
    [
        (lambda _: torch.autocast("cuda", dtype=torch.bfloat16), "bfloat16"),
        (lambda x: torch.autocast(x.device.type, dtype=torch.float16), "float16"),
        (lambda x: torch.autocast(x.device.type), DEFAULT_FORMAT),
    ],
)
def test_what_a_model_switches_autocast_on_for_follows_it(
    region: Callable[[torch.Tensor], autocast], asked: str
) -> None:
    graph = dippm.load(Net(region).eval(), input="8")
    assert _asked(graph) == [None, asked, None]
    assert not [text for text in graph.warnings if "autocast" in text]
    types = plan_types(graph, Precision.FP32)
    lower = Arithmetic.BF16 if asked == "bfloat16" else Arithmetic.FP16
    found = [each for each, node in zip(types.arithmetic, graph.nodes, strict=True) if node.kind is OpKind.LINEAR]
    assert found == [Arithmetic.FP32, lower, Arithmetic.FP32]


class Nested(nn.Module):
    """Layers in regions within regions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = self.layers[0](x)
            with torch.autocast("cuda", enabled=False):
                x = self.layers[1](x.float())
                # It takes the format of the region around it, as PyTorch's does.
                with torch.autocast("cuda"):
                    x = self.layers[2](x)
            return self.layers[3](x)


def test_the_innermost_region_holds() -> None:
    graph = dippm.load(Nested().eval(), input="8")
    assert _asked(graph) == ["bfloat16", None, "bfloat16", "bfloat16"]
    assert _marked(graph) == [False, True, False, False]


class InFloat32(nn.Module):
    """A layer in a region that lowers to a format of choice, within one that lowers to BF16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.layer = dtype, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16), torch.autocast("cuda", dtype=self.dtype):
            return self.layer(x)


def test_a_region_that_lowers_to_fp32_is_one_that_is_off() -> None:
    graph = dippm.load(InFloat32(torch.float32).eval(), input="8")
    assert (_marked(graph), _asked(graph)) == ([True], [None])
    assert not [text for text in graph.warnings if "autocast" in text]


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.float8_e4m3fn])
def test_a_format_that_autocast_has_not_is_told_of(dtype: torch.dtype) -> None:
    graph = dippm.load(InFloat32(dtype).eval(), input="8")
    assert (_marked(graph), _asked(graph)) == ([True], [None])
    name = str(dtype).partition(".")[2]
    assert [text for text in graph.warnings if f"asks autocast for {name}" in text]


def test_what_a_generator_entered_may_be_left_by_whoever_ends_it() -> None:
    kept: list[Generator[None]] = []

    def inside() -> Generator[None]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            yield

    class Suspends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(inside())
            next(kept[-1])
            x = self.layers[0](x)
            with torch.autocast("cuda", enabled=False):
                kept.pop(0).close()
                return self.layers[1](x)

    graph = dippm.load(Suspends().eval(), input="8")
    assert (_asked(graph), _marked(graph)) == (["bfloat16", None], [False, True])

    # One that is left after reading changes nothing.
    class Leaves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(inside())
            next(kept[-1])
            return x + 1

    dippm.load(Leaves().eval(), input="8")
    assert kept
    while kept:
        kept.pop().close()
    assert not torch.is_autocast_enabled("cuda")


class Decorated(nn.Module):
    """A layer in a function that was decorated before it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    @torch.autocast("cuda", enabled=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class DecoratedForGpu(Decorated):
    """The same by the older spelling, a class of its own."""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)

        @torch.cuda.amp.autocast(enabled=False)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)  # type: ignore[no-any-return]


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # that there is no GPU

    class DecoratedOn(Decorated):
        """Switched on."""

        @torch.autocast("cuda", dtype=torch.bfloat16)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "is_kept", "asked"),
    [(Decorated, True, None), (DecoratedForGpu, True, None), (DecoratedOn, False, "bfloat16")],
)
def test_a_decorator_is_read_from_its_source(module: type[nn.Module], is_kept: bool, asked: str | None) -> None:
    graph = dippm.load(module().eval(), input="8")
    assert (_marked(graph), _asked(graph)) == ([is_kept], [asked])
    assert not [text for text in graph.warnings if "autocast" in text]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU PyTorch says whether it is on")
def test_a_region_that_was_made_before_without_a_gpu_is_told_of() -> None:
    region = torch.autocast("cuda", enabled=False)
    graph = dippm.load(Net(lambda _: region).eval(), input="8")
    assert not any(_marked(graph))
    assert [text for text in graph.warnings if "nobody can tell whether it is on" in text]


def test_an_exported_program_says_it(tmp_path: Path) -> None:
    program = torch.export.export(Net(_off).eval(), (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    graph = dippm.load(tmp_path / "net.pt2")
    assert _marked(graph) == [False, True, False]
    # Without a GPU it would say so of one that is on.
    is_told = any("exported without a GPU" in text for text in graph.warnings)
    assert is_told


def test_an_exported_program_says_what_is_on(tmp_path: Path) -> None:
    net = Net(lambda x: torch.autocast(x.device.type, dtype=torch.bfloat16)).eval()
    torch.export.save(torch.export.export(net, (torch.zeros(2, 8),)), tmp_path / "net.pt2")
    graph = dippm.load(tmp_path / "net.pt2")
    assert _asked(graph) == [None, "bfloat16", None]
    # It would say so too of one that names no format.
    assert [text for text in graph.warnings if "names no format" in text]


def test_a_program_of_a_gpu_is_believed(tmp_path: Path, rewrite_program: Callable[..., None]) -> None:
    program = torch.export.export(Net(_off).eval(), (torch.zeros(2, 8),))
    torch.export.save(program, tmp_path / "net.pt2")

    def on_gpu(text: dict[str, Any]) -> None:
        for meta in text["graph_module"]["graph"]["tensor_values"].values():
            meta["device"]["type"] = "cuda"

    rewrite_program(tmp_path / "net.pt2", on_gpu)
    graph = dippm.load(tmp_path / "net.pt2")
    assert _marked(graph) == [False, True, False]
    assert not [text for text in graph.warnings if "autocast" in text]


def test_graph_files_keep_it(tmp_path: Path) -> None:
    graph = dippm.load(Nested().eval(), input="8")
    dippm.save_graph(graph, tmp_path / "nested.dippm")
    kept = dippm.load(tmp_path / "nested.dippm")
    assert (_asked(kept), _marked(kept)) == (_asked(graph), _marked(graph))


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
