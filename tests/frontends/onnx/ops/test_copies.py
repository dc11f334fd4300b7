"""Operators that copy: repeated, padded, shuffled, turned round."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from dippm.graph import OpKind


@pytest.mark.parametrize(("repeats", "kinds"), [([1, 2, 1, 3], ["copy"]), ([1, 1, 1, 1], [])])
def test_repeating_copies_unless_it_repeats_nothing(one, shapes, repeats: list[int], kinds: list[str]) -> None:
    graph = one("Tile", "x r", weights={"r": np.array(repeats)})
    assert [node.kind.value for node in graph.nodes] == kinds
    assert shapes(graph) == [["N", str(3 * repeats[1]), "8", str(8 * repeats[3])]]


@pytest.mark.parametrize(
    ("op_type", "shape"), [("DepthToSpace", ["N", "2", "16", "16"]), ("SpaceToDepth", ["N", "32", "4", "4"])]
)
def test_blocks_move_between_channels_and_space(one, shapes, op_type: str, shape: list[str]) -> None:
    graph = one(op_type, "x", inputs={"x": ["N", 8, 8, 8]}, blocksize=2)
    assert shapes(graph) == [shape]
    assert graph.nodes[0].attributes["function"] == "pixel_shuffle"


@pytest.mark.parametrize(
    ("pads", "kind", "shape"),
    [
        ([0, 0, 1, 2, 0, 0, 3, 4], OpKind.PAD, ["N", "3", "12", "14"]),
        ([0, 0, -1, 0, 0, 0, -1, 0], OpKind.COPY, ["N", "3", "6", "8"]),
        ([0, 0, 2, 0, 0, 0, -1, 0], OpKind.PAD, ["N", "3", "9", "8"]),
    ],
)
def test_borders_are_added_or_cut_off(one, shapes, pads: list[int], kind: OpKind, shape: list[str]) -> None:
    graph = one("Pad", "x p", weights={"p": np.array(pads)})
    assert graph.nodes[0].kind is kind
    assert shapes(graph) == [shape]


def test_pads_of_some_axes(one, shapes) -> None:
    weights = {"p": np.array([1, 2]), "a": np.array([-2])}
    graph = one("Pad", "x p - a", weights=weights, opset=18, mode="reflect")
    assert shapes(graph) == [["N", "3", "11", "8"]]
    assert graph.nodes[0].attributes["mode"] == "reflect"


@pytest.mark.parametrize(("sizes", "kind"), [([4, 6], OpKind.COPY), ([4, 10], OpKind.PAD)])
def test_about_the_middle(one, shapes, sizes: list[int], kind: OpKind) -> None:
    graph = one("CenterCropPad", "x s", weights={"s": np.array(sizes)}, opset=18, axes=[2, 3])
    assert graph.nodes[0].kind is kind
    assert shapes(graph) == [["N", "3", *map(str, sizes)]]


def test_sequences_are_turned_round_by_their_lengths(one, shapes) -> None:
    graph = one(
        "ReverseSequence", "x l", inputs={"x": [7, "N", 5], "l": ["N"]}, dtypes={"l": TensorProto.INT64}, time_axis=0
    )
    assert graph.nodes[0].kind is OpKind.GATHER
    assert shapes(graph) == [["7", "N", "5"]]


@pytest.mark.parametrize(
    ("op_type", "names", "weights", "attributes", "said"),
    [
        ("Tile", "x r", {"r": np.array([1, 2])}, {}, "repeats"),
        ("Tile", "x r", {"r": np.array([1, -2, 1, 1])}, {}, "repeats"),
        ("DepthToSpace", "x", {}, {"blocksize": 2}, "do not split"),
        ("SpaceToDepth", "x", {}, {"blocksize": 3}, "does not split"),
        ("Pad", "x p", {"p": np.array([0, 0, -9, 0, 0, 0, 0, 0])}, {}, "leave nothing"),
        ("Pad", "x p", {"p": np.array([1, 1])}, {}, "do not fit"),
    ],
)
def test_what_cannot_be_copied(refused, op_type, names, weights, attributes, said: str) -> None:
    assert said in refused(op_type, names, weights=weights, **attributes)
