from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.training.one_cycle import one_cycle  # noqa: E402 - after the skip


def rates(steps: int, *, rising_share: float) -> list[float]:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    schedule = one_cycle(optimizer, peak=0.01, steps=steps, rising_share=rising_share)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(("steps", "rising_share"), [(10, 0.1), (5, 0.2), (4, 0.25), (3, 0.1), (2, 0.5), (1, 0.1)])
def test_a_training_too_short_for_a_rise_falls_from_near_the_peak(steps: int, rising_share: float) -> None:
    found = rates(steps, rising_share=rising_share)
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1e-6
    if steps >= 4:
        assert 0.008 < found[0] <= 0.01


def test_a_longer_one_rises_and_falls() -> None:
    found = rates(100, rising_share=0.1)
    assert found.index(max(found)) == 9
    assert max(found) == pytest.approx(0.01)
    assert found[:10] == sorted(found[:10])
    assert found[9:] == sorted(found[9:], reverse=True)
