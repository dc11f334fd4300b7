from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.devices import find_device
from dippm.errors import DippmError
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    shipped = Calibration.read()
    shipped.write(tmp_path / "folder" / "physics.json")
    assert Calibration.read(tmp_path / "folder" / "physics.json") == shipped


def test_the_shipped_artefact_says_how_it_was_made() -> None:
    provenance = Calibration.read().provenance
    assert str(provenance["command"]).startswith("python -m dippm.training.physics")
    assert len(str(provenance["data_sha256"])) == 64
    assert provenance["test"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "rates": {"speed": 1}}'])
def test_a_damaged_artefact_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "physics.json"
    path.write_text(text)
    with pytest.raises(DippmError, match=r"physics\.json") as caught:
        Calibration.read(path)
    assert caught.value.code == "artefact.unreadable"


def test_a_missing_artefact_is_named(tmp_path: Path) -> None:
    with pytest.raises(DippmError, match="cannot be read"):
        Calibration.read(tmp_path / "none.json")


def test_margins_beside_tensors_follow_how_kernels_are_loaded() -> None:
    training = Calibration.read(TRAINING_ARTEFACT_PATH)
    old = Software.parse("torch 1.12+cu113")
    lazily = training.context_margins_mb(find_device("RTX 3090"), DEFAULT_SOFTWARE)
    assert lazily == (training.context_margin_mb, training.context_margin_high_mb)
    assert training.context_margins_mb(find_device("RTX 3090"), old) == (0, 0)
    less, more = training.context_margins_mb(find_device("A100"), old)
    assert less == more > 0


def test_the_spread_of_the_power_is_that_of_the_boards_own_architecture_where_it_was_fitted_on() -> None:
    calibration = replace(
        Calibration.read(), power_spread=0.5, power_spreads={"9.0": 0.1}, busy_power_spreads={"9.0": 0.06}
    )
    busy_share = np.array([[0.3, 0.5], [1.0, 0.75]])
    for name in ("H100 80GB HBM3", "H200", "1g.10gb@H100 80GB HBM3"):
        found = calibration.power_spread_on(find_device(name), busy_share)
        assert found == pytest.approx(np.array([[0.1, 0.1], [0.06, 0.08]]))
    for name in ("H100 PCIe", "B200", "A100"):
        assert (calibration.power_spread_on(find_device(name), busy_share) == 0.5).all()


def test_the_power_of_busy_boards_is_off_by_what_the_others_are_where_nothing_else_is_known() -> None:
    calibration = replace(Calibration.read(), power_spread=0.5, power_spreads={"9.0": 0.1}, busy_power_spreads={})
    assert (calibration.power_spread_on(find_device("H200"), np.array([0.0, 1.0])) == 0.1).all()


def test_a_step_may_need_more_rather_than_less() -> None:
    training = Calibration.read(TRAINING_ARTEFACT_PATH)
    assert 0 < training.memory_spread_low < training.memory_spread
