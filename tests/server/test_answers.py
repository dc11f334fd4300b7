"""What the description says of an answer is what the command line prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dippm import cli
from dippm.server.answers import ANSWERS, DevicesAnswer, ErrorAnswer
from dippm.server.errors import ServiceError, error_body
from dippm.server.jobs import Verb


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_of(part)


def undescribed(model: type[BaseModel], answer: dict[str, Any], path: str = "") -> list[str]:
    """Keys of an answer that its description does not have."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    found = [f"{path}{key}" for key in answer if key not in fields]
    for key, field in fields.items():
        for inner in _models_of(field.annotation):
            values = answer.get(key)
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, dict):
                    found += undescribed(inner, value, f"{path}{key}.")
    return found


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (Verb.PREDICT, ("--batch", "1,8", "--device", "A100,T4")),
        (Verb.PREDICT, ("--mode", "training", "--optimizer", "adam", "--accumulation", "2")),
        (Verb.FITS, ("--device", "A100", "--price", "A100=2.5")),
        *((verb, ("--device", "A100,P100", "--runtime", "compile")) for verb in Verb if verb is not Verb.INSPECT),
        (Verb.MAX_BATCH, ("--device", "T4", "--price", "T4=0.5")),
        (Verb.INSPECT, ()),
    ],
)
def test_an_answer_is_as_it_is_described(
    verb: Verb, words: tuple[str, ...], onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb.value, str(onnx_file), *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    ANSWERS[verb].model_validate(answer)
    assert undescribed(ANSWERS[verb], answer) == []


def test_every_verb_has_its_answer() -> None:
    assert set(ANSWERS) == set(Verb)


def test_devices_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["devices", "--json"]) == 0
    answer = DevicesAnswer.model_validate_json(capsys.readouterr().out)
    assert {"A100-SXM4-40GB", "Tesla T4"} <= {device.name for device in answer.devices}
    body = json.loads(error_body(ServiceError("No.", code="service.busy", status=503)))
    assert ErrorAnswer.model_validate(body).error.code == "service.busy"
    assert undescribed(ErrorAnswer, body) == []
