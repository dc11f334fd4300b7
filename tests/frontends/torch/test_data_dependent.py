"""Modules whose operators follow from the values of their input: refused with the line, readable once specialised."""

import gc
import inspect
import warnings
from pathlib import Path

import pytest

import dippm
from dippm.errors import UnsupportedError

torch = pytest.importorskip("torch")
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = torch.nn.Linear(8, 8)
        self.large = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    def forward(self, x):
        if x.mean() > 0:  # decides
            return self.small(x)
        return self.large(x)


class Steps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x, count):
        for _ in range(int(count)):  # decides
            x = self.layer(x)
        return x


class Keep(torch.nn.Module):
    def forward(self, x):
        kept = x[x[:, 0] > 0]  # decides
        return torch.relu(kept)


def _line(kind: type) -> int:
    lines, start = inspect.getsourcelines(kind)
    return start + next(place for place, line in enumerate(lines) if "# decides" in line)


@pytest.mark.parametrize(
    ("kind", "given", "cure"),
    [
        (Gate, "8", "torch.jit.trace"),
        (Steps, ["8", ((), "int64", "unbatched")], "draft_export"),
        (Keep, "8", "before that line"),
    ],
)
def test_the_error_names_the_line_and_the_cure(kind: type, given: object, cure: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dippm.load(kind(), input=given)
    assert caught.value.code == "torch.data_dependent"
    assert caught.value.exit_status == 4
    assert f"{Path(__file__).name}:{_line(kind)}" in str(caught.value)
    assert cure in (caught.value.cure or "")


def test_the_cure_names_first_what_works_for_every_module() -> None:
    with pytest.raises(UnsupportedError) as caught:
        dippm.load(Gate(), input="8")
    cure = caught.value.cure or ""
    assert 0 < cure.index("torch.jit.trace") < cure.index("draft_export")


@pytest.mark.parametrize(("sign", "layers"), [(1.0, 1), (-1.0, 2)])
def test_a_trace_keeps_what_its_example_ran(tmp_path: Path, sign: float, layers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Gate().eval(), sign * torch.ones(4, 8)).save(tmp_path / "gate.pt")
    graph = dippm.load(tmp_path / "gate.pt", input="8")
    assert [node.kind.value for node in graph.nodes].count("linear") == layers
    assert graph.fixed_batch is None


@pytest.mark.slow
def test_a_draft_export_keeps_what_its_example_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DTRACE", str(tmp_path / "trace"))
    for module, example, layers in (
        (Gate(), (-torch.ones(4, 8),), 2),
        (Steps(), (torch.ones(4, 8), torch.tensor(3)), 3),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.draft_export(module.eval(), example), tmp_path / "model.pt2")
            # It leaves its log open: that is said here, and not in a test that runs when it is collected.
            gc.collect()
        graph = dippm.load(tmp_path / "model.pt2")
        assert [node.kind.value for node in graph.nodes].count("linear") == layers


class Switched(torch.nn.Module):
    """Has a switch among its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("switches", torch.ones(4))

    def forward(self, x):
        return x.relu() if self.switches[2] > 0 else x.tanh()


def test_a_buffer_without_values_that_decides_is_named() -> None:
    with torch.device("meta"):
        without_values = Switched()
    with pytest.raises(
        UnsupportedError, match=r"its buffer switches at .*test_data_dependent\.py:.*it has none"
    ) as caught:
        dippm.load(without_values, input="8")
    assert caught.value.code == "torch.data_dependent"
    assert [node.source_op for node in dippm.load(Switched(), input="8").nodes][-1] == "aten.relu"  # the cure, taken


def test_a_buffer_beside_the_input_does_not_decide_alone() -> None:
    class Compares(Switched):
        def forward(self, x):
            return x.relu() if (x[:, :4] > self.switches).all() else x

    with torch.device("meta"):
        without_values = Compares()
    with pytest.raises(UnsupportedError, match="values of its input"):
        dippm.load(without_values, input="8")


def test_a_loss_that_refuses_negative_variances_is_read() -> None:
    class Loss(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gaussian_nll_loss(x, y, variance)

    graph = read_module(Loss(), input=parse_input_shapes(["8", "8", "8"]))
    assert [("checks of its values" in warning) for warning in graph.warnings] == [True]
    # What it checks by runs as well.
    assert [node.source_op for node in graph.nodes][:2] == ["aten.lt", "aten.any"]
