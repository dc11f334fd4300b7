from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.api.arguments import (
    asks_for_one,
    parse_batches,
    parse_conditions,
    parse_devices,
    parse_mig_policy,
    parse_software,
)
from dippm.costs.conditions import LowRankAdapters, Mode, Optimizer
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.devices import find_device
from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.placement.mig import MigPolicy


@pytest.mark.parametrize(
    ("given", "expected"),
    [(8, [8]), ([1, 8, 8], [1, 8, 8]), ((2,), [2]), (range(1, 4), [1, 2, 3]), (np.int64(4), [4]), (2**24, [2**24])],
)
def test_batches_become_a_list(given: Any, expected: list[int]) -> None:
    found = parse_batches(given)
    assert found == expected
    assert {type(each) for each in found} == {int}


@pytest.mark.parametrize("given", [0, -1, 1.0, "8", True, None, [], [1, 0], [[1]], 2**24 + 1, b"8"])
def test_what_is_no_batch_is_refused(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_batches(given)
    assert caught.value.code == "batch.invalid"


def test_several_where_one_is_wanted_are_refused() -> None:
    assert parse_batches([3], is_single=True) == [3]
    with pytest.raises(UsageError, match="one batch size"):
        parse_batches([1, 2], is_single=True)
    assert parse_devices("A100", is_single=True) == [find_device("A100")]
    with pytest.raises(UsageError, match="one device"):
        parse_devices(["A100", "T4"], is_single=True)


def test_devices_are_looked_up_and_taken_as_they_are() -> None:
    spec = find_device("T4")
    assert parse_devices(["A100", spec]) == [find_device("A100"), spec]


@pytest.mark.parametrize(
    ("given", "code"),
    [([], "device.invalid"), (7, "device.invalid"), (None, "device.invalid"), ("Z9", "device.unknown")],
)
def test_what_is_no_device_is_refused(given: Any, code: str) -> None:
    with pytest.raises(DippmError) as caught:
        parse_devices(given)
    assert caught.value.code == code


def test_training_has_an_optimizer_and_inference_has_none() -> None:
    assert parse_conditions().optimizer is None
    assert parse_conditions(mode="training").optimizer is Optimizer.MOMENTUM
    assert parse_conditions(mode="training").adapters is None
    found = parse_conditions(mode="training", optimizer="adam", accumulation=4, checkpointing=True, lora="8:q_proj")
    assert found.adapters == LowRankAdapters(rank=8, targets=("q_proj",))
    assert (found.mode, found.optimizer, found.accumulation, found.is_checkpointed) == (
        Mode.TRAINING, Optimizer.ADAM, 4, True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"optimizer": "adam"}, UsageError, "optimizer.unused"),
        ({"accumulation": 2}, UsageError, "training.unused"),
        ({"checkpointing": True}, UsageError, "training.unused"),
        ({"lora": 8}, UsageError, "training.unused"),
        ({"mode": "training", "lora": 0}, UsageError, "lora.invalid"),
        ({"mode": "training", "accumulation": 0}, UsageError, "accumulation.invalid"),
        ({"mode": "training", "accumulation": True}, UsageError, "accumulation.invalid"),
        ({"mode": "training", "runtime": "cuda-graph"}, UnsupportedError, "runtime.unsupported"),
    ],
)
def test_conditions_that_do_not_go_together_are_refused(
    options: dict[str, Any], kind: type[DippmError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        parse_conditions(**options)
    assert caught.value.code == code


def test_software_and_policy_by_name() -> None:
    assert parse_software(None) == DEFAULT_SOFTWARE
    assert str(parse_software("torch 1.12+cu113")) == "torch 1.12+cu113"
    old = [find_device("P100")]
    assert parse_software(None, devices=old) == DEFAULT_SOFTWARE
    with pytest.raises(UnsupportedError, match="do not drive Tesla P100") as caught:
        parse_software(str(DEFAULT_SOFTWARE), devices=old)
    assert caught.value.code == "software.impossible"
    assert parse_mig_policy("paper") is MigPolicy.PAPER
    with pytest.raises(UsageError, match="safe"):
        parse_mig_policy("bold")


@pytest.mark.parametrize(
    ("device", "batch", "is_one"),
    [
        (None, 1, True), ("A100", 8, True), (find_device("A100"), 8, True), ("A100", [8], False), (["A100"], 8, False),
        (None, range(1, 3), False),
    ],
)  # fmt: skip
def test_one_answer_is_asked_for_by_one_device_at_one_batch(device: Any, batch: Any, is_one: bool) -> None:
    assert asks_for_one(device, batch) is is_one


def test_slices_of_a_device_that_is_given_are_devices() -> None:
    own = replace(find_device("A30"), name="My GPU")
    assert [spec.name for spec in parse_devices([own, "1g.6gb@My GPU"])] == ["My GPU", "1g.6gb@My GPU"]
    assert parse_devices(["my gpu", own]) == [own, own]
    with pytest.raises(UnsupportedError) as caught:
        parse_devices(["1g.6gb@My GPU"])
    assert caught.value.code == "device.unknown"
