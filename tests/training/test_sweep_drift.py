from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dippm.training.sweep_drift import TrainableDrift  # noqa: E402

_DEVICES = np.array(["A100-SXM4-40GB"] * 6 + ["Tesla P100"] * 3 + ["Tesla T4"])


def _drift() -> TrainableDrift:
    position = np.array([0.0, 0.25, 0.5, 1.0, 5.0, 9.0, 0.0, 0.5, 2.0, 1.0])
    rows = SimpleNamespace(device=_DEVICES, position=position)
    features = SimpleNamespace(baseline_ms=np.full(10, 2.0))
    chosen = np.arange(10) < 9  # the T4 has no row to train on
    return TrainableDrift(rows, features, chosen)  # type: ignore[arg-type]


def test_a_sweep_starts_without_drift_and_never_falls() -> None:
    drift = _drift()
    with torch.no_grad():
        drift.steps.copy_(torch.randn(2, 10))
    relative = drift.relative(torch.arange(9)).detach().numpy()
    assert relative[0] == relative[6] == 0.0
    assert (np.diff(relative[:6]) >= 0).all()
    assert relative[1] == pytest.approx(relative[2] / 2)  # linear between the knots
    assert relative[5] == pytest.approx(relative[4], rel=1e-4)  # and flat behind the last


def test_what_was_added_is_over_the_baseline() -> None:
    drift = _drift()
    step_ms = float(torch.nn.functional.softplus(torch.tensor(-3.0)))
    assert drift.relative(torch.tensor([2, 3])).detach().numpy() == pytest.approx([step_ms / 2, 2 * step_ms / 2])


def test_the_result_has_what_was_trained_and_relatives_for_the_rest() -> None:
    drift = _drift()
    with torch.no_grad():
        drift.steps[0].fill_(-100.0)
    found = drift.result()
    assert found.added_ms.keys() == {"A100-SXM4-40GB", "Tesla P100"}
    assert found.added_ms["A100-SXM4-40GB"] == pytest.approx(np.zeros(11))
    assert (np.diff(found.added_ms["Tesla P100"]) > 0).all()
    # Hosts go by age: the card of Turing has the relative from Volta on, the one of Pascal itself.
    assert found.relatives["Tesla T4"] == ("A100-SXM4-40GB",)
    assert found.relatives["Tesla P100"] == ("Tesla P100",)


def test_steps_are_trained() -> None:
    drift = _drift()
    drift.relative(torch.arange(9)).sum().backward()
    assert drift.steps.grad is not None
    assert (drift.steps.grad[:, 0] > 0).all()
