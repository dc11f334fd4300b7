"""Batched matrix products on GPUs that nobody measured: waves of tiles, as a law with a few shared coefficients.

Five measured devices cannot teach a network what changes from device to device: it learns their five identities. A law
whose every term is a rate of the data sheet can be carried over, and its coefficients are the same for all devices:

    time = max(launch floor, launch floor - shadow + kernel), kernel = (arithmetic^p + traffic^p)^(1/p)

* *Arithmetic*: one tile after the other on the busiest SM. A tile costs its full area, overhang included, and a
  prologue worth a few steps of the reduced dimension. Which tile a library picks differs between its releases and
  devices; the law takes the mean (of logarithms) over the sizes that they ship. A sum that is much longer than any
  measured one, as in the gradient of a weight, is split: what is deeper counts as spread over all SMs.
* *Throttling*: a device whose board power does not feed all its lanes lowers its clock in proportion to the power it
  lacks, but not below the base clock that the data sheet guarantees. Short kernels are over before the clock falls.
* *Traffic*: operands and output at the memory bandwidth, cheaper where they stay in the L2 cache from call to call.
* *Launch floor* and *shadow* (see ``dippm.costs.kernels.model``): the host's, which no data sheet has. Fitted for each
  measuring host; a new one gets their medians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from dippm.costs.kernels.features import DEVICE_FEATURES, device_features
from dippm.costs.kernels.problems import FloatArray, GemmProblem
from dippm.devices.spec import DeviceSpec

__all__ = ["SPLIT_DEPTH", "TILES", "TileLaw", "TileTerms", "tile_terms"]

#: Rows and columns of the output tiles that the law averages over. A single one of them, picked with the left-out
#: device in view, does better on some devices; picked from the other devices alone it does worse (64 x 64 without the
#: A100: a median error of 17 % there instead of 13 %).
TILES = ((64, 64), (64, 128), (128, 64), (128, 128))

#: Rows of the smallest measured products. Below, libraries turn to kernels without tiles: cost falls with the rows.
_LEAST_ROWS = 7.0

#: Depth from which a tile's sum is split, as in ``dippm.costs.tensor_cores``: an assumption, four times the deepest
#: measured product.
SPLIT_DEPTH = 4096.0

#: Share of the traffic's cost that remains where everything stays in the L2 cache, and how sharply the cost rises as
#: the operands outgrow it (per unit of the logarithm).
_CACHED_SHARE, _CACHE_SLOPE = 0.3, 2.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TileTerms:
    """What the law needs of each product on its device, before any coefficient.

    Args:
        waves: Tiles per SM, for each tile size.
        depth: Reduced dimension.
        step_ms: Time of a tile of each size per unit of the reduced dimension at the SM's peak rate, ms.
        input_ms: Time to read both operands once at peak bandwidth, ms.
        output_ms: Time to write the output once, ms.
        log_over_cache: Logarithm of all bytes over the L2 cache's.
        log_clock: Logarithm of the throttled clock over the boost clock, 0 where nothing throttles.

    Shapes:
        waves, step_ms: [n, len(TILES)]; the others: [n].
    """

    waves: FloatArray
    depth: FloatArray
    step_ms: FloatArray
    input_ms: FloatArray
    output_ms: FloatArray
    log_over_cache: FloatArray
    log_clock: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class TileLaw:
    """The law's coefficients, all positive.

    Args:
        slowness: Time of an SM's tiles over that at its peak rate.
        prologue_steps: Steps of the reduced dimension that filling and draining a tile's pipeline is worth.
        shared_wave: Share of the last, partly filled wave that is not waited for, 0 to 1.
        latency_waves: Waves that the first one costs in addition.
        throttle: How much of the throttled clock's slowdown (as a power) long kernels see.
        heat_ms: Arithmetic time at which half of the throttling shows, ms.
        input_cost: Traffic of the operands over reading each once.
        output_cost: Traffic of the output over writing it once.
        cache_reach: Bytes over the L2 cache's at which half of the caching is lost.
        sharpness: Exponent ``p`` that joins arithmetic and traffic; large takes the larger, 1 adds them.
        floor_ms: Launch floor of a host that nobody measured, ms.
        shadow_ms: How long a kernel may run there before a measured time shows it, ms.
    """

    slowness: float
    prologue_steps: float
    shared_wave: float
    latency_waves: float
    throttle: float
    heat_ms: float
    input_cost: float
    output_cost: float
    cache_reach: float
    sharpness: float
    floor_ms: float
    shadow_ms: float

    def time_ms(self, problem: GemmProblem, device: DeviceSpec) -> FloatArray:
        """Time of each product on a device, ms, launch included."""
        return self.floor_ms + np.maximum(self.kernel_ms(tile_terms(problem, device)) - self.shadow_ms, 0.0)

    def kernel_ms(self, terms: TileTerms) -> FloatArray:
        """Time of the kernel alone, ms."""
        waves = (1.0 - self.shared_wave) * np.ceil(terms.waves) + self.shared_wave * terms.waves + self.latency_waves
        steps = np.minimum(terms.depth, SPLIT_DEPTH)[:, None] + self.prologue_steps
        spread = terms.waves * np.maximum(terms.depth - SPLIT_DEPTH, 0.0)[:, None]
        log_arithmetic = np.log(self.slowness * terms.step_ms * (waves * steps + spread)).mean(axis=1)
        heat = _sigmoid(log_arithmetic - np.log(self.heat_ms))
        log_arithmetic = log_arithmetic - self.throttle * terms.log_clock * heat
        outside = _sigmoid(_CACHE_SLOPE * (terms.log_over_cache - np.log(self.cache_reach)))
        traffic = self.output_cost * terms.output_ms + self.input_cost * terms.input_ms
        log_traffic = np.log(traffic * (_CACHED_SHARE + (1.0 - _CACHED_SHARE) * outside))
        joined = np.logaddexp(self.sharpness * log_arithmetic, self.sharpness * log_traffic) / self.sharpness
        return np.asarray(np.exp(joined))

    def to_dict(self) -> dict[str, float]:
        """A JSON-ready form."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, float]) -> TileLaw:
        """The law that `to_dict` gave."""
        return cls(**stored)


def tile_terms(problem: GemmProblem, device: DeviceSpec) -> TileTerms:
    """What the law needs of products on a device; data-sheet numbers only."""
    high, wide = np.array(TILES, dtype=np.float64).T
    rows = np.ceil(problem.m[:, None] / high) * np.minimum(problem.m / _LEAST_ROWS, 1.0)[:, None]
    tiles = problem.b[:, None] * rows * np.ceil(problem.n[:, None] / wide)
    own = dict(zip(DEVICE_FEATURES, device_features(device), strict=True))
    # The lacking power's logarithm is 0 where there is enough of it; the base clock then does not matter.
    log_clock = max(own["log_base_over_boost"], own["log_power_headroom"])
    peak_per_sm = device.peak_tflops["fp32"] * 1e9 / device.sm_count
    bandwidth = device.bandwidth_gb_s * 1e6
    inputs = 4.0 * problem.b * problem.k * (problem.m + problem.n)
    outputs = 4.0 * problem.b * problem.m * problem.n
    return TileTerms(
        waves=tiles / device.sm_count,
        depth=problem.k,
        step_ms=np.tile(2.0 * high * wide / peak_per_sm, (len(problem), 1)),
        input_ms=inputs / bandwidth,
        output_ms=outputs / bandwidth,
        log_over_cache=np.log((inputs + outputs) / (max(device.l2_mb, 0.25) * 2.0**20)),
        log_clock=np.full(len(problem), log_clock),
    )


def _sigmoid(values: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))
