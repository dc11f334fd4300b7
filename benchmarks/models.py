"""The files that the benchmarks read, written once: ``models.py FOLDER CHAIN_SIZE...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from write_vgg16 import build_vgg16, write_onnx

from resnet import create_resnet50


def write_all(folder: Path, chains: Sequence[int]) -> None:
    """Write ResNet-50, VGG16 and chains of these sizes; files that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "vgg16.onnx").exists():
        write_onnx(folder / "vgg16.onnx", *build_vgg16())
    if not (folder / "resnet50.onnx").exists():
        export_resnet50(folder / "resnet50.onnx")
    for size in chains:
        if not (folder / f"chain{size}.onnx").exists():
            write_chain(folder / f"chain{size}.onnx", size)


def export_resnet50(path: Path) -> None:
    """Write timm's ResNet-50 as PyTorch's own exporter writes it, weights inside, batch left open."""
    import torch

    model = create_resnet50()
    torch.onnx.export(
        model,
        (torch.zeros(2, 3, 224, 224),),
        path,
        dynamo=True,
        external_data=False,
        input_names=["input"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )


def write_chain(path: Path, nodes: int) -> None:
    """A narrow residual network of this many nodes: a third each of Conv, Relu and Add, every Conv with its weights."""
    proto, weights = [], {}
    current = "input"
    for block in range(nodes // 3):
        name = f"blocks.{block}"
        weights[f"{name}.weight"] = (8, 8, 3, 3)
        proto.append(
            helper.make_node("Conv", [current, f"{name}.weight"], [f"/{name}/Conv"], kernel_shape=[3, 3], pads=[1] * 4)
        )
        proto.append(helper.make_node("Relu", [f"/{name}/Conv"], [f"/{name}/Relu"]))
        proto.append(helper.make_node("Add", [f"/{name}/Relu", current], [f"/{name}/Add"]))
        current = f"/{name}/Add"
    while len(proto) < nodes:
        proto.append(helper.make_node("Relu", [current], [f"/tail/{len(proto)}"]))
        current = f"/tail/{len(proto) - 1}"
    shape = ["batch", 8, 16, 16]
    graph = helper.make_graph(
        proto,
        "chain",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, shape)],
    )
    write_onnx(path, graph, weights)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
