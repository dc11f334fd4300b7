"""What a prediction says that it cannot vouch for; the rest is tested where predictions are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dippm
from dippm.devices import find_device
from dippm.graph import DType, OpKind
from dippm.predictors.physics_warnings import warn_of_answer

_ROOM = find_device("A100").capacity_mb


@pytest.mark.parametrize(
    ("busy_share", "interval_mb", "beginnings"),
    [
        (1.0, (0.0, _ROOM), ()),
        (0.79, (0.0, _ROOM), ("The device waits for the host 21 %",)),
        (0.8, (_ROOM, _ROOM + 1), ("It may not fit",)),
        (0.5, (_ROOM + 1, _ROOM + 2), ("The device waits for the host 50 %", "It does not fit")),
    ],
)
def test_what_follows_from_an_answer(
    builder: Any, busy_share: float, interval_mb: tuple[float, float], beginnings: tuple[str, ...]
) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
    graph, device = builder.graph(), find_device("A100")
    warnings = warn_of_answer(graph, 1, device, busy_share=busy_share, memory_interval_mb=interval_mb)
    assert len(warnings) == len(beginnings)
    assert all(warning.startswith(beginning) for warning, beginning in zip(warnings, beginnings, strict=True))


@pytest.mark.parametrize(
    ("stored", "precision", "is_said"),
    [
        (DType.FLOAT32, "bf16", True),
        (DType.FLOAT32, "fp16", True),
        (DType.FLOAT32, "amp", False),
        (DType.FLOAT32, "fp32", False),
        (DType.BFLOAT16, "bf16", False),
    ],
)
def test_a_reading_in_fp32_does_not_show_what_stays_so(
    builder: Any, stored: DType, precision: str, is_said: bool
) -> None:
    value, weight = builder.input(builder.N, 8, dtype=stored), builder.weight(8, 8, dtype=stored)
    builder.node(OpKind.LINEAR, [value, weight], builder.N, 8, dtype=stored)
    graph = builder.graph()
    for keeps, expected in ((True, is_said), (False, False)):
        warnings = dippm.predict(replace(graph, keeps_fp32_parts=keeps), precision=precision).warnings
        assert any("was read in float32" in warning for warning in warnings) is expected
