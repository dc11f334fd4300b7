"""Where the time and memory of one prediction go, operator by operator and module by module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dippm.costs.training_step.training_graph import Phase
from dippm.graph import OpKind
from dippm.predictors.physics import Explanation
from dippm.predictors.prediction import Prediction, format_figure, round_figures

__all__ = ["Inspection", "ModuleCost", "OperatorCost"]


# No model is nested like this; a file made to break programs may be, and JSON and pages nest as the modules do.
_DEEPEST_MODULE = 64
_SEVERAL = 2
# Operators that a text of a few lines has room for.
_PRINTED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorCost:
    """One operator's part of a prediction.

    Args:
        position: Place in the execution order, from 0.
        kind: What it computes (``OpKind`` value).
        source_op: The framework's name of the operator.
        phase: Part of a training step that it belongs to: ``"forward"``, as all are at inference, ``"backward"`` or
            ``"optimizer"``.
        scope: Path of the module that it belongs to, ``""`` where unknown.
        output_shape: Shape of its first output at the inspected batch.
        macs: Multiply-accumulates.
        flops: Floating-point operations.
        traffic_mb: Device memory traffic at the least, MiB.
        time_ms: Its part of ``latency_ms``: the parts of all operators add up to it.
        live_mb: Live tensors while it runs, MiB.
        kernel: Position of the operator in whose kernel it runs: its own, or in a compiled model that of the last one
            that was fused with it.
    """

    position: int
    kind: str
    source_op: str
    phase: str
    scope: str
    output_shape: tuple[int, ...]
    macs: float
    flops: float
    traffic_mb: float
    time_ms: float
    live_mb: float
    kernel: int

    def to_dict(self) -> dict[str, object]:
        """A row for JSON."""
        return {
            "position": self.position,
            "kind": self.kind,
            "source_op": self.source_op,
            "phase": self.phase,
            "scope": self.scope,
            "output_shape": list(self.output_shape),
            "macs": int(self.macs),
            "flops": int(self.flops),
            "traffic_mb": round_figures(self.traffic_mb),
            "time_ms": round_figures(self.time_ms),
            "live_mb": round_figures(self.live_mb),
            "kernel": self.kernel,
        }


@dataclass(kw_only=True, slots=True)
class ModuleCost:
    """Sum over one module and everything below it.

    Args:
        name: Last part of the module's path; ``""`` for the whole model.
        time_ms: Part of ``latency_ms``.
        macs: Multiply-accumulates.
        peak_mb: Highest live memory while any of its operators runs, MiB.
        operators: Operators within, those of submodules included; views, which take the host's time alone, apart.
        children: Submodules in execution order.
    """

    name: str
    time_ms: float = 0.0
    macs: float = 0.0
    peak_mb: float = 0.0
    operators: int = 0
    children: dict[str, ModuleCost] = field(default_factory=dict)

    def add(self, operator: OperatorCost) -> None:
        """Count one operator here (not in the children)."""
        self.time_ms += operator.time_ms
        self.macs += operator.macs
        self.peak_mb = max(self.peak_mb, operator.live_mb)
        self.operators += operator.kind != OpKind.VIEW

    def walk(self) -> Iterator[tuple[int, ModuleCost]]:
        """This module and those below it, depth first, each with its depth."""
        stack = [(0, self)]
        while stack:
            depth, module = stack.pop()
            yield depth, module
            stack.extend((depth + 1, child) for child in reversed(module.children.values()))

    def to_dict(self) -> dict[str, object]:
        """This module and those below it for JSON."""
        return {
            "name": self.name,
            "time_ms": round_figures(self.time_ms),
            "macs": int(self.macs),
            "peak_mb": round_figures(self.peak_mb),
            "operators": self.operators,
            "children": [child.to_dict() for child in self.children.values()],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """A prediction with its operators.

    Args:
        prediction: The prediction that the operators explain.
        operators: Operators in execution order; of views those alone that take the host's time.
        weights_mb: Weights on the device, MiB.
    """

    prediction: Prediction
    operators: tuple[OperatorCost, ...]
    weights_mb: float

    @classmethod
    def of(cls, explanation: Explanation) -> Inspection:
        """Put the nodes of a graph beside what they add to its prediction."""
        prediction, graph = explanation.prediction, explanation.graph
        phases = {int(phase): phase.name.lower() for phase in Phase}
        operators = tuple(
            OperatorCost(
                position=position,
                kind=node.kind.value,
                source_op=node.source_op,
                phase=phases[explanation.phase[position]],
                scope=node.scope,
                output_shape=tuple(dim.at(prediction.batch) for dim in graph.tensors[node.outputs[0]].shape)
                if node.outputs
                else (),
                macs=float(explanation.macs[position]),
                flops=float(explanation.flops[position]),
                traffic_mb=float(explanation.traffic_mb[position]),
                time_ms=float(explanation.time_ms[position]),
                live_mb=float(explanation.live_mb[position]),
                kernel=int(explanation.kernel[position]),
            )
            for position, node in enumerate(graph.nodes)
            if node.kind is not OpKind.VIEW or explanation.time_ms[position] > 0
        )
        return cls(prediction=prediction, operators=operators, weights_mb=prediction.memory_parts_mb["weights"])

    def top_by_time(self, count: int = 10) -> list[OperatorCost]:
        """The operators that take the most time, longest first."""
        return sorted(self.operators, key=lambda operator: -operator.time_ms)[:count]

    def top_by_memory(self, count: int = 10) -> list[OperatorCost]:
        """The operators during which the most memory is live, highest first."""
        return sorted(self.operators, key=lambda operator: -operator.live_mb)[:count]

    def tree(self) -> ModuleCost:
        """Time, MACs and peak memory by module; an operator without a module counts under its kind."""
        root = ModuleCost(name="")
        for operator in self.operators:
            module = root
            module.add(operator)
            for part in (operator.scope or f"({operator.kind})").split(".", _DEEPEST_MODULE):
                module = module.children.setdefault(part, ModuleCost(name=part))
                module.add(operator)
        return root

    def by_phase(self) -> dict[str, float]:
        """Time of each phase in ms, in the order in which they run; at inference there is one."""
        sums: dict[str, float] = {}
        for operator in self.operators:
            sums[operator.phase] = sums.get(operator.phase, 0.0) + operator.time_ms
        return sums

    def by_kind(self) -> list[tuple[str, float, float, int]]:
        """(kind, time in ms, MACs, number of operators) for every kind, longest first."""
        sums: dict[str, list[float]] = {}
        for operator in self.operators:
            entry = sums.setdefault(operator.kind, [0.0, 0.0, 0.0])
            entry[0] += operator.time_ms
            entry[1] += operator.macs
            entry[2] += 1
        rows = [(kind, entry[0], entry[1], int(entry[2])) for kind, entry in sums.items()]
        return sorted(rows, key=lambda row: -row[1])

    @property
    def phase_line(self) -> str:
        """What a training step is made up of; ``""`` at inference."""
        phases = self.by_phase()
        if len(phases) < _SEVERAL:
            return ""
        return "step = " + " + ".join(f"{name} {format_figure(time_ms)}" for name, time_ms in phases.items()) + " ms"

    def __str__(self) -> str:
        prediction = self.prediction
        total_ms = prediction.latency_ms
        rows = [*prediction.figure_rows(), *([f"  {self.phase_line}"] if self.phase_line else [])]
        rows.append(f"  the longest of {len(self.operators):,} operators:")
        rows += [
            f"  {operator.kind:<16} {format_figure(operator.time_ms):>8} ms "
            f"{100 * operator.time_ms / total_ms if total_ms else 0:3.0f} %  {operator.scope or operator.source_op}"
            for operator in self.top_by_time(_PRINTED)
        ]
        return "\n".join([prediction.title(), *rows, *prediction.warning_rows()])

    def to_dict(self) -> dict[str, object]:
        """The whole inspection for JSON."""
        return {
            "schema": 1,
            "model": self.prediction.model.to_dict(),
            "prediction": self.prediction.to_dict(),
            "phases": {phase: round_figures(time_ms) for phase, time_ms in self.by_phase().items()},
            "operators": [operator.to_dict() for operator in self.operators],
            "modules": self.tree().to_dict(),
        }
