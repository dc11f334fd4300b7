"""What a graph asks of a device at a batch size: FLOPs, MACs, bytes, problem sizes, number formats, memory."""

from dippm.costs.families import WorkFamily
from dippm.costs.memory import LiveMemory, MemoryEstimate, estimate_memory, live_memory, reserved_bytes
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
    "estimate_memory",
    "live_memory",
    "plan_types",
    "reserved_bytes",
]
