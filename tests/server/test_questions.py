from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.server.errors import ServiceError
from dippm.server.jobs import Verb
from dippm.server.questions import NAMED, OPTIONS, parse_question


def refused(verb: Verb, body: bytes, *, by_name: bool = False) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        parse_question((NAMED if by_name else OPTIONS)[verb], body)
    assert caught.value.status == 400
    return caught.value


def test_defaults_are_filled_in() -> None:
    asked = parse_question(OPTIONS[Verb.PREDICT], b"{}")
    assert (asked["batch"], asked["device"], asked["layout"]) == (1, "A100", "nchw")
    # What is left to the model is not filled in.
    assert "precision" not in asked
    assert "optimizer" not in asked
    assert asked == parse_question(OPTIONS[Verb.PREDICT], b'{"batch": 1, "optimizer": null}')


@pytest.mark.parametrize(
    "shape", ["3,224,224", [3, 224, 224], ["3,8,8", "384:int64"], [[3, 8, 8], [4]], {"x": [3, 8], "ids": "384:int64"}]
)
def test_shapes_come_as_they_are_written(shape: object) -> None:
    assert parse_question(OPTIONS[Verb.FITS], json.dumps({"input": shape}).encode())["input"] == shape


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{", b"\xff", b'{"unknown": 1}', b'{"batch": "1"}', b'{"batch": true}',
        b'{"batch": 1.5}', b'{"batch": []}', b'{"device": 5}', b'{"trust": true}', b'{"predictor": "/etc"}',
        b'{"input": [[[1]]]}', b'{"accumulation": "x"}', b"[" * 100_000, b'{"batch": 1' + b"0" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_not_described_is_refused(body: bytes) -> None:
    error = refused(Verb.PREDICT, body)
    assert error.code == "request.invalid"
    assert len(str(error)) < 2000


@pytest.mark.parametrize(
    ("verb", "body", "says"),
    [
        (Verb.PREDICT, {"devise": "T4"}, "devise: there is no such option; the nearest is 'device'."),
        (Verb.PREDICT, {"zzz": 1}, "zzz: there is no such option."),
        (Verb.PREDICT, {"model": "timm:resnet50"}, "model: the file that is sent is the model."),
        (
            Verb.PREDICT,
            {"batch": "8"},
            'batch: it must be a whole number, or a list of 1 to 1,024 of them, and is "8".',
        ),
        (
            Verb.PREDICT,
            {"batch": [1, "8"]},
            "batch: it must be a whole number, or a list of 1 to 1,024 of them, and is ",
        ),
        (Verb.FITS, {"device": 5}, "device: it must be a name, or a list of 1 to 64 of them, and is 5."),
        (Verb.FITS, {"input": [[[1]]]}, "input: it must be a shape such as '3,224,224' or [3, 224, 224], or a list or"),
        (Verb.INSPECT, {"batch": "8"}, 'batch: it must be a whole number, and is "8".'),
        (Verb.INSPECT, {"device": ["A100"]}, 'device: it must be a text, and is ["A100"].'),
        (Verb.FITS, {"prices": {"A100": "1.2"}}, 'prices.A100: it must be a number, and is "1.2".'),
        (Verb.FITS, {"checkpointing": 1}, "checkpointing: it must be true or false, and is 1."),
        (
            Verb.FITS,
            {"batch": "8", "mode": 1},
            "mode: it must be a text, and is 1; batch: it must be a whole number, or a list of 1 to 1,024 of them, and",
        ),
    ],
)
def test_a_refusal_says_what_is_wanted(verb: Verb, body: object, says: str) -> None:
    assert says in str(refused(verb, json.dumps(body).encode()))


def test_figures_that_are_none_are_refused() -> None:
    for number in ("NaN", "Infinity", "1e999"):
        refused(Verb.MAX_BATCH, f'{{"latency_ms": {number}}}'.encode())


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "model.onnx",
        "timm:",
        "timm:../../x",
        "timm:a/b",
        "file:x",
        "timm:x\n",
        "http://x/y",
        "timm:" + "x" * 200,
    ],
)
def test_a_model_is_a_name_and_never_a_path(name: str) -> None:
    refused(Verb.PREDICT, json.dumps({"model": name}).encode(), by_name=True)


def test_a_model_by_name_is_needed_without_a_file() -> None:
    refused(Verb.PREDICT, b"{}", by_name=True)
    assert parse_question(NAMED[Verb.PREDICT], b'{"model": "timm:resnet50"}')["model"] == "timm:resnet50"
    refused(Verb.PREDICT, b'{"model": "timm:resnet50"}')


def test_too_many_answers_are_refused() -> None:
    many = {"batch": list(range(1, 1001)), "device": ["A100"] * 64}
    assert refused(Verb.PREDICT, json.dumps(many).encode()).code == "request.too_many"
    refused(Verb.PREDICT, json.dumps({"batch": list(range(1, 2000))}).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for verb in Verb:
        try:
            parse_question(OPTIONS[verb], body)
        except ServiceError as exc:
            assert exc.status == 400


@pytest.mark.parametrize(
    "name",
    [
        "hf:Llama-3.1-8B",
        "hf:meta-llama/Llama-3.1-8B",
        "hf:gpt2#decode=64",
        "hf:gpt2#prefill",
        "diffusers:UNet2DModel#image=64",
        "diffusers:FLUX.1-dev/transformer",
        "diffusers:black-forest-labs/FLUX.1-dev/transformer#image=512",
    ],
)
def test_names_are_those_of_the_command_line(name: str) -> None:
    assert parse_question(NAMED[Verb.PREDICT], json.dumps({"model": name}).encode())["model"] == name
