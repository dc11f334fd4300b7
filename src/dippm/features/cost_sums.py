"""A model as one row of summed costs: what a plain regressor gets that sees no graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dippm.costs.families import WorkFamily
from dippm.costs.live_tensors import live_memory
from dippm.costs.precision import Precision
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import Graph
from dippm.units import BYTES_PER_MIB

__all__ = ["COST_COLUMNS", "compute_cost_sums"]


_FAMILIES = tuple(family for family in WorkFamily if family is not WorkFamily.FREE)
# The roofline is a weighting of arithmetic against traffic; any card of the last years weighs them alike.
_ROOFLINE_DEVICE = "A100-SXM4-40GB"

COST_COLUMNS: tuple[str, ...] = (
    "batch",
    "macs",
    "flops",
    "traffic_mb",
    "written_mb",
    "parameters",
    "live_peak_mb",
    "workspace_mb",
    "roofline_ms",
    "operators",
    *(f"operators_{family.value}" for family in _FAMILIES),
    *(f"flops_{family.value}" for family in _FAMILIES),
    *(f"traffic_mb_{family.value}" for family in _FAMILIES),
)
"""Columns of :func:`compute_cost_sums`."""


def compute_cost_sums(
    graph: Graph, batches: Sequence[int], *, precision: Precision = Precision.FP32
) -> npt.NDArray[np.float64]:
    """Sum the costs of all operators.

    Args:
        graph: The model.
        batches: Batch sizes, each at least 1.
        precision: Arithmetic; it decides the bytes.

    Returns:
        The sums, in the order of :data:`COST_COLUMNS`.

    Raises:
        UsageError: ``batch.invalid``.

    Shapes:
        Result: [B, len(COST_COLUMNS)].
    """
    work = Workload.from_graph(graph, precision)
    at = work.at(list(batches))
    memory = live_memory(MemoryTimeline.from_workload(work), list(batches))
    device = find_device(_ROOFLINE_DEVICE)
    traffic = at.bytes_read + at.bytes_written
    roofline_ms = np.maximum(at.flops / (device.peak_tflops["fp32"] * 1e9), traffic / (device.bandwidth_gb_s * 1e6))
    members = np.array([[family is name for name in _FAMILIES] for family in work.family], dtype=np.float64)
    members = members.reshape(len(graph.nodes), len(_FAMILIES))
    counts = members.sum(axis=0)
    every = np.ones(len(at.batches))
    return np.column_stack(
        [
            at.batches,
            at.macs.sum(axis=1),
            at.flops.sum(axis=1),
            traffic.sum(axis=1) / BYTES_PER_MIB,
            at.bytes_written.sum(axis=1) / BYTES_PER_MIB,
            every * graph.parameter_count,
            memory.peak_bytes / BYTES_PER_MIB,
            memory.workspace_bytes / BYTES_PER_MIB,
            roofline_ms.sum(axis=1),
            every * counts.sum(),
            np.outer(every, counts),
            at.flops @ members,
            traffic @ members / BYTES_PER_MIB,
        ]
    )
