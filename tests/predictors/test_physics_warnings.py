"""What a prediction says that it cannot vouch for; the rest is tested where predictions are."""

from __future__ import annotations

import pytest

from dippm.devices import find_device
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
    busy_share: float, interval_mb: tuple[float, float], beginnings: tuple[str, ...]
) -> None:
    warnings = warn_of_answer(find_device("A100"), busy_share=busy_share, memory_interval_mb=interval_mb)
    assert len(warnings) == len(beginnings)
    assert all(warning.startswith(beginning) for warning, beginning in zip(warnings, beginnings, strict=True))
