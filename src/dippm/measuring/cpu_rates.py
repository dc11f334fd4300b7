"""What this machine's CPU reaches now, measured with PyTorch in about two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

from dippm.costs.cpu_time import CpuRates
from dippm.errors import MissingExtraError

__all__ = ["measure_cpu_rates"]

_MATRIX = 1024
# Channels and pixels of a side: 0.23 GFLOPs, of the shape that convolutions have in the middle of a network.
_CHANNELS, _PIXELS = 64, 56
_TINY_CHANNELS, _TINY_PIXELS = 8, 4
# Read and written, a copy moves twice as much: more than the last cache of nearly every processor, and less than a
# core's own one.
_COPIED_BYTES = 2**27
_CACHED_BYTES = 2**20
# More than the allocator of the C library keeps when it is freed.
_FRESH_BYTES = 2**26
_TINY_CALLS = 1000
_FEW_CALLS = 50
_BUDGET_S = 0.2
_FEWEST_RUNS = 3


def measure_cpu_rates(*, threads: int | None = None) -> CpuRates:
    """Measure the rates in this process.

    The best of several runs counts: what else runs on the machine only ever adds to a time.

    Args:
        threads: Threads of an operator, at least 1; None for as many as PyTorch uses in this process.

    Raises:
        MissingExtraError: PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingExtraError(package="torch", extra="measure", purpose="measure what the CPU reaches")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else threads)
    try:
        return _measure()
    finally:
        torch.set_num_threads(before)


def _measure() -> CpuRates:
    import torch
    from torch.nn import functional

    with torch.inference_mode():
        left, right = (torch.ones(_MATRIX, _MATRIX) for _ in range(2))
        product = torch.empty(_MATRIX, _MATRIX)
        product_s = _best_s(lambda: torch.mm(left, right, out=product))
        image, weight = torch.ones(1, _CHANNELS, _PIXELS, _PIXELS), torch.ones(_CHANNELS, _CHANNELS, 3, 3)
        convolution_s = _best_s(lambda: functional.conv2d(image, weight, padding=1))
        # Of two samples, and grouped: PyTorch gives the smallest others to another library than the large ones.
        small = torch.ones(2, _TINY_CHANNELS, _TINY_PIXELS, _TINY_PIXELS)
        filters = torch.ones(_TINY_CHANNELS, 1, 3, 3)
        tiny_convolution_s = _best_s(
            lambda: _repeat(lambda: functional.conv2d(small, filters, padding=1, groups=_TINY_CHANNELS), _FEW_CALLS)
        )
        copy_s, cached_s = (_best_s(_copying(size)) for size in (_COPIED_BYTES, _CACHED_BYTES))
        fresh_s = _best_s(lambda: torch.empty(_FRESH_BYTES // 4).fill_(1.0))
        tiny = torch.ones(16)
        tiny_s = _best_s(lambda: _repeat(lambda: torch.relu(tiny), _TINY_CALLS))
    return CpuRates(
        gflops=2.0 * _MATRIX**3 / product_s / 1e9,
        convolution_gflops=2.0 * 9 * (_CHANNELS * _PIXELS) ** 2 / convolution_s / 1e9,
        bandwidth_gb_s=2.0 * _COPIED_BYTES / copy_s / 1e9,
        cache_gb_s=2.0 * _CACHED_BYTES / cached_s / 1e9,
        fresh_gb_s=_FRESH_BYTES / fresh_s / 1e9,
        dispatch_us=tiny_s / _TINY_CALLS * 1e6,
        convolution_us=tiny_convolution_s / _FEW_CALLS * 1e6,
        threads=torch.get_num_threads(),
    )


def _copying(size: int) -> Callable[[], object]:
    import torch

    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def _best_s(call: Callable[[], object]) -> float:
    """Shortest time of a call, s; the first one warms up."""
    call()
    best, runs, deadline = float("inf"), 0, time.perf_counter() + _BUDGET_S
    while runs < _FEWEST_RUNS or time.perf_counter() < deadline:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best
