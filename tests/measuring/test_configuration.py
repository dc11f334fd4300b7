from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.costs.conditions import Conditions
from dippm.errors import UnsupportedError, UsageError
from dippm.measuring.configuration import Configuration, Engine


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_holds_a_sample(batch: int) -> None:
    assert Configuration(batch=1).engine is Engine.TORCH
    with pytest.raises(UsageError) as caught:
        Configuration(batch=batch)
    assert caught.value.code == "batch.invalid"


def test_training_has_an_optimizer() -> None:
    training = Conditions.parse(mode="training", optimizer="adam")
    assert Configuration(batch=8, conditions=training).conditions.optimizer is not None
    with pytest.raises(UsageError) as caught:
        Configuration(batch=8, conditions=replace(training, optimizer=None))
    assert caught.value.code == "optimizer.missing"


@pytest.mark.parametrize(
    "conditions",
    [Conditions.parse(mode="training", optimizer="sgd"), Conditions.parse(runtime="cuda-graph")],
    ids=["training", "cuda-graph"],
)
def test_onnxruntime_runs_inference_in_a_way_of_its_own(conditions: Conditions) -> None:
    assert Configuration(batch=8, engine=Engine.ONNXRUNTIME).conditions == Conditions()
    with pytest.raises(UnsupportedError) as caught:
        Configuration(batch=8, conditions=conditions, engine=Engine.ONNXRUNTIME)
    assert caught.value.code == "engine.unsupported"


def test_torch_captures_inference_on_a_gpu() -> None:
    captured = Conditions.parse(runtime="cuda-graph")
    Configuration(batch=8, conditions=captured).check_torch("cuda:1")
    Configuration(batch=8, conditions=Conditions.parse(runtime="compile")).check_torch("cpu")
    step = Conditions.parse(mode="training", optimizer="sgd", runtime="cuda-graph")
    for conditions, device, message in ((captured, "cpu", "this is 'cpu'"), (step, "cuda", "Training is not")):
        with pytest.raises(UnsupportedError, match=message) as caught:
            Configuration(batch=8, conditions=conditions).check_torch(device)
        assert caught.value.code == "runtime.unsupported"
