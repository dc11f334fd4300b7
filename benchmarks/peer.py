"""Asks one tool for ResNet-50's figures at a batch and prints them as JSON: ``peer.py TOOL FOLDER BATCH``.

Every tool gets the same timm model, or the ONNX file exported from it; the benchmark times the whole process.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

from resnet import create_resnet50

IMAGE = (3, 224, 224)
MIB = 2**20

Figures = dict[str, float]


def ask_dippm_onnx(folder: Path, batch: int) -> Figures:
    """Ask dippm about the ONNX file."""
    return _ask_dippm(str(folder / "resnet50.onnx"), batch)


def ask_dippm_timm(_folder: Path, batch: int) -> Figures:
    """Ask dippm about timm's module, under fake tensors."""
    return _ask_dippm("timm:resnet50", batch)


def _ask_dippm(model: str, batch: int) -> Figures:
    import dippm

    out = dippm.inspect(model, batch=batch, device="A100")
    return {
        "macs": out.prediction.macs,
        "parameters": out.prediction.model.parameters,
        "peak_mb": max(operator.live_mb for operator in out.operators),
        "latency_ms": out.prediction.latency_ms,
    }


def import_only(_folder: Path, _batch: int) -> Figures:
    """The model alone, for scale: what of the PyTorch tools' time is PyTorch's and timm's."""
    model = create_resnet50()
    return {"parameters": sum(weight.numel() for weight in model.parameters())}


def ask_torchinfo(_folder: Path, batch: int) -> Figures:
    """torchinfo.summary, which runs the model on the CPU."""
    import torchinfo

    summary = torchinfo.summary(create_resnet50(), input_size=(batch, *IMAGE), verbose=0)
    return {"macs": summary.total_mult_adds, "parameters": summary.total_params}


def ask_onnx_tool(folder: Path, batch: int) -> Figures:
    """onnx_tool: shape inference and profile of the ONNX file."""
    import numpy as np
    import onnx_tool

    model = onnx_tool.Model(str(folder / "resnet50.onnx"))
    model.graph.shape_infer({"input": np.zeros((batch, *IMAGE), dtype=np.float32)})
    model.graph.profile()
    return {"macs": float(model.graph.macs[0]), "parameters": float(model.graph.params)}


def ask_flop_counter(_folder: Path, batch: int) -> Figures:
    """FlopCounterMode over the model on fake tensors; two FLOPs are one MAC."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode():
        model = create_resnet50()
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(torch.empty(batch, *IMAGE))
        parameters = sum(weight.numel() for weight in model.parameters())
    return {"macs": counter.get_total_flops() / 2, "parameters": parameters}


def ask_mem_tracker(_folder: Path, batch: int) -> Figures:
    """MemTracker over the model on fake tensors: peak of live tensors."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = create_resnet50()
        image = torch.empty(batch, *IMAGE)
        tracker = MemTracker()
        tracker.track_external(model, image)
        with tracker, torch.no_grad():
            model(image)
        peak = tracker.get_tracker_snapshot("peak")
    return {
        "peak_mb": sum(kinds["Total"] for kinds in peak.values()) / MIB,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }


TOOLS: dict[str, Callable[[Path, int], Figures]] = {
    "dippm, ONNX file": ask_dippm_onnx,
    "dippm, timm:resnet50": ask_dippm_timm,
    "onnx-tool": ask_onnx_tool,
    "torchinfo": ask_torchinfo,
    "FlopCounterMode": ask_flop_counter,
    "MemTracker": ask_mem_tracker,
    "(building the model alone)": import_only,
}


def main() -> None:
    """Print the figures of the tool that the command line names."""
    name, folder, batch = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with contextlib.redirect_stdout(io.StringIO()):
        figures = TOOLS[name](folder, batch)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
