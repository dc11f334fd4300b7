"""What this machine's CPU reaches now, measured with PyTorch in about a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

from dippm.costs.cpu_time import CpuRates
from dippm.errors import MissingExtraError

__all__ = ["measure_cpu_rates"]

_MATRIX = 1024
# Read and written, a copy moves twice as much: more than the last cache of nearly every processor.
_COPIED_BYTES = 2**27
_TINY_CALLS = 1000
_BUDGET_S = 0.3
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

    with torch.inference_mode():
        left, right = (torch.ones(_MATRIX, _MATRIX) for _ in range(2))
        product = torch.empty(_MATRIX, _MATRIX)
        product_s = _best_s(lambda: torch.mm(left, right, out=product))
        source = torch.ones(_COPIED_BYTES // 4)
        target = torch.empty_like(source)
        copy_s = _best_s(lambda: target.copy_(source))
        tiny = torch.ones(16)

        def call_often() -> None:
            for _ in range(_TINY_CALLS):
                torch.relu(tiny)

        calls_s = _best_s(call_often)
    return CpuRates(
        gflops=2.0 * _MATRIX**3 / product_s / 1e9,
        bandwidth_gb_s=2.0 * _COPIED_BYTES / copy_s / 1e9,
        dispatch_us=calls_s / _TINY_CALLS * 1e6,
        threads=torch.get_num_threads(),
    )


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
