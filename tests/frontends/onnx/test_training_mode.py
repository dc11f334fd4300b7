"""ONNX files read for a training step."""

from __future__ import annotations

import io
import warnings
from collections import Counter

import numpy as np
import pytest
from onnx import helper

from dippm.costs.conditions import Mode
from dippm.frontends.onnx import read_onnx
from dippm.graph import DType, Graph, OpKind

_NORM = {name: np.ones(3, dtype=np.float32) for name in ("scale", "bias", "mean", "var")}
_NORM_INPUTS = ["x", "scale", "bias", "mean", "var"]


def _kinds(graph: Graph) -> Counter[OpKind]:
    return Counter(node.kind for node in graph.nodes)


def _warns(graph: Graph) -> bool:
    return any("exported" in warning for warning in graph.warnings)


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "is_active"),
    [
        (7, ["r"], {}, True),
        (7, ["r"], {"ratio": 0.0}, False),
        (11, ["r"], {"ratio": 0.3}, True),
        (12, ["r"], {}, True),
        (13, ["r", "share", "on"], {}, True),
        (13, ["r", "share", "off"], {}, True),
        (13, ["r", "none", "on"], {}, False),
    ],
)
def test_dropout_keeps_its_mask(build, opset, inputs, attributes, is_active):
    weights = {
        "share": np.float32(0.25), "none": np.float32(0.0), "on": np.array(True), "off": np.array(False)
    }  # fmt: skip
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Dropout", inputs, ["y"], **attributes)]
    model = build(nodes, opset=opset, weights={name: weights[name] for name in inputs[1:]})
    trained = read_onnx(model, mode=Mode.TRAINING)
    assert _kinds(trained)[OpKind.DROPOUT] == is_active
    assert _warns(trained) != is_active
    assert _kinds(read_onnx(model)) == {OpKind.RELU: 1}
    if is_active:
        result, mask = (trained.tensors[index] for index in trained.nodes[-1].outputs)
        assert (result.shape, mask.dtype) == (mask.shape, DType.BOOL)


def test_dropout_of_a_constant_is_drawn_anew(build):
    nodes = [helper.make_node("Dropout", ["table"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    model = build(nodes, weights={"table": np.ones((3, 8, 8), dtype=np.float32)})
    assert _kinds(read_onnx(model, mode=Mode.TRAINING))[OpKind.DROPOUT] == 1


@pytest.mark.parametrize(
    ("opset", "outputs", "attributes", "is_training"),
    [
        (17, ["y", "m", "v"], {"training_mode": 1}, True),
        (17, ["y"], {}, False),
        (9, ["y", "m", "v", "sm", "sv"], {}, True),
        (9, ["y"], {}, False),
    ],
)
def test_batch_norm_is_what_the_file_says(build, opset, outputs, attributes, is_training):
    model = build(
        [helper.make_node("BatchNormalization", _NORM_INPUTS, outputs, **attributes)], opset=opset, weights=_NORM
    )
    trained = read_onnx(model, mode=Mode.TRAINING)
    (node,) = trained.nodes
    assert bool(node.attributes.get("is_training")) == is_training
    assert _warns(trained) != is_training
    (node,) = read_onnx(model).nodes
    assert "is_training" not in node.attributes


def test_inference_never_warns(build):
    assert not _warns(read_onnx(build([helper.make_node("Relu", ["x"], ["y"])])))


@pytest.mark.parametrize("is_training", [False, True])
def test_an_export_of_pytorch(is_training):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Flatten()
    )
    mode = torch.onnx.TrainingMode.TRAINING if is_training else torch.onnx.TrainingMode.EVAL
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.ones(2, 3, 8, 8),), stream, training=mode, dynamo=False, do_constant_folding=not is_training,
            input_names=["image"], dynamic_axes={"image": {0: "batch"}},
        )  # fmt: skip
    graph = read_onnx(stream.getvalue(), mode=Mode.TRAINING)
    assert _kinds(graph)[OpKind.DROPOUT] == is_training
    assert _warns(graph) != is_training
    assert graph.fixed_batch is None
