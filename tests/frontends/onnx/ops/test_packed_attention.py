from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.ops.registry import MICROSOFT
from dippm.graph import Graph


def macs(graph: Graph, batch: int) -> int:
    assert graph.unsupported_ops == {}
    return int(Workload.from_graph(graph).at([batch]).macs.sum())


@pytest.mark.parametrize("is_projected", [False, True])
def test_sequences_without_padding(build, kinds, is_projected: bool) -> None:
    """Two products of 6 tokens with 6 of their sequence, in each of 4 heads of 8, between two moves of the tokens."""
    if is_projected:
        attention = helper.make_node(
            "PackedMultiHeadAttention", ["t", "t", "t", "", "o", "c"], ["a"], domain=MICROSOFT, num_heads=4
        )
    else:
        attention = helper.make_node("PackedAttention", ["t", "w", "b", "o", "c"], ["a"], domain=MICROSOFT, num_heads=4)
    nodes = [
        helper.make_node("RemovePadding", ["x", "lengths"], ["t", "o", "c", "m"], domain=MICROSOFT),
        attention,
        helper.make_node("RestorePadding", ["a", "o"], ["y"], domain=MICROSOFT),
    ]
    weights = {"w": np.zeros((32, 96), np.float32), "b": np.zeros(96, np.float32)}
    model = build(
        nodes,
        inputs={"x": ["N", 6, 32], "lengths": ["N"]},
        weights={} if is_projected else weights,
        domains=[MICROSOFT],
    )
    graph = read_onnx(model)
    assert "attention" in kinds(graph)
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "6", "32"]
    projection = 0 if is_projected else 6 * 32 * 96
    assert macs(graph, 3) == 3 * (projection + 2 * 4 * 6 * 6 * 8)


def test_attention_in_windows(one, shapes) -> None:
    weights = {name: np.zeros((32, 96), np.float32) for name in ("w", "u")}
    weights |= {name: np.zeros(96, np.float32) for name in ("b", "d")}
    graph = one(
        "LongformerAttention",
        "x w b m u d g",
        inputs={"x": ["N", 16, 32], "m": ["N", 16], "g": ["N", 16]},
        weights=weights,
        domain=MICROSOFT,
        num_heads=4,
        window=4,
    )
    assert shapes(graph) == [["N", "16", "32"]]
    assert macs(graph, 2) == 2 * (2 * 16 * 32 * 96 + 2 * 16 * 3 * 4 * 32)


@pytest.mark.parametrize(
    ("is_static", "has_past", "keys", "projected"),
    [(False, False, 3, 3 * 3), (True, False, 7, 3 + 2 * 7), (False, True, 5 + 3, 3 * 3), (True, True, 5, 3)],
)
def test_attention_of_a_decoder(one, is_static: bool, has_past: bool, keys: int, projected: int) -> None:
    weights = {
        "wq": np.zeros((32, 32), np.float32),
        "wkv": np.zeros((32, 64), np.float32),
        "b": np.zeros(96, np.float32),
        **{name: np.array([flag]) for name, flag in (("s", is_static), ("u", has_past), ("f", False))},
    }
    cache = {"pk": ["N", 4, 5, 8], "pv": ["N", 4, 5, 8]} if has_past else {}
    graph = one(
        "DecoderAttention",
        f"x e wq wkv b - {'pk pv' if has_past else '- -'} s u f f",
        inputs={"x": [3, "N", 32], "e": [7, "N", 32], **cache},
        weights=weights,
        outputs=["y", "k", "v"],
        domain=MICROSOFT,
        num_heads=4,
    )
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["3", "N", "32"]
    assert [str(dim) for dim in graph.tensors[graph.outputs[1]].shape] == ["N", "4", str(keys), "8"]
    assert macs(graph, 2) == 2 * (projected * 32 * 32 + 2 * 3 * keys * 32)


@pytest.mark.parametrize(
    ("operator", "names", "shape"),
    [
        ("RemovePadding", "x x", ["N", 4]),
        ("RestorePadding", "x x", ["N", 4, 8]),
        ("PackedMultiHeadAttention", "x - - - x x", ["N", 4]),
    ],
)
def test_other_ranks_are_told(refused, operator: str, names: str, shape: list[object]) -> None:
    refused(operator, names, inputs={"x": shape}, domain=MICROSOFT)
