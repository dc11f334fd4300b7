from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.graph import OpKind


def _weights(**sizes: int) -> dict[str, np.ndarray]:
    return {name: np.zeros(size, np.float32) for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("op_type", "names", "weights", "attributes", "kind", "expected"),
    [
        ("InstanceNormalization", "x s s", {"s": 4}, {}, OpKind.INSTANCE_NORM, {"axes_size": 48}),
        ("LayerNormalization", "x s s", {"s": 8}, {}, OpKind.LAYER_NORM, {"axes_size": 8}),
        ("LayerNormalization", "x", {}, {"axis": 2}, OpKind.LAYER_NORM, {"axes_size": 48}),
        ("SimplifiedLayerNormalization", "x s", {"s": 8}, {}, OpKind.RMS_NORM, {"axes_size": 8}),
        ("GroupNormalization", "x s s", {"s": 4}, {"num_groups": 2}, OpKind.GROUP_NORM, {"groups": 2, "axes_size": 96}),
        ("LRN", "x", {}, {"size": 5}, OpKind.LOCAL_RESPONSE_NORM, {"axes_size": 5}),
    ],
)
def test_over_how_many_elements(one, shapes, op_type, names, weights, attributes, kind: OpKind, expected) -> None:
    options = {"inputs": {"x": ["N", 4, 6, 8]}, "weights": _weights(**weights), "opset": 21}
    graph = one(op_type, names, **options, **attributes)
    (node,) = graph.nodes
    assert node.kind is kind
    assert {name: node.attributes[name] for name in expected} == expected
    assert shapes(graph) == [["N", "4", "6", "8"]]


def test_batch_norm_counts_its_statistics_apart_from_its_weights(one, refused) -> None:
    weights = _weights(s=3, b=3, m=3, v=3)
    graph = one("BatchNormalization", "x s b m v", weights=weights)
    assert [node.kind for node in graph.nodes] == [OpKind.BATCH_NORM]
    assert graph.parameter_count == 6
    assert "3 channels" in refused("BatchNormalization", "x s b m v", weights=_weights(s=4, b=4, m=4, v=4))


def test_statistics_that_a_file_asks_for_are_of_the_size_of_the_rows(one, shapes) -> None:
    graph = one("LayerNormalization", "x s", inputs={"x": ["N", 6, 8]}, weights=_weights(s=8), outputs=["y", "m", "d"])
    assert shapes(graph) == [["N", "6", "8"], ["N", "6", "1"], ["N", "6", "1"]]


def test_groups_of_onnxruntime_may_end_with_an_activation(one, kinds) -> None:
    options = {"inputs": {"x": ["N", 4, 6, 8]}, "weights": _weights(s=4), "domain": "com.microsoft"}
    assert kinds(one("GroupNorm", "x s s", groups=2, activation=1, **options)) == ["group_norm", "silu"]
    assert kinds(one("SkipGroupNorm", "x s s x", groups=2, activation=0, **options)) == ["add", "group_norm"]
    assert kinds(one("SkipGroupNorm", "x s s x s", groups=2, activation=0, **options)) == ["add", "add", "group_norm"]


def test_embeddings_are_looked_up_added_and_normalised(one, kinds, shapes) -> None:
    weights = {"w": np.zeros((100, 16), np.float32), "p": np.zeros((32, 16), np.float32), **_weights(g=16)}
    graph = one(
        "EmbedLayerNormalization",
        "i - w p - g g",
        inputs={"i": ["N", 12]},
        weights=weights,
        dtypes={"i": TensorProto.INT32},
        domain="com.microsoft",
    )
    assert kinds(graph)[:4] == ["embedding", "embedding", "add", "layer_norm"]
    assert shapes(graph) == [["N", "12", "16"]]


def test_norms_without_an_operator_of_their_own_are_taken_apart(one, kinds) -> None:
    assert kinds(one("LpNormalization", "x", axis=1)) == ["reduce", "clip", "div"]
    graph = one("MeanVarianceNormalization", "x")
    assert kinds(graph) == ["reduce", "sub", "reduce", "div"]
    assert graph.nodes[0].attributes["axes"] == (0, 2, 3)


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes"),
    [
        ("InstanceNormalization", ["N", 4], {}),
        ("GroupNormalization", ["N", 4, 6], {"num_groups": 0}),
        ("LayerNormalization", ["N", 4], {"axis": 5}),
    ],
)
def test_what_has_no_norm(refused, op_type: str, shape: list, attributes: dict) -> None:
    assert refused(op_type, "x s s", inputs={"x": shape}, weights=_weights(s=4), opset=21, **attributes)


def test_bias_of_the_product_that_a_skip_is_added_to_is_the_layers(read, kinds) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("SkipLayerNormalization", ["x", "product", "s", "s", "b"], ["y"], domain="com.microsoft"),
    ]
    weights = {"w": np.zeros((8, 8), np.float32), **_weights(s=8, b=8)}
    assert kinds(read(nodes, weights=weights, inputs={"x": ["N", 6, 8]}, domains=["com.microsoft"])) == [
        "linear",
        "add",
        "layer_norm",
    ]
