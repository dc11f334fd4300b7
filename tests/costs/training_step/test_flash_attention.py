"""Copies around flash attention: of a result that lies head by head, and of heads whose size is not a multiple of eight."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs import Precision
from dippm.costs.training_step.explicit_types import with_explicit_types
from dippm.graph import DType, OpKind


def _kinds(builder: Any, *, width: int = 64, is_by_head: bool = True, precision: str = "bf16", mask: bool = False):
    n = builder.N
    inputs = [builder.node(OpKind.RELU, [builder.input(n, 4, 128, width)], n, 4, 128, width) for _ in range(3)]
    if mask:
        inputs.append(builder.input(n, 1, 128, 128, dtype=DType.BOOL))
    builder.node(OpKind.ATTENTION, inputs, n, 4, 128, width, is_causal=False, is_by_head=is_by_head)
    graph, _ = with_explicit_types(builder.graph(), Precision(precision))
    return graph, [node.kind for node in graph.nodes if node.kind not in (OpKind.RELU, OpKind.CAST)]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "amp", "amp-bf16"])
def test_a_result_that_lies_head_by_head_is_copied(builder: Any, precision: str) -> None:
    graph, kinds = _kinds(builder, precision=precision)
    assert kinds == [OpKind.ATTENTION, OpKind.COPY]
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    written, (result,) = graph.tensors[attention.outputs[0]], graph.outputs
    assert attention.outputs[0] != result
    assert (written.shape, written.dtype) == (graph.tensors[result].shape, graph.tensors[result].dtype)


@pytest.mark.parametrize(
    "changed",
    [
        {"is_by_head": False},
        {"precision": "fp32"},
        {"mask": True},
        {"width": 264},
    ],
)
def test_nothing_else_is_copied(builder: Any, changed: dict[str, Any]) -> None:
    assert _kinds(builder, **changed)[1] == [OpKind.ATTENTION]


def test_heads_of_odd_size_are_padded(builder: Any) -> None:
    graph, kinds = _kinds(builder, width=36, is_by_head=False)
    assert kinds == [OpKind.PAD, OpKind.PAD, OpKind.PAD, OpKind.ATTENTION, OpKind.COPY]
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    widths = [graph.tensors[index].shape[-1].fixed for index in (*attention.inputs, *attention.outputs)]
    assert widths == [40, 40, 40, 40]
