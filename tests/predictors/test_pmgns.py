"""Predictions by a trained network."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.errors import DippmError, UnsupportedError
from dippm.graph import Graph, OpKind
from dippm.placement.mig import MigPolicy
from dippm.predictors.network_artefact import NetworkArtefact, read_weights
from dippm.predictors.pmgns import PmgnsPredictor


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 256)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(512, 256)], builder.N, 512)
    builder.node(OpKind.RELU, [x], builder.N, 512)
    graph: Graph = builder.graph()
    return graph


def test_it_says_all_that_a_prediction_says(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    one, eight = PmgnsPredictor.load(write_predictor()).predict(graph, batches=[1, 8])
    assert (one.batch, eight.batch) == (1, 8)
    assert eight.device == "A100-SXM4-40GB"
    assert eight.conditions == Conditions(precision=Precision.AMP, layout=Layout.NHWC)
    assert eight.inputs == {graph.tensors[graph.inputs[0]].name: (8, 256)}
    assert eight.macs == 8 * 256 * 512
    assert (eight.memory_mb, eight.latency_ms, eight.energy_j) == pytest.approx((2000, 4, 1.5))
    assert eight.intervals["memory_mb"] == pytest.approx((800, 5000))
    assert eight.intervals["latency_ms"] == pytest.approx((3.2, 5))
    assert eight.memory_parts_mb == {}
    # 2,000 MiB fit a slice of 5 GB, the interval's upper end takes one of 10.
    assert eight.mig == "1g.10gb"
    assert eight.model.nodes == 2
    assert eight.predictor.name == "pmgns"
    assert eight.predictor.version == "9.8"
    assert eight.predictor.labels == (
        "321 labels of made-up on A100-SXM4-40GB, measured by dippm: amp, inference, nhwc, eager, torch 2.13.0, "
        "CUDA 13.0, driver 580.1 or 581.2; data 0123456789abcdef, seed 7"
    )
    assert eight.warnings == ()
    assert json.loads(json.dumps(eight.to_dict()))["memory_mb"] == 2000.0


def test_the_papers_policy_goes_by_the_value(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    predictor = PmgnsPredictor.load(write_predictor(spreads={}))
    (paper,) = predictor.predict(graph, batches=[1], mig_policy=MigPolicy.PAPER)
    assert paper.mig == "1g.5gb"
    assert paper.warnings == ("There were too few labels to calibrate an interval of: memory, latency, energy.",)
    (safe,) = predictor.predict(graph, batches=[1])
    assert (safe.mig, safe.mig_name) == (None, "unknown")
    assert "No MIG slice is named" in safe.warnings[1]
    assert safe.intervals == {}
    assert "2,000 MiB" in str(safe)


def test_what_the_labels_lacked_is_not_known(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    folder = write_predictor(metrics=("latency_ms",), spreads={"latency_ms": 0.1})
    (found,) = PmgnsPredictor.load(folder).predict(graph, batches=[1])
    assert list(found) == [None, None, pytest.approx(4), None]
    answer = json.loads(json.dumps(found.to_dict()))
    assert (answer["memory_mb"], answer["energy_j"], answer["mig"]) == (None, None, None)
    assert found.mig_name == "unknown"
    assert answer["intervals"].keys() == {"latency_ms"}
    assert [line.split()[:2] for line in str(found).splitlines()[2:4]] == [["energy", "-"], ["memory", "-"]]
    assert found.warnings == ()


def test_labels_without_a_latency_make_no_prediction(write_predictor: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        PmgnsPredictor.load(write_predictor(metrics=("memory_mb",), spreads={}))
    assert caught.value.code == "artefact.metrics"


def test_a_device_that_the_catalogue_lacks_has_no_slices(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    predictor = PmgnsPredictor.load(write_predictor(labels={"device": "Some Processor @ 2.8GHz"}))
    (found,) = predictor.predict(graph, batches=[1])
    assert found.device == "Some Processor @ 2.8GHz"
    assert (found.mig, found.mig_name) == (None, "unknown")
    assert predictor.is_for("some processor @ 2.8ghz")
    assert not predictor.is_for("A100")
    assert not predictor.is_for("")


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("A100", True),
        ("NVIDIA A100-SXM4-40GB", True),
        ("a100-sxm4-40gb", True),
        ("A100-SXM4-80GB", False),
        ("", False),
    ],
)
def test_names_of_the_device(name: str, is_it: bool, write_predictor: Callable[..., Path]) -> None:
    assert PmgnsPredictor.load(write_predictor()).is_for(name) is is_it


def test_training_has_a_step_time(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    conditions = {"precision": "fp32", "mode": "training", "layout": "nchw", "runtime": "eager", "optimizer": "adam"}
    (found,) = PmgnsPredictor.load(write_predictor(labels={"conditions": conditions})).predict(graph, batches=[2])
    assert found.conditions == Conditions(mode=Mode.TRAINING, optimizer=Optimizer.ADAM)
    assert found.step_time_ms == found.latency_ms


def test_what_training_never_saw_is_said(graph: Graph, write_predictor: Callable[..., Path], new_builder: Any) -> None:
    folder = write_predictor()
    predictor = PmgnsPredictor.load(folder)
    inside, outside = predictor.predict(graph, batches=[8, 20000])
    assert inside.warnings == ()
    assert outside.warnings == (
        "Outside what the training saw, and so without intervals: batch 20,000 (there 1 to 8); GMACs 2.62 "
        "(there 0 to 1).",
        "No MIG slice is named, since a safe one takes an interval of the memory.",
    )
    assert outside.latency_ms == pytest.approx(4)
    assert (outside.intervals, outside.mig) == ({}, None)
    builder = new_builder()
    value = builder.node(OpKind.SOFTMAX, [builder.input(builder.N, 8)], builder.N, 8)
    for _ in range(20):
        value = builder.node(OpKind.GELU, [value], builder.N, 8)
    (other,) = predictor.predict(builder.graph(), batches=[1])
    assert other.intervals == {}
    assert "operators 21 (there 1 to 20)" in other.warnings[0]
    assert "operators of class softmax, other activation (there none)" in other.warnings[0]


def test_a_predictor_that_does_not_know_its_range_says_so(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    artefact = NetworkArtefact.read(folder := write_predictor())
    labels = {name: value for name, value in artefact.labels.items() if name != "trained_range"}
    predictor = PmgnsPredictor(replace(artefact, labels=labels), read_weights(folder))
    (found,) = predictor.predict(graph, batches=[20000])
    assert found.warnings == ("The predictor does not say which sizes of models it was trained on.",)
    assert found.intervals.keys() == {"memory_mb", "latency_ms", "energy_j"}


def test_operators_without_a_class_are_named(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    strange = replace(graph, unsupported_ops={"aten.odd": 2}, warnings=("read with care",))
    (found,) = PmgnsPredictor.load(write_predictor()).predict(strange, batches=[1])
    assert found.warnings[0] == "read with care"
    assert "aten.odd (2)" in found.warnings[1]


def test_graphs_that_cannot_be_answered(graph: Graph, write_predictor: Callable[..., Path]) -> None:
    predictor = PmgnsPredictor.load(write_predictor())
    with pytest.raises(UnsupportedError) as caught:
        predictor.predict(replace(graph, fixed_batch=4, fixed_batch_reason="It says so."), batches=[8])
    assert caught.value.code == "graph.fixed_batch"


@pytest.mark.parametrize("said", [1e4, -1e4, float("nan")])
def test_a_figure_that_no_machine_has_is_refused(
    said: float, graph: Graph, write_predictor: Callable[..., Path]
) -> None:
    folder = write_predictor()
    weights = read_weights(folder) | {"head.output.bias": np.array([0, said, 0], np.float32)}
    with pytest.raises(UnsupportedError) as caught:
        PmgnsPredictor(NetworkArtefact.read(folder), weights).predict(graph, batches=[1])
    assert caught.value.code == "prediction.no_figure"


@pytest.mark.parametrize("labels", [{"conditions": None}, {"conditions": {"precision": "fp7"}}, {"software": {}}])
def test_a_manifest_that_does_not_say_what_it_holds_for(labels: Any, write_predictor: Callable[..., Path]) -> None:
    with pytest.raises(DippmError) as caught:
        PmgnsPredictor.load(write_predictor(labels=labels))
    assert caught.value.code == "artefact.unreadable"
