"""A node of a recording that can still gain releases."""

from __future__ import annotations

from dataclasses import dataclass, field

from dippm.graph import Attribute, Node, OpKind

__all__ = ["RecordedStep"]


@dataclass(slots=True)
class RecordedStep:
    """One operator; its fields are those of :class:`~dippm.graph.Node`."""

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Attribute]
    scope: str
    source_op: str
    releases: list[int] = field(default_factory=list)

    def as_node(self) -> Node:
        """The node that it is so far."""
        return Node(
            kind=self.kind,
            inputs=self.inputs,
            outputs=self.outputs,
            attributes=self.attributes,
            scope=self.scope,
            source_op=self.source_op,
            releases=tuple(self.releases),
        )
