"""Writes a real VGG16 (configuration D of Simonyan and Zisserman, 2015) as an ONNX file, weights inside.

    python examples/write_vgg16.py demo/vgg16.onnx

All 138,357,544 parameters are there, drawn at random (He initialisation) because a prediction does not depend on their
values; the file weighs 528 MiB and runs in any ONNX runtime. Weights go to the file piece by piece, so that
writing it needs little memory. The batch is left open.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

CONVOLUTIONS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
CLASSIFIER = (4096, 4096, 1000)
IMAGE = 224
PARAMETERS = 138_357_544
SEED = 16

_PIECE = 1 << 20
# Tags of the protobuf fields that are written by hand: number << 3 | 2 (length-delimited).
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 0x3A, 0x2A, 0x4A

Shapes = Mapping[str, tuple[int, ...]]


def build_vgg16() -> tuple[onnx.GraphProto, dict[str, tuple[int, ...]]]:
    """The graph without its weights, and the shape of every weight."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, tuple[int, ...]] = {}
    current, channels, layer = "input", 3, 0

    def add(op_type: str, output: str, inputs: Sequence[str], *, name: str = "", **attributes: object) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output], name=name or output, **attributes))
        return output

    for block in CONVOLUTIONS:
        for width in block:
            name = f"features.{layer}"
            weights[f"{name}.weight"] = (width, channels, 3, 3)
            weights[f"{name}.bias"] = (width,)
            parts = [current, f"{name}.weight", f"{name}.bias"]
            current = add("Conv", f"/{name}/Conv", parts, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            current = add("Relu", f"/features.{layer + 1}/Relu", [current])
            channels, layer = width, layer + 2
        current = add("MaxPool", f"/features.{layer}/MaxPool", [current], kernel_shape=[2, 2], strides=[2, 2])
        layer += 1
    current = add("Flatten", "/Flatten", [current], axis=1)
    features = channels * (IMAGE // 2 ** len(CONVOLUTIONS)) ** 2
    for index, width in enumerate(CLASSIFIER):
        name = f"classifier.{3 * index}"
        weights[f"{name}.weight"] = (width, features)
        weights[f"{name}.bias"] = (width,)
        is_last = index == len(CLASSIFIER) - 1
        output = "output" if is_last else f"/{name}/Gemm"
        current = add("Gemm", output, [current, f"{name}.weight", f"{name}.bias"], name=f"/{name}/Gemm", transB=1)
        if not is_last:
            current = add("Relu", f"/classifier.{3 * index + 1}/Relu", [current])
        features = width
    graph = helper.make_graph(
        nodes,
        "vgg16",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, IMAGE, IMAGE])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", CLASSIFIER[-1]])],
    )
    return graph, weights


def write_onnx(path: Path, graph: onnx.GraphProto, weights: Shapes, *, seed: int = SEED, opset: int = 17) -> None:
    """Write a graph and random float32 weights of these shapes, never holding more than a piece of them.

    Args:
        path: File to write; it appears when it is complete.
        graph: The graph without initialisers.
        weights: Name to shape; a file holds less than 2 GB.
        seed: Seed of the weights.
        opset: Operator set of the graph.
    """
    heads = {
        name: TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT).SerializeToString()
        for name, shape in weights.items()
    }
    sizes = {name: 4 * int(np.prod(shape)) for name, shape in weights.items()}
    bodies = {name: len(heads[name]) + len(_prefix(_TENSOR_RAW_DATA, sizes[name])) + sizes[name] for name in weights}
    nodes = graph.SerializeToString()
    length = len(nodes) + sum(len(_prefix(_GRAPH_INITIALIZER, bodies[name])) + bodies[name] for name in weights)
    model = onnx.ModelProto(
        ir_version=8, producer_name="dippm-examples", opset_import=[helper.make_opsetid("", opset)]
    ).SerializeToString()
    random = np.random.default_rng(seed)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        stream.write(model + _prefix(_MODEL_GRAPH, length) + nodes)
        for name, shape in weights.items():
            stream.write(_prefix(_GRAPH_INITIALIZER, bodies[name]) + heads[name])
            stream.write(_prefix(_TENSOR_RAW_DATA, sizes[name]))
            for piece in _draw(random, shape):
                stream.write(piece.data)
    os.replace(part, path)


def _draw(random: np.random.Generator, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """A weight in pieces: He initialisation; zeros for biases."""
    count = int(np.prod(shape))
    spread = np.float32((2 / np.prod(shape[1:])) ** 0.5 if len(shape) > 1 else 0)
    for start in range(0, count, _PIECE):
        yield random.standard_normal(min(_PIECE, count - start), dtype=np.float32) * spread


def _prefix(tag: int, length: int) -> bytes:
    """A field's tag and length, as protobuf writes them."""
    digits = bytearray([tag])
    while length >= 0x80:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return bytes(digits)


def main() -> None:
    """Write the file that the command line names, unless it is there already."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="The file to write, 528 MiB.")
    path: Path = parser.parse_args().file
    if path.exists():
        return
    graph, weights = build_vgg16()
    count = sum(int(np.prod(shape)) for shape in weights.values())
    if count != PARAMETERS:
        raise SystemExit(f"VGG16 has {PARAMETERS:,} parameters; this one has {count:,}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_onnx(path, graph, weights)
    sys.stderr.write(f"Wrote {path}: {count:,} parameters, {path.stat().st_size / 2**20:.0f} MiB\n")


if __name__ == "__main__":
    main()
