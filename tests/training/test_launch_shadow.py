from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.costs.kernels import ElementwiseProblem, Family
from dippm.datasets.kernels import KernelRows
from dippm.errors import UsageError
from dippm.training.launch_shadow import fit_shadows

# Launch floor and shadow of each host, microseconds.
HOSTS_US = {"V100-PCIE-32GB": (40.0, 18.0), "T4": (25.0, 12.0)}


def rows(*, per_host: int = 200) -> KernelRows:
    """Kernels at 1 ns for each kilobyte, timed from event to event, by hosts that take longer for some operators."""
    rng = np.random.default_rng(0)
    device = np.repeat(list(HOSTS_US), 2 * per_host)
    table = np.tile(np.repeat(["add", "relu"], per_host), len(HOSTS_US))
    elements = np.round(2.0 ** rng.uniform(4, 26, size=len(device)))
    problem = ElementwiseProblem.of(elements=elements, operator=table.tolist())
    floor_us, shadow_us = (np.array([HOSTS_US[name][place] for name in device]) for place in (0, 1))
    floor_us += np.where(table == "relu", 5.0, 0.0)
    time_us = np.maximum(floor_us, floor_us - shadow_us + problem.bytes * 1e-6)
    return KernelRows(
        family=Family.ELEMENTWISE,
        problem=problem,
        time_ms=time_us / 1e3,
        device=device,
        table=table,
        shape=elements.astype(np.int64)[:, None],
        position=np.zeros(len(device)),
    )


def test_the_shadow_of_each_host_is_found() -> None:
    shadows = fit_shadows(rows())
    assert list(shadows) == sorted(HOSTS_US)
    for name, (_, shadow_us) in HOSTS_US.items():
        assert shadows[name] == pytest.approx(shadow_us / 1e3, rel=0.02)


def test_one_odd_operator_of_several_does_not_decide() -> None:
    table = rows()
    odd = np.flatnonzero(table.table == "add")
    twice = replace(
        table,
        table=np.concatenate([table.table, np.full(len(odd), "mul")]),
        device=np.concatenate([table.device, table.device[odd]]),
        time_ms=np.concatenate([table.time_ms, 3.0 * table.time_ms[odd]]),
        problem=ElementwiseProblem.of(
            elements=np.concatenate([table.problem.elements, table.problem.elements[odd]]),
            operator=[*table.table.tolist(), *["mul"] * len(odd)],
        ),
    )
    assert fit_shadows(twice)["T4"] == pytest.approx(0.012, rel=0.02)


def test_a_table_that_cannot_tell_is_refused() -> None:
    table = rows()
    with pytest.raises(UsageError, match="element-wise"):
        fit_shadows(replace(table, family=Family.SOFTMAX))
    with pytest.raises(UsageError, match="Too few calls on 'T4'"):
        fit_shadows(replace(table, time_ms=np.full(len(table.time_ms), 0.03)))
