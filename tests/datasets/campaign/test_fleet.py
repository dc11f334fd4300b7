"""What a fleet's members measure with."""

from __future__ import annotations

import pickle

import pytest

from dippm.datasets.campaign.fleet import WorkerFactory
from dippm.errors import UsageError
from dippm.measuring.protocol import Plan
from dippm.measuring.worker import Worker


def test_the_factory_travels_and_makes_a_guarded_process() -> None:
    factory = WorkerFactory(device="cpu", row_limit_s=7.0, plan=Plan(timed_runs=3))
    again = pickle.loads(pickle.dumps(factory))
    assert again == factory
    with again() as worker:
        assert isinstance(worker, Worker)
        assert worker.busy_s == 0.0


def test_its_limits_are_those_of_the_process() -> None:
    with pytest.raises(UsageError) as caught:
        WorkerFactory(device="cpu", row_limit_s=0.0, plan=Plan())()
    assert caught.value.code == "limit.invalid"
