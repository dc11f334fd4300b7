"""Labels by networks that have not seen what a training is tested on, of made-up calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")
pytest.importorskip("pyarrow")
from dippm.costs.conditions import Conditions
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_layers import list_layers
from dippm.datasets.graph_samples import GraphSamples, Part, assign_parts
from dippm.datasets.store.label import PREDICTED_SOURCE, Label
from dippm.datasets.store.parquet import export_parquet, read_parquet
from dippm.datasets.store.traces import write_traces
from dippm.measuring.measurement import SoftwareStack
from dippm.measuring.operator_run import KernelRun, OperatorRun
from dippm.predictors.additive_artefact import OWN_REGIMES, manifest_path, read_tensors
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training import published_power, unseen_labels
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.power_fit import PowerPoint
from dippm.training.unseen_labels import Held, main

_CAPTURED = Conditions.parse(precision="amp", runtime="cuda-graph")


def _as_captured(label: Label) -> Label:
    return replace(
        label,
        configuration=replace(label.configuration, conditions=_CAPTURED),
        measurement=replace(
            label.measurement,
            device="H200",
            idle_power_w=119.0,
            software=SoftwareStack(framework="torch 2.11.0"),
        ),
    )


def _runs(label: Label) -> list[OperatorRun]:
    """The convolutions of a call, which take half of it."""
    arguments, batch = label.recipe.arguments, label.recipe.batch
    depth, channels = arguments["depth"], arguments["channels"]
    duration_us = 500.0 * (label.measurement.latency_ms or 0.0) / depth
    kernel = KernelRun(name="k", launched_by="aten::conv2d", start_us=0.0, duration_us=duration_us)
    return [
        OperatorRun(
            name="aten::conv2d",
            input_shapes=((batch, channels if place else 3, 16, 16),),
            scalars=("",),
            is_backward=False,
            kernels=[kernel],
        )
        for place in range(depth)
    ]


def _layers(label: Label, cache: GraphCache) -> Iterator[tuple[str, list[OperatorRun]]]:
    """The convolutions of a model, each by itself."""
    cached, runs = cache.load(label.recipe.model_key, batch=label.recipe.batch), _runs(label)
    assert cached is not None
    for each in list_layers(cached.graph, label.recipe.batch, _CAPTURED):
        yield each.layer.to_text(), runs[:1]


def test_what_a_training_is_tested_on_is_held(samples: GraphSamples) -> None:
    for seed in (0, 3):
        parts, held = assign_parts(samples, seed=seed), Held.of(samples, seed=seed)
        is_held = np.array([label in held for label in samples.labels])
        assert np.array_equal(is_held, (parts == Part.VALIDATION) | (parts == Part.TEST))
    named = replace(samples.labels[0].recipe, arguments={"depth": 99})
    other = replace(samples.labels[0], recipe=named, graph_hash="another")
    assert other not in held
    # The same graph may have been measured under another name; of a graph that nobody knows that is not said.
    assert other in replace(held, graphs=frozenset({"another"}))
    unknown = replace(samples, labels=tuple(replace(label, graph_hash="") for label in samples.labels))
    assert replace(other, graph_hash="") not in Held.of(unknown, seed=3)


def test_the_command_predicts_by_what_has_not_seen_them(
    labelled_models: tuple[list[Label], Path],
    samples: GraphSamples,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    power_points: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models, cache = labelled_models
    # Most files do not say which graph a label is of.
    calls = [replace(_as_captured(label), graph_hash="") for label in models]
    # A layer of each model, and the same models in another precision.
    in_fp32 = Conditions.parse(precision="fp32", runtime="cuda-graph")
    others = [replace(label, configuration=replace(label.configuration, conditions=in_fp32)) for label in calls[:6]]
    for name, labels in (("labels", [*calls, *others]), ("layers", calls[::2])):
        export_parquet(labels, tmp_path / f"{name}.parquet")
    # Of one of the models that are left out nothing but a layer was traced.
    held = Held.of(samples, seed=3).models
    untraced = next(label.recipe.model_key for label in calls[::2] if label.recipe.model_key in held)
    traced = [label for label in (*calls, *others) if label.recipe.model_key != untraced]
    write_traces(tmp_path / "traces.parquet", ((label.key, _runs(label)) for label in traced))
    layers = {layer: runs for label in calls[::2] for layer, runs in _layers(label, GraphCache(cache))}
    write_traces(tmp_path / "layer-traces.parquet", layers.items())
    fitted: list[list[Label]] = []
    powers: list[set[str]] = []

    def fit(own: AdditiveSamples, training: np.ndarray, settings: Any) -> Any:
        fitted.append([own.labels[place] for place in training])
        return fit_additive(own, training, settings)

    def read(own: list[Label], *_: Any) -> list[PowerPoint]:
        assert all(label.graph_hash for label in own)
        powers.append({label.recipe.model_key for label in own})
        return [point for point in power_points.make(["H200 SXM"]) if not point.is_of_epoch]

    fit_additive = unseen_labels.fit_additive
    monkeypatch.setattr(unseen_labels, "fit_additive", fit)
    monkeypatch.setattr(published_power, "read_own_points", read)
    collections = {"even": models[::2], "odd": models[1::2]}
    monkeypatch.setattr(unseen_labels, "load_collection", lambda name: [label.recipe for label in collections[name]])
    artefacts: list[tuple[dict[str, np.ndarray], Calibration]] = []
    load = PhysicsPredictor.load

    def loaded(folder: Path | None = None) -> PhysicsPredictor:
        if folder is None:
            return load()
        tensors = read_tensors(manifest_path(OWN_REGIMES[0], folder))
        artefacts.append((tensors, Calibration.read(folder / ARTEFACT_PATH.name)))
        return load(folder)

    monkeypatch.setattr(PhysicsPredictor, "load", staticmethod(loaded))
    names = {"labels": "labels", "traces": "traces", "layers": "layers", "layer-traces": "layer-traces", "out": "out"}
    given = [f"--{option}={tmp_path / name}.parquet" for option, name in names.items()]
    options = {"device": "H200", "precision": "amp", "seed": 3, "cache": cache, "epochs": 2}
    options |= {"folder": tmp_path / "arrays", "software": "torch 2.11+cu130", "members": 1}
    main([*given, *(f"--{option}={value}" for option, value in options.items()), "--recipe", *collections])
    report = json.loads(capsys.readouterr().out)
    found = list(read_parquet(tmp_path / "out.parquet"))
    assert report["labels"] == len(found) == len(models)
    assert {(label.source, label.measurement.software.framework) for label in found} == {
        (PREDICTED_SOURCE, "torch 2.11+cu130")
    }
    # No fit and no power has a model of those that the training is tested on, in any precision, alone or as a layer.
    keys = {label.recipe.model_key for label in models}
    assert len(keys) > report["models_left_out"] > 0
    (learnt,) = fitted
    known = {label.recipe.model_key for label in learnt}
    assert len(known) == len(keys) - report["models_left_out"]
    assert powers == [known]
    assert {label.configuration.conditions.precision for label in learnt} == {
        label.configuration.conditions.precision for label in (calls[0], others[0])
    }
    assert report["errors_of_time"]["rows"] == sum(label.recipe.model_key not in known for label in traced)
    # What predicts is what was fitted, and the rest as it is shipped.
    ((tensors, calibration),) = artefacts
    shipped = read_tensors(manifest_path(OWN_REGIMES[0]))
    assert not np.array_equal(tensors["scale.mean"], shipped["scale.mean"])
    assert np.array_equal(tensors["novelty.known"], shipped["novelty.known"])
    assert calibration.power.measured["9.0"] != Calibration.read().power.measured["9.0"]
    own = load().predict
    cached = unseen_labels.GraphCache(cache).load(models[-1].recipe.model_key, batch=models[-1].recipe.batch)
    assert cached is not None
    assert found[-1].measurement.memory_mb is not None
    (of_shipped,) = own(
        cached.graph,
        batches=[models[-1].recipe.batch],
        devices=[unseen_labels.find_device("H200")],
        conditions=_CAPTURED,
        software=unseen_labels.Software.parse("torch 2.11+cu130"),
    )
    assert found[-1].measurement.memory_mb == of_shipped.memory_mb
    assert found[-1].measurement.latency_ms != of_shipped.latency_ms
