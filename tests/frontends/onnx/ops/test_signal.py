from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.workload import Workload
from dippm.graph import OpKind


@pytest.mark.parametrize(
    ("attributes", "opset", "shape"),
    [
        ({}, 17, ["N", "64", "5", "2"]),
        ({"onesided": 1}, 17, ["N", "33", "5", "2"]),
        ({"axis": 2}, 17, ["N", "64", "5", "2"]),
        ({"onesided": 1}, 20, ["N", "64", "3", "2"]),  # the axis before the last, since opset 20
    ],
)
def test_a_transform_keeps_its_length_or_half_of_it(one, shapes, attributes, opset: int, shape: list[str]) -> None:
    graph = one("DFT", "x", inputs={"x": ["N", 64, 5, 2]}, opset=opset, **attributes)
    assert graph.nodes[0].kind is OpKind.FFT
    assert shapes(graph) == [shape]


def test_a_real_signal_has_two_parts_afterwards(one, shapes) -> None:
    graph = one("DFT", "x n", inputs={"x": ["N", 64, 1]}, weights={"n": np.array(100)}, axis=1)
    assert shapes(graph) == [["N", "100", "2"]]
    assert graph.nodes[0].attributes["axes"] == (1,)


@pytest.mark.parametrize(("onesided", "bins"), [(1, "65"), (0, "128")])
def test_frames_of_a_signal(one, shapes, onesided: int, bins: str) -> None:
    weights = {"step": np.array(32), "frame": np.array(128)}
    graph = one("STFT", "x step - frame", inputs={"x": ["N", 1024, 1]}, weights=weights, onesided=onesided)
    assert shapes(graph) == [["N", "29", bins, "2"]]


def test_transforms_of_onnxruntime(one, shapes) -> None:
    options = {"domain": "com.microsoft", "onesided": 1, "normalized": 0}
    assert shapes(one("Rfft", "x", inputs={"x": ["N", 8, 8]}, signal_ndim=2, **options)) == [["N", "8", "5", "2"]]
    assert shapes(one("Irfft", "x", inputs={"x": ["N", 8, 5, 2]}, signal_ndim=2, **options)) == [["N", "8", "8"]]


@pytest.mark.parametrize(
    ("op_type", "names", "weights", "attributes"),
    [
        ("DFT", "x", {}, {"axis": 2}),
        ("STFT", "x step - frame", {"step": np.array(0), "frame": np.array(8)}, {}),
        ("STFT", "x step - frame", {"step": np.array(4), "frame": np.array(80)}, {}),
    ],
)
def test_what_has_no_transform(refused, op_type: str, names: str, weights: dict, attributes: dict) -> None:
    assert refused(op_type, names, inputs={"x": ["N", 64, 1]}, weights=weights, **attributes)


@pytest.mark.parametrize(("size", "parts"), [(1024, 2), (1024, 1), (8, 2)])
def test_the_work_follows_the_length_that_is_transformed(one, size: int, parts: int) -> None:
    graph = one("DFT", "x", inputs={"x": ["N", size, 3, parts]}, axis=1)
    # 5 n log2 n for each of 3 columns of 2 samples, a pair of parts being one number.
    assert Workload.from_graph(graph).at([2]).flops.sum() == 2 * 3 * 5 * size * {1024: 10, 8: 3}[size]


def test_frames_are_weighted_and_then_transformed(one, kinds) -> None:
    weights = {"step": np.array(32), "window": np.zeros(128, np.float32)}
    graph = one("STFT", "x step window", inputs={"x": ["N", 1024, 1]}, weights=weights)
    assert kinds(graph) == ["view", "mul", "fft"]
    # (1024 - 128) / 32 + 1 = 29 frames.
    assert Workload.from_graph(graph).at([1]).flops.sum() == 29 * 128 + 29 * 5 * 128 * 7
