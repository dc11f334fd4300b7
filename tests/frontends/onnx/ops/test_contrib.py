from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.frontends.onnx import read_onnx

HEADS = ["view"] * 6 + ["attention", "view", "view"]


FUSED = [
    ("FusedMatMul", "x w", {"transB": 1}, {"w": (7, 8)}, ["linear"]),
    ("FusedGemm", "f w b", {"activation": "Relu"}, {"w": (8, 7), "b": (7,)}, ["linear", "relu"]),
    ("SkipLayerNormalization", "x x g g", {}, {"g": (8,)}, ["add", "layer_norm"]),
    ("SkipSimplifiedLayerNormalization", "x x g", {}, {"g": (8,)}, ["add", "rms_norm"]),
    ("BiasGelu", "x g", {}, {"g": (8,)}, ["add", "gelu"]),
    ("QuickGelu", "x", {}, {}, ["gelu"]),
    ("MatMulNBits", "x w s", {"K": 8, "N": 7}, {"w": (7, 1, 4), "s": (7,)}, ["dequantize", "linear"]),
    ("Attention", "x w b", {"num_heads": 2}, {"w": (8, 24), "b": (24,)}, ["linear", "view", "view", "view", *HEADS]),
    ("MultiHeadAttention", "x x x", {"num_heads": 2}, {}, HEADS),
    ("GroupQueryAttention", "x h h", {"num_heads": 4, "kv_num_heads": 2}, {}, HEADS),
    (
        "RotaryEmbedding",
        "x i c c",
        {},
        {"c": (6, 4)},
        [*["view"] * 2, "unary", "concat", *["view"] * 2, "mul", "mul", "add"],
    ),
    ("QLinearAdd", "x s s x s s s s", {}, {"s": ()}, ["dequantize", "dequantize", "add", "quantize"]),
    ("NhwcConv", "n k", {}, {"k": (4, 8, 1, 1)}, ["view", "conv", "view"]),
]


@pytest.mark.parametrize(("op_type", "names", "attributes", "shapes", "expected"), FUSED)
def test_fused_operators_of_onnxruntime(build, kinds, op_type, names, attributes, shapes, expected) -> None:
    node = helper.make_node(op_type, names.split(), ["y"], domain="com.microsoft", **attributes)
    inputs = {"x": ["N", 6, 8], "f": ["N", 8], "h": ["N", 6, 4], "i": ["N", 6], "n": ["N", 5, 5, 8]}
    used = {name: shape for name, shape in inputs.items() if name in node.input}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    model = build([node], inputs=used, weights=weights, domains=["com.microsoft"], dtypes={"i": TensorProto.INT64})
    graph = read_onnx(model)
    assert kinds(graph) == expected
    assert graph.unsupported_ops == {}


@pytest.mark.parametrize(
    ("op_type", "names", "attributes", "expected"),
    [
        ("BiasSoftmax", "x x", {"axis": 1}, ["add", "softmax"]),
        ("BiasAdd", "x g x", {}, ["add", "add"]),
        ("BiasSplitGelu", "x g", {}, ["add", "view", "view", "gelu", "mul"]),
        ("BiasDropout", "x g x", {}, ["add", "add"]),
        ("BitmaskDropout", "x", {}, []),
    ],
)
def test_sums_before_other_operators(one, kinds, op_type: str, names: str, attributes: dict, expected: list) -> None:
    weights = {"g": np.zeros(8, np.float32)} if "g" in names else {}
    options = {"inputs": {"x": ["N", 6, 8]}, "weights": weights, "domain": "com.microsoft"}
    assert kinds(one(op_type, names, **options, **attributes)) == expected


def test_half_of_the_features_is_left_of_a_split(one, refused, shapes) -> None:
    options = {"weights": {"g": np.zeros(8, np.float32)}, "domain": "com.microsoft"}
    assert shapes(one("BiasSplitGelu", "x g", inputs={"x": ["N", 6, 8]}, **options)) == [["N", "6", "4"]]
    assert "even" in refused("BiasSplitGelu", "x x", inputs={"x": ["N", 6, 7]}, domain="com.microsoft")


def test_regions_are_resized(one, refused, shapes) -> None:
    options = {"inputs": {"x": ["N", 3, 8, 8], "r": [20, 4], "b": [20]}, "domain": "com.microsoft"}
    options |= {"dtypes": {"b": TensorProto.INT32}}
    graph = one("CropAndResize", "x r b s", weights={"s": np.array([5, 7])}, **options)
    assert shapes(graph)[0][1:] == ["3", "5", "7"]
    assert "crop size" in refused("CropAndResize", "x r b s", weights={"s": np.array([5])}, **options)
