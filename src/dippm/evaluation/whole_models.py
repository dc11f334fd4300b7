"""Predictor 0 on whole models that nothing was fitted on: latency against published measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dippm.costs.conditions import Conditions
from dippm.costs.precision import Precision
from dippm.datasets.location import data_folder
from dippm.datasets.whole_models import WholeModelRow, read_whole_models
from dippm.devices import find_device
from dippm.errors import MissingExtraError
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.torch import read_module
from dippm.graph import Graph
from dippm.predictors.physics import PhysicsPredictor

if TYPE_CHECKING:
    from torch import nn

__all__ = ["WholeModelReport", "WholeModelScore", "evaluate_whole_models", "render_markdown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeModelScore:
    """One configuration, measured and predicted.

    Args:
        source: Who measured it.
        model: Name of the model.
        device: Canonical device name.
        batch: Samples per call.
        measured_ms: Published latency, ms.
        predicted_ms: Predicted latency, ms.
        low_ms: Lower end of the interval, ms.
        high_ms: Upper end of the interval, ms.
    """

    source: str
    model: str
    device: str
    batch: int
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float

    @property
    def error_percent(self) -> float:
        """Signed relative error, %."""
        return 100.0 * (self.predicted_ms / self.measured_ms - 1.0)

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low_ms <= self.measured_ms <= self.high_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeModelReport:
    """All configurations of the tables."""

    scores: tuple[WholeModelScore, ...]

    def mape_percent(self, *, source: str | None = None, device: str | None = None) -> float:
        """Mean absolute percentage error, of one source or device if named."""
        errors = [
            abs(score.error_percent)
            for score in self.scores
            if source in (None, score.source) and device in (None, score.device)
        ]
        return float(np.mean(errors))

    @property
    def coverage_percent(self) -> float:
        """Part of the measurements that their interval holds, %."""
        return 100.0 * float(np.mean([score.is_covered for score in self.scores]))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return {
            "mape_percent": round(self.mape_percent(), 2),
            "coverage_percent": round(self.coverage_percent, 1),
            "scores": [asdict(score) for score in self.scores],
        }


def evaluate_whole_models(data: Path | None = None) -> WholeModelReport:
    """Predict every configuration of the tables.

    Args:
        data: Folder of the measured tables, by default :func:`dippm.datasets.location.data_folder`.

    Raises:
        UsageError: The tables are not there.
        MissingExtraError: PyTorch or transformers is not installed.
    """
    folder = data_folder() if data is None else data
    graphs: dict[tuple[str, int], Graph] = {}
    predictor = PhysicsPredictor.load()
    scores = []
    for row in read_whole_models(folder / "whole_models"):
        key = (row.model, row.sequence)
        if key not in graphs:
            graphs[key] = _read(row)
        (prediction,) = predictor.predict(
            graphs[key],
            batches=[row.batch],
            devices=[find_device(row.device)],
            conditions=Conditions(precision=Precision(row.precision)),
        )
        low, high = prediction.intervals["latency_ms"]
        scores.append(
            WholeModelScore(
                source=row.source,
                model=row.model,
                device=row.device,
                batch=row.batch,
                measured_ms=row.latency_ms,
                predicted_ms=prediction.latency_ms,
                low_ms=low,
                high_ms=high,
            )
        )
    return WholeModelReport(scores=tuple(scores))


def render_markdown(report: WholeModelReport) -> str:
    """The report as a page."""
    sources = list(dict.fromkeys(score.source for score in report.scores))
    lines = [
        "# Whole models that nothing was fitted on",
        "",
        "Latency in inference, eager PyTorch, FP32. No rate, network or interval was chosen on these rows. "
        "Made by `dippm evaluate --protocol whole-models`.",
        "",
        f"Mean absolute error {report.mape_percent():.1f} % over {len(report.scores)} configurations; "
        f"{report.coverage_percent:.0f} % lie in their 90 % interval. "
        + ", ".join(f"{source}: {report.mape_percent(source=source):.1f} %" for source in sources)
        + ".",
        "",
        "| source | model | device | batch | measured, ms | predicted, ms | error, % | in interval |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {s.source} | {s.model} | {s.device} | {s.batch} | {s.measured_ms:.4g} | {s.predicted_ms:.4g} | "
        f"{s.error_percent:+.1f} | {'yes' if s.is_covered else 'no'} |"
        for s in report.scores
    ]
    return "\n".join(lines) + "\n"


def _read(row: WholeModelRow) -> Graph:
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtraError(package=package, extra="zoo", purpose="build the models")
    import torch

    if find_spec("torchvision") is not None:
        from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

        import_torchvision_ops()
    transformers: Any = import_module("transformers")
    builders: dict[str, Callable[[], nn.Module]] = {
        "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)),
        "resnet50": lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)),
        "deeplab": lambda: transformers.MobileNetV2ForSemanticSegmentation(
            transformers.MobileNetV2Config(output_stride=8, image_size=513, num_labels=21)
        ),
        "bert_large": lambda: transformers.BertModel(
            transformers.BertConfig(
                hidden_size=1024,
                num_hidden_layers=24,
                num_attention_heads=16,
                intermediate_size=4096,
                attn_implementation="eager",
            )
        ),
        "gpt2_large": lambda: transformers.GPT2Model(
            transformers.GPT2Config(n_embd=1280, n_layer=36, n_head=20, attn_implementation="eager")
        ),
    }
    with torch.device("meta"):
        module = builders[row.model]()
    size = 513 if row.model == "deeplab" else 224
    given = {"input_ids": ((row.sequence,), "int64")} if row.sequence else (3, size, size)
    return read_module(module, input=parse_input_shapes(given), source=row.model)
