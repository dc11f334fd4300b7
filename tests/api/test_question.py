from __future__ import annotations

from dataclasses import fields
from inspect import Parameter, getdoc, signature
from typing import Any, Unpack, get_type_hints

import pytest

import dippm
from dippm.api.question import ModelByBatch, Options, Question, spelled_out

OPTIONS = [each.name for each in fields(Question)]
VERBS = (dippm.predict, dippm.inspect, dippm.fits, dippm.max_batch, dippm.sweep)


def test_what_is_checked_in_a_callers_code_is_what_is_taken() -> None:
    assert get_type_hints(Options) == get_type_hints(Question)
    assert list(Options.__annotations__) == OPTIONS


def test_what_is_left_out_stays_open() -> None:
    assert Question().named_conditions == {}
    question = Question(mode="training", optimizer="adam", layout="nhwc", accumulation=2)
    assert question.named_conditions == {"mode": "training", "optimizer": "adam", "layout": "nhwc"}


def test_a_model_is_read_as_the_question_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: object, **words: object) -> dict[str, object]:
        return {"model": model, **words}

    monkeypatch.setattr("dippm.api.loading.load", load)
    question = Question(framework="onnx", input="3,8,8", trust=True, mode="inference", precision="amp", weights="nf4")
    found: Any = question.read("net.onnx", mode="training", batch_hint=4)
    assert found == {
        "model": "net.onnx", "path": None, "framework": "onnx", "input": "3,8,8", "trust": True, "mode": "training",
        "batch_hint": 4, "precision": "amp", "weights": "nf4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "lora", "read_for"),
    [
        ("amp-bf16", None, "amp-bf16"),
        ("amp-bf16", 8, None),
        ("amp", "8:q_proj", None),
        ("bf16", 8, "bf16"),
        ("fp32", 8, "fp32"),
        (None, 8, None),
    ],
)
def test_frozen_weights_keep_their_type_under_autocast(
    monkeypatch: pytest.MonkeyPatch, precision: str | None, lora: int | str | None, read_for: str | None
) -> None:
    def load(model: object, **words: object) -> object:
        return words["precision"]

    monkeypatch.setattr("dippm.api.loading.load", load)
    found: Any = Question(precision=precision, lora=lora).read("hf:net", mode="training")
    assert found == read_for


def test_a_verb_spells_its_options_out() -> None:
    @spelled_out
    def ask(model: object, *, batch: int = 1, **options: Unpack[Options]) -> Question:
        return Question(**options)

    taken = signature(ask).parameters
    assert list(taken) == ["model", "batch", *OPTIONS]
    assert [taken[name].default for name in OPTIONS] == [getattr(Question(), name) for name in OPTIONS]
    assert {taken[name].kind for name in OPTIONS} == {Parameter.KEYWORD_ONLY}
    assert ask(None, precision="amp").precision == "amp"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_every_option_in_its_help(verb: Any) -> None:
    taken = signature(verb).parameters
    assert set(OPTIONS) < set(taken)
    assert not any(each.kind is Parameter.VAR_KEYWORD for each in taken.values())


def test_the_help_of_predict_explains_every_argument() -> None:
    text = getdoc(dippm.predict) or ""
    for name in signature(dippm.predict).parameters:
        begins = f"- {name}: " if name in OPTIONS else f"    {name}: "
        assert sum(line.startswith(begins) or line.strip().startswith(begins) for line in text.splitlines()) == 1, name


@pytest.mark.parametrize("verb", VERBS)
def test_a_slip_in_a_name_is_refused_before_anything_is_done(verb: Any, tmp_path: Any) -> None:
    given = {"out": tmp_path / "table.csv"} if verb is dippm.sweep else {}
    said = rf"{verb.__name__}\(\) got an unexpected keyword argument 'presicion'; the nearest is 'precision'"
    with pytest.raises(TypeError, match=said):
        verb("nowhere.onnx", **given, presicion="amp")
    with pytest.raises(TypeError, match=r"argument 'xyzzy'$"):
        verb("nowhere.onnx", **given, xyzzy=1)


def test_a_model_of_a_holder_is_read_for_the_batch_asked() -> None:
    asked: list[int | None] = []
    model = ModelByBatch(lambda batch: asked.append(batch) or "graph")  # type: ignore[arg-type,func-returns-value]
    for hint in (None, 8):
        assert Question(framework="onnx").read(model, mode="inference", batch_hint=hint) == "graph"
    assert asked == [None, 8]
