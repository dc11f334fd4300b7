"""Graphs as the software of a label ran them."""

from __future__ import annotations

import pytest

from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.graph import OpKind


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


@pytest.mark.parametrize("framework", ["torch 1.12", "torch 1.13.1, timm 0.6.12"])
def test_attention_is_taken_apart_for_old_labels(builder, framework):
    kinds = [node.kind for node in as_measured(_attention(builder), framework).nodes]
    assert OpKind.ATTENTION not in kinds
    assert OpKind.SOFTMAX in kinds


@pytest.mark.parametrize("framework", ["torch 2.4.0", "onnxruntime 1.22.0"])
def test_a_graph_of_today_stays_as_it_is(builder, framework):
    graph = _attention(builder)
    assert as_measured(graph, framework) is graph
