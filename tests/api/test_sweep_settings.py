from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dippm.api.deciding_versions import hash_folder
from dippm.api.question import Question
from dippm.api.sweep_settings import SweepSettings
from dippm.devices import find_device
from dippm.errors import DippmError


def settle(*, batch: Any = 1, device: Any = None, predictor: Any = None, **options: Any) -> SweepSettings:
    return SweepSettings.of(Question(**options), batch=batch, device=device, predictor=predictor)


def test_everything_is_asked_once() -> None:
    settings = settle(batch=[4, 1, 4], device=["A100", "T4", "A100-SXM4-40GB"])
    assert settings.batches == (4, 1)
    assert settings.devices == (find_device("A100"), find_device("T4"))
    assert settle().devices == (find_device("A100"),)


def test_training_is_read_for_training() -> None:
    settings = settle(mode="training")
    assert settings.reading["mode"] == "training"
    assert settings.describe()["conditions"] != settle().describe()["conditions"]


def test_a_trained_predictor_says_what_it_holds_for(write_predictor: Any) -> None:
    settings = settle(predictor=write_predictor())
    assert settings.devices == (None,)
    assert settings.conditions.precision.value == "amp"
    assert settings.describe()["predictor"] == hash_folder(Path(settings.options["predictor"]))
    with pytest.raises(DippmError) as caught:
        settle(predictor=write_predictor(), precision="fp32")
    assert caught.value.code == "predictor.mismatch"


def test_another_device_of_the_same_name_is_another_question() -> None:
    device = find_device("A100")
    mine, theirs = (settle(device=each).describe() for each in (replace(device, board_power_w=350.0), device))
    assert mine != theirs


def test_it_travels() -> None:
    settings = settle(input={"ids": ((8,), "int64")}, device=["A100", "T4"])
    assert pickle.loads(pickle.dumps(settings)) == settings
