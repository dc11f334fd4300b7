"""Decompositions of matrices in modules: their arithmetic, and what is said of their time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import dippm  # noqa: E402
from dippm.costs import Workload  # noqa: E402
from dippm.costs.decompositions import FLOPS_OF_A_DISTANCE, count_flops  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402

L = torch.linalg
RUNS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[str, dict[str, float]]]] = {
    "svd": (lambda x: L.svd(x)[1], ("svd", {})),
    "singular values": (L.svdvals, ("svd", {"has_vectors": False})),
    "eigenvectors": (lambda x: L.eigh(x)[1], ("eigh", {})),
    "eigenvalues": (L.eigvalsh, ("eigh", {"has_vectors": False})),
    "any eigenvectors": (lambda x: L.eig(x)[1].real, ("eig", {})),
    "inverse": (L.inv, ("inverse", {})),
    "solve": (lambda x: L.solve(x, x[..., :3]), ("solve", {"sides": 3.0})),
    "cholesky": (L.cholesky, ("cholesky", {})),
    "solve by cholesky": (lambda x: torch.cholesky_solve(x[..., :3], x), ("solve_factored", {"sides": 3.0})),
    "qr": (lambda x: L.qr(x)[0], ("qr", {})),
    "r alone": (lambda x: L.qr(x, mode="r")[1], ("qr", {"has_vectors": False})),
    "reflections": (lambda x: torch.geqrf(x)[0], ("householder", {})),
    "least squares": (lambda x: L.lstsq(x, x[..., :3])[0], ("least_squares", {"sides": 3.0})),
    "determinant": (L.det, ("lu", {})),
    "pseudo-inverse": (L.pinv, ("pinv", {})),
    "exponential": (L.matrix_exp, ("exponential", {})),
}


class Runs(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.run, _ = RUNS[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


@pytest.mark.parametrize("name", RUNS)
def test_it_has_its_arithmetic_and_a_warning(read: Callable[..., Graph], name: str) -> None:
    graph = read(Runs(name), "12,12")
    _, (counted, options) = RUNS[name]
    flops = float(Workload.from_graph(graph).at([4]).flops.sum())
    assert flops == pytest.approx(4 * count_flops(counted, 12, 12, **options))
    assert not graph.unsupported_ops
    (told,) = graph.warnings
    assert "is a lower bound" in told


class Distances(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.run = nn.Linear(7, 7), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.layer(x))


@pytest.mark.parametrize(
    ("run", "distances"),
    [
        (lambda x: torch.cdist(x, x[:, :5], p=1.0), 4 * 12 * 5),
        (lambda x: torch.cdist(x, x, p=torch.inf), 4 * 12 * 12),
        (lambda x: torch.pdist(x[0], p=3.0), 12 * 11 / 2),
    ],
)
def test_distances_have_their_arithmetic_and_a_warning(
    read: Callable[..., Graph], run: Callable[[torch.Tensor], torch.Tensor], distances: float
) -> None:
    graph = read(Distances(run), "12,7")
    work = Workload.from_graph(graph)
    counted = work.at([4]).flops[0, work.sizes.is_kind(OpKind.UNKNOWN)]
    assert counted.sum() == pytest.approx(distances * 7 * FLOPS_OF_A_DISTANCE)
    assert not graph.unsupported_ops
    assert any("is a lower bound" in told for told in graph.warnings)


def test_the_interval_is_open_above_and_begins_at_the_arithmetic() -> None:
    found = dippm.predict(Runs("svd"), input="512,512", batch=8, device="A100")
    low, high = found.intervals["latency_ms"]
    peak_ms = 8 * count_flops("svd", 512, 512) / 19.5e9
    assert peak_ms / 1.11 < low <= found.latency_ms < 1.2 * peak_ms
    assert high > 500 * found.latency_ms
    assert found.intervals["energy_j"][1] > 100 * found.energy_j
    other = dippm.predict(nn.Linear(512, 512), input="512,512", batch=8, device="A100")
    assert other.intervals["latency_ms"][1] < 10 * other.latency_ms


@pytest.mark.parametrize(
    ("rows", "sides", "shapes"), [(9, (2,), [(6, 2), (2,)]), (6, (2,), [(6, 2), (0,)]), (9, (), [(6,), (1,)])]
)
def test_least_squares_have_the_shapes_that_they_have_on_a_gpu(
    rows: int, sides: tuple[int, ...], shapes: list[tuple[int, ...]]
) -> None:
    from dippm.frontends.torch.shapes import SHAPE_RULES

    x, right = (torch.empty(4, rows, *last, device="meta") for last in ((6,), sides))
    solution, residuals, rank, values = SHAPE_RULES["linalg_lstsq"]({"self": x, "b": right})
    real = L.lstsq(torch.randn(4, rows, 6), torch.randn(4, rows, *sides), driver="gels")
    assert solution.shape == real.solution.shape == (4, *shapes[0])
    assert residuals.shape == real.residuals.shape == ((4, *shapes[1]) if rows > 6 else (0,))
    assert rank.shape == values.shape == (0,)
