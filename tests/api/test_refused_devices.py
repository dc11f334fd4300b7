"""A device that cannot run what is asked of several is told, and the others are answered."""

from __future__ import annotations

from typing import Any

import pytest

import dippm
from dippm.api.question import Question
from dippm.api.refused_devices import find_refused, refused_entry, with_refused
from dippm.costs.conditions import Runtime
from dippm.costs.software import Software
from dippm.devices import find_device
from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind

OLD = "torch 1.12+cu113"
A100, H100, P100, T4 = (find_device(name) for name in ("A100", "H100", "P100", "T4"))


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 256)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(512, 256)], builder.N, 512)
    return builder.graph(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("runtime", "software", "refused"),
    [
        (Runtime.EAGER, None, []),
        (Runtime.COMPILE, None, [(P100, "runtime.unsupported")]),
        (Runtime.EAGER, OLD, [(H100, "software.impossible")]),
        (Runtime.EAGER, "torch 2.13+cu130", [(P100, "software.impossible")]),
    ],
)
def test_devices_are_refused_for_what_they_cannot_run(runtime: Runtime, software: str | None, refused: Any) -> None:
    named = None if software is None else Software.parse(software)
    found = find_refused([A100, H100, P100, T4, P100, H100], runtime=runtime, software=named)
    assert [(each.device, each.error.code) for each in found] == refused


def test_the_entry_of_an_answer_names_each_device_with_its_reason() -> None:
    assert refused_entry(["A100", "T4"], Question(software=OLD)) == {}
    assert refused_entry(None, Question(runtime="compile")) == {}
    (entry,) = refused_entry(["A100", "H100"], Question(software=OLD))["refused"]  # type: ignore[misc, attr-defined]
    assert (entry["device"], entry["code"]) == (H100.name, "software.impossible")
    assert "needs CUDA 11.8 or later" in entry["message"]


@pytest.mark.parametrize("devices", [["A100", "H100", "T4"], ["H100", "A100", "T4", "H100"]])
def test_the_others_are_answered_and_say_what_is_left_out(graph: Graph, devices: list[str]) -> None:
    asked: Any = {"batch": [1, 8], "device": devices, "software": OLD}
    alone = dippm.predict(graph, **(asked | {"device": ["A100", "T4"]}))
    for answers in (dippm.predict(graph, **asked), *dippm.predict_each([graph], **asked)):
        assert [(each.device, each.batch) for each in answers] == [(d.name, b) for d in (A100, T4) for b in (1, 8)]
        assert [each.latency_ms for each in answers] == [each.latency_ms for each in alone]
        for each, without in zip(answers, alone, strict=True):
            (told,) = set(each.warnings) - set(without.warnings)
            assert told.startswith(f"{H100.name} is left out: {H100.name} needs CUDA 11.8 or later")
            assert told.count("left out") == 1


def test_several_that_are_left_out_share_a_warning(graph: Graph) -> None:
    (answer,) = dippm.predict(graph, device=["A100", "H100", "H200"], software=OLD)
    (told,) = (warning for warning in answer.warnings if "left out" in warning)
    assert f"{H100.name} is left out: " in told
    assert f"{find_device('H200').name} is left out: " in told
    assert with_refused([answer], ()) == [answer]


def test_fits_and_max_batch_answer_the_others_too(graph: Graph) -> None:
    asked: Any = {"device": ["H100", "A100"], "software": OLD, "prices": {"H100": 3.0, "A100": 1.0}}
    for verb in (dippm.fits, dippm.max_batch):
        (answer,) = verb(graph, **asked)
        assert (answer.device, answer.price.per_hour) == (A100.name, 1.0)
        assert answer.prediction.warnings[0].startswith(f"{H100.name} is left out")


@pytest.mark.parametrize("device", ["H100", ["H100"], ["H100", "H200"]])
@pytest.mark.parametrize("verb", [dippm.predict, dippm.fits, dippm.max_batch])
def test_where_none_can_run_it_there_is_no_answer(graph: Graph, verb: Any, device: Any) -> None:
    with pytest.raises(UnsupportedError, match="H100 80GB HBM3 needs CUDA") as caught:
        verb(graph, device=device, software=OLD)
    assert caught.value.code == "software.impossible"


def test_a_name_that_is_wrong_is_still_an_error(graph: Graph) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dippm.predict(graph, device=["A100", "A1000000"])
    assert caught.value.code == "device.unknown"
