"""What a graph asks of a device at a batch size: FLOPs, MACs, bytes, problem sizes, number formats, memory.

A name's module is imported when the name is first used: whoever only reads a model needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dippm.costs.families import WorkFamily
    from dippm.costs.live_tensors import LiveMemory, live_memory
    from dippm.costs.memory import MemoryEstimate, reserved_bytes
    from dippm.costs.precision import Arithmetic, Precision, TypePlan, plan_types
    from dippm.costs.sizes import GraphSizes
    from dippm.costs.timeline import MemoryTimeline, Purpose
    from dippm.costs.workload import Workload, WorkloadAt

__all__ = [
    "Arithmetic",
    "GraphSizes",
    "LiveMemory",
    "MemoryEstimate",
    "MemoryTimeline",
    "Precision",
    "Purpose",
    "TypePlan",
    "WorkFamily",
    "Workload",
    "WorkloadAt",
    "live_memory",
    "plan_types",
    "reserved_bytes",
]

_HOMES = {
    "Arithmetic": "precision",
    "GraphSizes": "sizes",
    "LiveMemory": "live_tensors",
    "MemoryEstimate": "memory",
    "MemoryTimeline": "timeline",
    "Precision": "precision",
    "Purpose": "timeline",
    "TypePlan": "precision",
    "WorkFamily": "families",
    "Workload": "workload",
    "WorkloadAt": "workload",
    "live_memory": "live_tensors",
    "plan_types": "precision",
    "reserved_bytes": "memory",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
