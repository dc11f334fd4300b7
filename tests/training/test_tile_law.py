from dataclasses import fields, replace

import numpy as np
import pytest

from dippm.costs.kernels import ElementwiseProblem, Family, GemmProblem
from dippm.costs.kernels.tile_law import TileLaw
from dippm.datasets.kernels import KernelRows
from dippm.devices import find_device
from dippm.errors import UsageError

pytest.importorskip("scipy")

from dippm.training.tile_law import fit_tile_law

TRUTH = TileLaw(
    slowness=1.2,
    prologue_steps=14.0,
    shared_wave=0.5,
    latency_waves=0.4,
    throttle=0.8,
    heat_ms=0.7,
    input_cost=0.8,
    output_cost=1.9,
    cache_reach=1.2,
    sharpness=2.0,
    floor_ms=0.03,
    shadow_ms=0.012,
)
# Launch floor and shadow.
HOSTS_MS = {"V100-PCIE-32GB": (0.04, 0.016), "T4": (0.02, 0.008), "A100-PCIE-40GB": (0.03, 0.012)}


def _rows(count: int = 900) -> KernelRows:
    """Rows that follow the law, one floor and one shadow per host, with every tenth row far out."""
    rng = np.random.default_rng(0)
    shape = np.round(2.0 ** rng.uniform(3, 10, size=(count, 4))).astype(np.int64)
    problem = GemmProblem.of(b=shape[:, 0], m=shape[:, 1], k=shape[:, 2], n=shape[:, 3])
    device = np.array(list(HOSTS_MS))[np.arange(count) % 3]
    time_ms = np.empty(count)
    for name, (floor_ms, shadow_ms) in HOSTS_MS.items():
        own = device == name
        part = GemmProblem(**{each.name: getattr(problem, each.name)[own] for each in fields(problem)})
        time_ms[own] = replace(TRUTH, floor_ms=floor_ms, shadow_ms=shadow_ms).time_ms(part, find_device(name))
    time_ms[::10] *= rng.choice([0.5, 2.0], size=len(time_ms[::10]))
    return KernelRows(
        family=Family.BMM,
        problem=problem,
        time_ms=time_ms,
        device=device,
        table=np.full(count, "bmm"),
        shape=shape,
        position=np.arange(count) / 1000.0,
    )


def test_the_fit_finds_the_law_behind_the_rows_and_the_median_host() -> None:
    fitted = fit_tile_law(_rows(), np.ones(900, dtype=bool))
    assert fitted.floor_ms == pytest.approx(0.03, rel=0.02)
    for name, value in TRUTH.to_dict().items():
        assert getattr(fitted, name) == pytest.approx(value, rel=0.1), name


def test_rows_that_were_not_chosen_do_not_count() -> None:
    rows = _rows()
    chosen = rows.device != "T4"
    before = fit_tile_law(rows, chosen)
    rows.time_ms[~chosen] *= 100.0
    assert fit_tile_law(rows, chosen) == before


def test_other_problems_and_no_rows_are_refused() -> None:
    rows = _rows()
    with pytest.raises(UsageError, match="matrix products"):
        fit_tile_law(rows, np.zeros(900, dtype=bool))
    other = replace(rows, problem=ElementwiseProblem.of(elements=np.ones(900), operator="relu"))
    with pytest.raises(UsageError, match="matrix products"):
        fit_tile_law(other, np.ones(900, dtype=bool))
