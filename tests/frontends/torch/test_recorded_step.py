"""A node that can still gain releases."""

from __future__ import annotations

from dippm.frontends.torch.recorded_step import RecordedStep
from dippm.graph import Node, OpKind


def test_a_step_is_the_node_that_it_is_so_far() -> None:
    step = RecordedStep(OpKind.RELU, (0,), (1,), {"function": "relu"}, "block", "aten.relu")
    before = step.as_node()
    step.releases.append(0)
    node = {"kind": OpKind.RELU, "inputs": (0,), "outputs": (1,), "attributes": {"function": "relu"}}
    assert before == Node(**node, scope="block", source_op="aten.relu")
    assert step.as_node() == Node(**node, scope="block", source_op="aten.relu", releases=(0,))
