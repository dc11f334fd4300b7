"""What operators of a trace take in a captured graph."""

from __future__ import annotations

import numpy as np

from dippm.costs.captured_time import captured_us
from dippm.measuring.operator_run import OperatorRun

__all__ = ["captured_ms"]


def captured_ms(run: OperatorRun) -> float:
    """Time of an operator's kernels in a captured graph, with what is waited for before each, ms."""
    return float(captured_us(np.array([kernel.duration_us for kernel in run.kernels])).sum()) / 1e3
