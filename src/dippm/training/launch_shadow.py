"""How long a kernel may run before a measured call shows it, read off the element-wise tables.

A call lies between two events. The host records the second when it has launched everything and has come back, so that
calls of short kernels all take the floor, and one of a longer kernel takes ``floor - shadow + kernel`` (see
``dippm.costs.kernels.model``). Element-wise kernels tell the shadow, because their time is proportional to what they
move: where a call takes several floors its time is a straight line in the bytes, and the line meets zero bytes below
the floor by the shadow. A kernel's own start and end are in that line, and count as shadow no more.
"""

from __future__ import annotations

import numpy as np

from dippm.costs.kernels.problems import Family, FloatArray
from dippm.datasets.kernels import KernelRows
from dippm.errors import UsageError

__all__ = ["fit_shadows"]

# Kernels that move so little are over within a microsecond or two.
_SMALL_BYTES = 1e5
# Where the line is taken from, in floors: below, caches bend it; above, a microsecond is lost in the noise.
_LINE = (2.0, 8.0)


def fit_shadows(rows: KernelRows) -> dict[str, float]:
    """The shadow of each measuring host, ms: the median over its operators.

    Args:
        rows: Measured element-wise operators.

    Raises:
        UsageError: ``training.rows`` where the rows are of another family, or too few to tell.
    """
    if rows.family is not Family.ELEMENTWISE:
        raise UsageError("The shadow of a launch needs measured element-wise operators.", code="training.rows")
    shadows = {}
    for device in np.unique(rows.device).tolist():
        of_operators = []
        for table in np.unique(rows.table).tolist():
            chosen = (rows.device == device) & (rows.table == table)
            if chosen.any():
                of_operators.append(_shadow_ms(rows.problem.bytes[chosen], rows.time_ms[chosen], device=device))
        shadows[device] = float(f"{np.median(of_operators):.4g}")
    return shadows


def _shadow_ms(moved: FloatArray, time_ms: FloatArray, *, device: str) -> float:
    is_small = moved <= _SMALL_BYTES
    floor_ms = float(np.median(time_ms[is_small])) if is_small.any() else 0.0
    on_line = (time_ms > _LINE[0] * floor_ms) & (time_ms < _LINE[1] * floor_ms)
    if on_line.sum() < 2:
        raise UsageError(f"Too few calls on '{device}' to tell the shadow of a launch.", code="training.rows")
    terms = np.stack([np.ones(on_line.sum()), moved[on_line]], axis=1) / time_ms[on_line, None]
    (intercept_ms, _), *_ = np.linalg.lstsq(terms, np.ones(len(terms)), rcond=None)
    return max(floor_ms - float(intercept_ms), 0.0)
