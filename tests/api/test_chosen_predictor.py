"""Who answers, and that every verb which takes a predictor asks it alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.api.chosen_predictor import ChosenNetwork, ChosenPhysics, choose_predictor, need_physics
from dippm.api.question import Question
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph, OpKind
from dippm.predictors.physics import PhysicsPredictor


def choose(predictor: Path | None, *, device: Any = None, **options: Any) -> ChosenPhysics | ChosenNetwork:
    return choose_predictor(predictor, Question(**options), device=device)


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 256)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(512, 256)], builder.N, 512)
    builder.node(OpKind.RELU, [x], builder.N, 512)
    return builder.graph()


def test_the_shipped_predictor_answers_where_none_is_named() -> None:
    chosen = choose(None)
    assert isinstance(chosen, ChosenPhysics)
    assert chosen.physics is PhysicsPredictor.load()
    assert [spec.name for spec in chosen.devices] == ["A100-SXM4-40GB"]
    assert (chosen.reading_mode, str(chosen.software)) == ("inference", "torch 2.13+cu130")
    assert need_physics(chosen, because="") is chosen


def test_an_adapted_predictor_brings_its_device_and_conditions(adapted_folder: Path) -> None:
    chosen = choose(adapted_folder)
    assert isinstance(chosen, ChosenPhysics)
    assert [spec.name for spec in chosen.devices] == ["Small card"]
    assert (chosen.reading_mode, chosen.conditions.precision) == ("training", "amp")
    assert choose(adapted_folder, mode="inference").reading_mode == "inference"


def test_a_network_brings_its_device_and_reads_forward_passes(write_predictor: Callable[..., Path]) -> None:
    step = {"precision": "amp", "mode": "training", "layout": "nchw", "runtime": "eager", "optimizer": "sgd"}
    chosen = choose(write_predictor(labels={"conditions": step}))
    assert isinstance(chosen, ChosenNetwork)
    assert [spec.name for spec in chosen.devices] == ["A100-SXM4-40GB"]
    assert chosen.reading_mode == "inference"
    with pytest.raises(UnsupportedError, match="So it is") as caught:
        need_physics(chosen, because="So it is.")
    assert caught.value.code == "predictor.unsuited"


def test_a_device_that_the_catalogue_lacks_is_described_by_the_question(
    own_device: tuple[Any, DeviceSpec], write_predictor: Callable[..., Path]
) -> None:
    spec = own_device[1]
    folder = write_predictor(labels={"device": spec.name})
    assert choose(folder, device=spec).devices == [spec]
    for device in (None, spec.name):
        with pytest.raises(UnsupportedError, match=spec.name) as caught:
            _ = choose(folder, device=device).devices
        assert caught.value.code == "device.unknown"


@pytest.mark.parametrize("verb", [dippm.predict, dippm.fits, dippm.max_batch, dippm.inspect])
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"device": "T4"}, "predictor.mismatch"),
        ({"device": find_device("T4")}, "predictor.mismatch"),
        ({"device": ["A100", "T4"]}, "predictor.mismatch"),
        ({"device": []}, "predictor.mismatch"),
        ({"precision": "fp7"}, "precision.unknown"),
    ],
)
def test_every_verb_refuses_alike(
    verb: Any,
    options: dict[str, Any],
    code: str,
    graph: Graph,
    adapted_folder: Path,
    write_predictor: Callable[..., Path],
) -> None:
    for folder in (write_predictor(), adapted_folder):
        with pytest.raises(UsageError) as caught:
            verb(graph, predictor=folder, **options)
        assert caught.value.code == code


@pytest.mark.parametrize("verb", [dippm.predict, dippm.fits, dippm.max_batch, dippm.inspect])
def test_every_verb_refuses_what_no_network_has_learned(
    verb: Any, graph: Graph, write_predictor: Callable[..., Path]
) -> None:
    for options in ({"accumulation": 2}, {"checkpointing": True}, {"software": "torch 2.4"}, {"precision": "fp32"}):
        with pytest.raises(UsageError) as caught:
            verb(graph, predictor=write_predictor(), **options)
        assert caught.value.code == "predictor.mismatch"
    with pytest.raises(dippm.DippmError) as missing:
        verb(graph, predictor="nowhere")
    assert missing.value.code == "predictor.missing"
