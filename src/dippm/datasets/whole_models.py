"""Importer of published latencies of whole models in inference, in PyTorch, on A100 and other cards.

Two tables: the transformers documentation (Apache-2.0; PyTorch 2.0.1 defaults, mean of 300 calls) and NeuSight (MIT;
pure FP32, eager attention, mean of the 5 smallest of 25). They are for evaluation alone: no predictor is chosen or
fitted on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dippm.datasets.tables import read_records

__all__ = ["WholeModelRow", "read_whole_models"]

_VISION_MODELS = {
    "google/vit-base-patch16-224": "vit",
    "microsoft/resnet-50": "resnet50",
    "google/deeplabv3_mobilenet_v2_1.0_513": "deeplab",
}
_DEVICES = {
    "A100": "A100-SXM4-40GB",
    "V100": "Tesla V100-SXM2-16GB",
    "T4": "Tesla T4",
    "NVIDIA_A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA_L4": "L4",
    "Tesla_P100-PCIE-16GB": "Tesla P100-PCIE-16GB",
    "Tesla_P4": "Tesla P4",
    "Tesla_T4": "Tesla T4",
    "Tesla_V100-PCIE-32GB": "Tesla V100-PCIE-32GB",
}
_RUNTIMES = {"eager": "eager", "torch.compile (default mode)": "compile", "torch.compile": "compile"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeModelRow:
    """One measured configuration.

    Args:
        source: ``"transformers documentation"`` or ``"NeuSight"``.
        model: ``"vit"``, ``"resnet50"``, ``"deeplab"``, ``"bert_large"`` or ``"gpt2_large"``.
        device: Canonical device name; the documentation does not say which A100 or V100, the usual one is taken.
        batch: Samples per call.
        sequence: Tokens per sample, 0 for images.
        precision: ``"fp32"`` or ``"fp32-strict"``.
        latency_ms: Mean time of one call, ms.
        runtime: ``"eager"`` or ``"compile"``.
    """

    source: str
    model: str
    device: str
    batch: int
    sequence: int
    precision: str
    latency_ms: float
    runtime: str = "eager"


def read_whole_models(folder: Path) -> list[WholeModelRow]:
    """Read the inference rows of both tables.

    Args:
        folder: The folder ``whole_models`` of the measured tables.

    Raises:
        UsageError: ``data.missing`` where a table is not there.
    """
    vision = [
        WholeModelRow(
            source="transformers documentation",
            model=_VISION_MODELS[record["model"]],
            device=_DEVICES[record["gpu"]],
            batch=int(float(record["batch"])),
            sequence=0,
            precision="fp32",
            latency_ms=float(record["latency_ms"]),
            runtime=_RUNTIMES[record["execution"]],
        )
        for record in read_records(folder / "hf_vision_inference.csv")
        if record["model"] in _VISION_MODELS
    ]
    text = [
        WholeModelRow(
            source="NeuSight",
            model=record["model"],
            device=_DEVICES[record["device"]],
            batch=int(float(record["batch"])),
            sequence=int(float(record["seq"])),
            precision="fp32-strict",
            latency_ms=float(record["measured_latency_ms"]),
            runtime=_RUNTIMES[record["execution"]],
        )
        for record in read_records(folder / "neusight_transformers_inference.csv")
        if record["mode"] == "inf"
    ]
    return vision + text
