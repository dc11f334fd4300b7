from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dippm.api.models_to_pack import ModelToPack, complete, name_models, question_of, source_of
from dippm.api.question import Question
from dippm.errors import UsageError


def completed(given: object, **changes: Any) -> ModelToPack:
    own = {"batch": changes.pop("batch", 1), "latency_ms": changes.pop("latency_ms", None)}
    return complete(given, Question(**changes), **own)


def test_what_a_model_says_itself_goes_before_what_the_call_says() -> None:
    own = ModelToPack(model="a.onnx", batch=8, precision="amp")
    found = completed(own, batch=2, precision="fp16", latency_ms=5.0, framework="onnx", input="3,8,8")
    assert (found.batch, found.precision, found.latency_ms) == (8, "amp", 5.0)
    assert (found.framework, found.input, found.mode) == ("onnx", "3,8,8", None)
    assert completed("a.onnx", batch=2).model == "a.onnx"


def test_an_optimizer_of_the_call_is_for_the_models_that_train() -> None:
    training = {"mode": "training", "optimizer": "adam", "lora": 8, "weights": "nf4"}
    found = completed("a", **training)
    assert (found.optimizer, found.lora, found.weights) == ("adam", 8, "nf4")
    found = completed(ModelToPack(model="a", mode="inference"), **training)
    assert (found.optimizer, found.lora, found.weights) == (None, None, "nf4")
    own = completed(ModelToPack(model="a", lora=0, weights="int8"), **training)
    assert (own.lora, own.weights) == (0, "int8")
    # Without training anywhere it is a slip, which is for the verb to say.
    found = completed("a", optimizer="adam", lora=8)
    assert (found.optimizer, found.lora) == ("adam", 8)


def test_what_a_call_says_of_training_is_for_the_models_that_train() -> None:
    call = {"mode": "training", "accumulation": 4, "checkpointing": True, "layout": "nhwc", "runtime": "compile"}
    asked = [
        ModelToPack(model="a"),
        ModelToPack(model="b", mode="inference", runtime="eager", software="torch 2.4"),
        ModelToPack(model="c", accumulation=1, checkpointing=False, layout="nchw"),
    ]
    found = [question_of(completed(each, **call), trust=True) for each in asked]
    assert [(each.accumulation, each.checkpointing) for each in found] == [(4, True), (1, False), (1, False)]
    assert [(each.layout, each.runtime) for each in found] == [
        ("nhwc", "compile"), ("nhwc", "eager"), ("nchw", "compile")]  # fmt: skip
    assert [each.software for each in found] == [None, "torch 2.4", None]
    assert all(each.trust for each in found)


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf"), True, "5"])
def test_a_bound_must_be_a_time(bound: Any) -> None:
    with pytest.raises(UsageError) as caught:
        completed(ModelToPack(model="a", latency_ms=bound))
    assert caught.value.code == "latency.invalid"


def test_every_model_has_a_name_of_its_own() -> None:
    asked = [
        ModelToPack(model="a"),
        ModelToPack(model="a"),
        ModelToPack(model="b", name="a #2"),
        ModelToPack(model="a"),
    ]
    assert [each.name for each in name_models(asked, {})] == ["a", "a #3", "a #2", "a #4"]


def test_replicas_of_the_call_go_before_those_of_the_model() -> None:
    asked = [ModelToPack(model="a", replicas=2), ModelToPack(model="b", replicas=3), ModelToPack(model="c")]
    assert [each.replicas for each in name_models(asked, {"a": 5})] == [5, 3, 1]


@pytest.mark.parametrize(
    ("asked", "replicas", "code"),
    [
        ([], {}, "pack.models"),
        ([ModelToPack(model="a", name="x"), ModelToPack(model="b", name="x")], {}, "pack.name"),
        ([ModelToPack(model="a", name="")], {}, "pack.name"),
        ([ModelToPack(model="a", name="two\nlines")], {}, "pack.name"),
        ([ModelToPack(model="a", name=3)], {}, "pack.name"),  # type: ignore[arg-type]  # what a caller may do
        ([ModelToPack(model="a")], {"b": 1}, "pack.replicas"),
        ([ModelToPack(model="a")], {"a": 0}, "pack.replicas"),
        ([ModelToPack(model="a", replicas=10_001)], {}, "pack.replicas"),
        ([ModelToPack(model="a", replicas=True)], {}, "pack.replicas"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: list[ModelToPack], replicas: dict[str, int], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        name_models(asked, replicas)
    assert caught.value.code == code


def test_a_model_is_called_after_where_it_comes_from() -> None:
    assert source_of("timm:resnet50") == "timm:resnet50"
    assert source_of(Path("a") / "b.onnx") == str(Path("a") / "b.onnx")
    assert source_of(object()) == "object"
