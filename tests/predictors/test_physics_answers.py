"""Several graphs on one device; what an answer says is tested with whole predictions in test_physics.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from dippm.costs.conditions import Conditions
from dippm.devices import find_device
from dippm.graph import DType, Graph, OpKind
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction


def _chain(builder: Any, count: int, *, kind: OpKind = OpKind.RELU, dtype: DType = DType.FLOAT32) -> Graph:
    x = builder.input(builder.N, 500, dtype=dtype)
    for _ in range(count):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(500, 500, dtype=dtype)], builder.N, 500, dtype=dtype)
        x = builder.node(kind, [x], builder.N, 500, dtype=dtype)
    return builder.graph(x)  # type: ignore[no-any-return]


def _said(prediction: Prediction) -> dict[str, Any]:
    return {each.name: getattr(prediction, each.name) for each in fields(Prediction)}


@pytest.mark.parametrize(
    ("device", "conditions"),
    [
        ("A100", {"precision": "amp"}),
        ("A100", {"precision": "fp32-strict"}),
        ("RTX 3090", {"precision": "fp16"}),
        ("RTX 3090", {"precision": "amp", "mode": "training", "optimizer": "adamw"}),
        ("H100", {"precision": "amp", "runtime": "cuda-graph"}),
        ("RTX 4090", {"precision": "amp", "runtime": "compile"}),
        ("P100", {"precision": "fp32"}),
    ],
)
def test_a_graph_is_answered_to_the_last_digit_alone_as_beside_others(
    new_builder: Callable[[], Any], device: str, conditions: dict[str, str]
) -> None:
    graphs = [
        _chain(new_builder(), 1),
        _chain(new_builder(), 40),
        _chain(new_builder(), 3, kind=OpKind.SORT),
        _chain(new_builder(), 7, dtype=DType.FLOAT16),
        _chain(new_builder(), 2, kind=OpKind.UNKNOWN),
    ]
    asked: dict[str, Any] = {
        "batches": [1, 16, 700],
        "devices": [find_device(device)],
        "conditions": Conditions.parse(**conditions),
    }
    together = PhysicsPredictor.load().predict_each(graphs, **asked)
    for graph, answers in zip(graphs, together, strict=True):
        alone = PhysicsPredictor.load().predict(graph, **asked)
        assert [_said(each) for each in answers] == [_said(each) for each in alone]
