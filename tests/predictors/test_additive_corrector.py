"""The networks of one regime: what they refuse to read, and what they leave alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.errors import DippmError, UnsupportedError
from dippm.features.physical import COLUMNS, PhysicalPlan
from dippm.graph import DType, OpKind
from dippm.predictors.additive_artefact import OWN_REGIMES, AdditiveArtefact, manifest_path, read_tensors
from dippm.predictors.additive_corrector import Corrector


def _shipped(number: int = 0) -> tuple[AdditiveArtefact, Mapping[str, np.ndarray]]:
    path = manifest_path(OWN_REGIMES[number])
    return AdditiveArtefact.read(path), read_tensors(path)


def test_features_of_another_version_are_refused() -> None:
    artefact, tensors = _shipped()
    with pytest.raises(UnsupportedError) as caught:
        Corrector(replace(artefact, columns=(*COLUMNS[:-1], "colour")), tensors)
    assert caught.value.code == "artefact.columns"


@pytest.mark.parametrize(("function", "is_unseen"), [("index", False), ("gather", True), ("index_select", True)])
def test_gradients_of_lookups_that_sort_nothing_are_unseen(builder: Any, function: str, is_unseen: bool) -> None:
    x, n = builder.input(builder.N, 8), builder.N
    x = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], n, 8)
    places = builder.input(n, 4, dtype=DType.INT64)
    builder.node(OpKind.GATHER, [x, places], n, 4, function=function)
    step = make_training_graph(builder.graph(), TrainingSettings(precision=Precision.AMP))
    physical = PhysicalPlan.from_graph(step, Precision.AMP)
    (training,) = (number for number, regime in enumerate(OWN_REGIMES) if regime.mode == "training")
    plan = Corrector(*_shipped(training)).prepare(physical)
    (scatter,) = (place for place, node in enumerate(step.graph.nodes) if node.kind is OpKind.SCATTER)
    assert bool(plan.is_unseen[physical.class_of[scatter]]) is is_unseen


_RAMP = {"ramp.column": np.zeros(1), "ramp.start": np.zeros(1), "ramp.length": np.ones(1)}


@pytest.mark.parametrize(
    "damaged",
    [
        {**_RAMP, "ramp.column": np.full(1, 999.0)},  # of no column
        {**_RAMP, "ramp.column": np.full(1, -1.0)},
        {**_RAMP, "ramp.length": np.zeros(1)},
        {**_RAMP, "ramp.start": np.zeros(2)},
        {"ramp.column": np.zeros(1)},
        {},  # the networks read one more input
    ],
)
def test_ramps_that_are_damaged_or_missing_are_refused(damaged: dict[str, np.ndarray]) -> None:
    artefact, tensors = _shipped()
    own = {name: values for name, values in tensors.items() if not name.startswith("ramp.")}
    inputs = len(artefact.columns) + 1
    for member in range(artefact.members):
        name = f"member{member}.input.weight"
        own[name] = own[name][:, :inputs]
    whole = {**own, **{name: values.astype(np.float32) for name, values in _RAMP.items()}}
    Corrector(artefact, whole)
    with pytest.raises(DippmError) as caught:
        Corrector(artefact, {**own, **damaged})
    assert caught.value.code == "artefact.unreadable"


def test_corrections_are_whole_where_they_were_calibrated_and_none_twice_as_far() -> None:
    artefact, tensors = _shipped()
    corrector = Corrector(
        replace(artefact, distances=(0.5, 2.0), half_widths=(0.1, 0.2)),
        {
            **tensors,
            "novelty.mean": np.zeros_like(tensors["novelty.mean"]),
            "novelty.basis": np.eye(len(artefact.columns), dtype=np.float32),
            "novelty.known": np.zeros((1, len(artefact.columns)), dtype=np.float32),
        },
    )
    descriptors = np.zeros((2, 3, len(artefact.columns)), dtype=np.float32)
    descriptors[..., artefact.columns.index("kernel_ms")] = [[0.0, 2.0, 2.5], [3.0, 9.0, 2.2]]
    assert corrector.kept(descriptors) == pytest.approx(np.array([[1.0, 1.0, 0.75], [0.5, 0.0, 0.9]]))
    assert corrector.half_widths(descriptors)[0, 1:] == pytest.approx([0.2, 0.25])
    descriptors[..., artefact.columns.index("rows_by_8")] = 9.0
    assert corrector.kept(descriptors)[0].tolist() == pytest.approx([1.0, 1.0, 0.75])
    assert corrector.half_widths(descriptors).min() > 0.8


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("member1.own.0.bias", lambda values: None),
        ("member1.own.1.bias", lambda values: values[:-1]),
        ("member0.own.1.weight", lambda values: values[:, :-1]),
        ("member0.output.weight", lambda values: values[:1]),
        ("member0.output.weight", lambda values: values[0]),
        ("member0.input.bias", lambda values: values[None, None]),
    ],
)
def test_networks_whose_sizes_do_not_go_together_are_not_read(name: str, change: Any) -> None:
    artefact, tensors = _shipped()
    damaged = {own: change(values) if own == name else values for own, values in tensors.items()}
    if damaged[name] is None:
        del damaged[name]
    with pytest.raises(DippmError) as caught:
        Corrector(artefact, damaged)
    assert caught.value.code == "artefact.unreadable"
