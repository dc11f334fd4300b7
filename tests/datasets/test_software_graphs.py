"""Graphs as the software of a label ran them."""

from __future__ import annotations

import pytest

from dippm.costs.autocast import LOWERED
from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import OpKind
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack


def _attention(builder):
    n = builder.N
    query, key, value = (builder.input(n, 4, 16, 32) for _ in range(3))
    builder.node(OpKind.ATTENTION, [query, key, value], n, 4, 16, 32)
    return builder.graph()


@pytest.mark.parametrize(
    ("framework", "software"),
    [
        ("torch 1.12", Software(torch=(1, 12))),
        ("torch 1.13.1+cu117, timm 0.6.12", Software(torch=(1, 13), cuda=(11, 7))),
        ("torch of 21.03", DEFAULT_SOFTWARE),
        ("onnxruntime 1.22.0", DEFAULT_SOFTWARE),
        ("", DEFAULT_SOFTWARE),
    ],
)
def test_software_of_a_label(framework, software):
    assert software_of(framework) == software


def _label(framework, *, source="test", mode=Mode.INFERENCE, name="zoo:timm:convnext_tiny"):
    recipe = Recipe(
        collection="m",
        family="m",
        architecture=name,
        inputs=InputShapes(positional=(InputEntry(shape=(3, 8, 8)),)),
        batch=2,
    )
    optimizer = Optimizer.MOMENTUM if mode is Mode.TRAINING else None
    conditions = Conditions(precision=Precision.AMP, mode=mode, optimizer=optimizer)
    return Label(
        recipe=recipe,
        configuration=Configuration(batch=2, conditions=conditions),
        measurement=Measurement(
            outcome=Outcome.OK,
            device="GeForce RTX 3090",
            measured_at="",
            warmup_runs=1,
            timed_runs=1,
            latency_ms=1.0,
            software=SoftwareStack(framework=framework),
        ),
        source=source,
    )


@pytest.mark.parametrize("framework", ["torch 1.12", "torch 1.13.1, timm 0.6.12"])
def test_attention_is_taken_apart_for_old_labels(builder, framework):
    kinds = [node.kind for node in as_measured(_attention(builder), _label(framework)).nodes]
    assert OpKind.ATTENTION not in kinds
    assert OpKind.SOFTMAX in kinds


@pytest.mark.parametrize("framework", ["torch 2.4.0", "onnxruntime 1.22.0"])
def test_a_graph_of_today_stays_as_it_is(builder, framework):
    graph = _attention(builder)
    assert as_measured(graph, _label(framework)) is graph


def test_norms_of_timms_tables_of_inference_ran_in_16_bits(builder):
    n = builder.N
    builder.node(OpKind.GROUP_NORM, [builder.input(n, 8, 4, 4), builder.weight(8)], n, 8, 4, 4)
    graph = builder.graph()
    (node,) = as_measured(graph, _label("torch 2.4.0", source="timm torch 2.4.0")).nodes
    assert node.attributes[LOWERED] is True
    for mode, source in ((Mode.TRAINING, "timm torch 1.12"), (Mode.INFERENCE, "dippm 0.1")):
        assert as_measured(graph, _label("torch 2.4.0", source=source, mode=mode)) is graph
