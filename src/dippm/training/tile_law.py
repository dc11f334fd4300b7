"""Fit of the law of batched products (`dippm.costs.kernels.tile_law`) on measured rows: robust least squares.

The coefficients are shared by all devices; each measuring host has a launch floor and a shadow of its own, which are
nuisances: the law keeps their medians.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.problems import FloatArray, GemmProblem
from dippm.costs.kernels.tile_law import TileLaw, TileTerms, tile_terms
from dippm.datasets.kernels import KernelRows
from dippm.devices import find_device
from dippm.errors import MissingExtraError, UsageError

__all__ = ["fit_tile_law"]

#: Start, least and largest value of every coefficient; those of `_OF_HOSTS` are each host's.
_BOUNDS = {
    "slowness": (1.12, 0.9, 2.0),
    "prologue_steps": (10.0, 1.0, 100.0),
    "shared_wave": (0.3, 0.01, 1.0),
    "latency_waves": (0.5, 0.01, 3.0),
    "throttle": (1.0, 0.3, 2.0),
    "heat_ms": (1.5, 0.05, 20.0),
    "input_cost": (1.0, 0.05, 5.0),
    "output_cost": (1.5, 0.2, 5.0),
    "cache_reach": (0.8, 0.1, 10.0),
    "sharpness": (3.0, 1.0, 8.0),
    "floor_ms": (0.04, 0.005, 0.1),
    "shadow_ms": (0.015, 0.001, 0.05),
}
_OF_HOSTS = ("floor_ms", "shadow_ms")

#: Error of log time from which on a row counts by its absolute error: small, as the tiles that the law misses are many
#: and the median is what is reported.
_OUTLYING = 0.01


def fit_tile_law(rows: KernelRows, chosen: npt.NDArray[np.bool_]) -> TileLaw:
    """Fit the law's coefficients; deterministic.

    Args:
        rows: Measured rows of batched or plain matrix products.
        chosen: Rows to fit on.

    Raises:
        UsageError: The rows are of another family, or none is chosen.
        MissingExtraError: SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the law of batched products") from exc
    if not isinstance(rows.problem, GemmProblem) or not chosen.any():
        raise UsageError("The law of tiles needs measured matrix products.", code="training.rows")
    terms = _terms_of_rows(rows.problem, rows.device, chosen)
    hosts, host = np.unique(rows.device[chosen], return_inverse=True)
    target = np.log(rows.time_ms[chosen])
    shared = [name for name in _BOUNDS if name not in _OF_HOSTS]
    names = [*shared, *(name for name in _OF_HOSTS for _ in hosts)]
    start, low, high = (np.log([_BOUNDS[name][place] for name in names]) for place in range(3))

    def law_of(logarithms: FloatArray) -> TileLaw:
        values = np.exp(logarithms)
        of_hosts = values[len(shared) :].reshape(len(_OF_HOSTS), -1)
        medians = dict(zip(_OF_HOSTS, np.median(of_hosts, axis=1).tolist(), strict=True))
        return TileLaw(**{name: float(value) for name, value in zip(shared, values, strict=False)}, **medians)

    def errors(logarithms: FloatArray) -> FloatArray:
        floor_ms, shadow_ms = np.exp(logarithms[len(shared) :]).reshape(len(_OF_HOSTS), -1)[:, host]
        above_ms = np.maximum(law_of(logarithms).kernel_ms(terms) - shadow_ms, 0.0)
        return np.asarray(np.log(floor_ms + above_ms) - target)

    solution = least_squares(
        errors, start, bounds=(low, high), loss="soft_l1", f_scale=_OUTLYING, diff_step=1e-3, max_nfev=60
    )
    fitted = law_of(solution.x).to_dict()
    return TileLaw.from_dict({name: float(f"{value:.5g}") for name, value in fitted.items()})


def _terms_of_rows(problem: GemmProblem, device: npt.NDArray[np.str_], chosen: npt.NDArray[np.bool_]) -> TileTerms:
    sizes = {each.name: getattr(problem, each.name)[chosen] for each in fields(problem)}
    owners = device[chosen]
    parts, places = [], []
    for name in np.unique(owners):
        own = np.flatnonzero(owners == name)
        part = GemmProblem(**{size: values[own] for size, values in sizes.items()})
        parts.append(tile_terms(part, find_device(str(name))))
        places.append(own)
    # The rows stand device by device now; this brings them back into their order.
    order = np.argsort(np.concatenate(places))
    joined = {each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(TileTerms)}
    return TileTerms(**{name: values[order] for name, values in joined.items()})
