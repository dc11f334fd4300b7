from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Mode
from dippm.frontends.trace_of_training import check_training
from dippm.graph import OpKind


@pytest.mark.parametrize(
    ("kind", "attributes", "is_warned"),
    [
        (OpKind.RELU, {}, True),
        (OpKind.BATCH_NORM, {}, True),
        (OpKind.BATCH_NORM, {"is_training": True}, False),
        (OpKind.DROPOUT, {}, False),
        (OpKind.LSTM, {"has_dropout": True}, False),
        (OpKind.RANDOM, {}, False),
    ],
)
def test_only_what_training_has_tells(builder: Any, kind: OpKind, attributes: dict[str, bool], is_warned: bool) -> None:
    builder.node(kind, [builder.input(builder.N, 4)], builder.N, 4, **attributes)
    graph = builder.graph()
    checked = check_training(graph, Mode.TRAINING)
    assert (checked.nodes, checked.tensors) == (graph.nodes, graph.tensors)
    assert len(checked.warnings) == is_warned
    assert all("exported for inference" in warning and "'test'" in warning for warning in checked.warnings)
    assert check_training(graph, Mode.INFERENCE) is graph
