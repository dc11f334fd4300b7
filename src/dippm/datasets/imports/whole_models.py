"""Labels from published latencies of whole models: transformers' documentation, NeuSight, NVIDIA's examples.

They are for evaluation: no predictor is fitted on them. Of NVIDIA's tables only what is PyTorch, and a model and an
optimizer that dippm can name, makes a label: EfficientNet-B0 in inference, ResNet-50 in training. Its figures are
batch over throughput, data loading inside, which the tables' notes prefer to their mean latencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.tables import read_records
from dippm.datasets.whole_models import WholeModelRow, read_whole_models
from dippm.devices import find_device
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack

__all__ = ["import_whole_models"]

_Arguments = Mapping[str, int | str]
# Model of a row to family, the transformers class that was measured, and what of its configuration is not the default.
# Attention was not fused: transformers' ViT, measured in 2023, has it since 2024, and NeuSight asked for none.
_MODELS: Mapping[str, tuple[str, str, _Arguments]] = {
    "vit": ("vit", "zoo:hf:ViTForImageClassification", {"num_labels": 1000, "attn_implementation": "eager"}),
    "resnet50": ("resnet", "zoo:hf:ResNetForImageClassification", {"num_labels": 1000}),
    "deeplab": (
        "mobilenet",
        "zoo:hf:MobileNetV2ForSemanticSegmentation",
        {"output_stride": 8, "image_size": 513, "num_labels": 21},
    ),
    "bert_large": (
        "bert",
        "zoo:hf:BertModel",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "attn_implementation": "eager",
        },
    ),
    "gpt2_large": (
        "gpt2",
        "zoo:hf:GPT2Model",
        {"n_embd": 1280, "n_layer": 36, "n_head": 20, "attn_implementation": "eager"},
    ),
}
_IMAGE_SIZES = {"deeplab": 513}
_SOURCES = {"transformers documentation": "huggingface", "NeuSight": "neusight"}
_FRAMEWORKS = {"huggingface": "torch 2.0.1", "neusight": "torch"}  # NeuSight states no version for this table
_TIMED_RUNS = {"huggingface": 300, "neusight": 25}

_NVIDIA_MODELS = {
    "ResNet50 v1.5": ("resnet", "zoo:torchvision:resnet50"),
    "efficientnet-b0": ("efficientnet", "zoo:torchvision:efficientnet_b0"),
}
_NVIDIA_PRECISIONS = {"tf32": "tf32", "mixed": "amp"}
# Trained with an optimizer that dippm does not know (RMSprop).
_NVIDIA_UNKNOWN_OPTIMIZERS = ("efficientnet-b0",)


def import_whole_models(folder: Path) -> Iterator[Label]:
    """Labels of all tables of whole models, compiled runs too.

    Args:
        folder: The folder ``whole_models`` of the measured tables.

    Raises:
        UsageError: ``data.missing`` where a table is not there.
    """
    for row in read_whole_models(folder):
        yield _label(row)
    yield from _nvidia_labels(folder / "nvidia_a100_inference.csv", Mode.INFERENCE)
    yield from _nvidia_labels(folder / "nvidia_a100_training.csv", Mode.TRAINING)


def _label(row: WholeModelRow) -> Label:
    source = _SOURCES[row.source]
    family, architecture, arguments = _MODELS[row.model]
    if row.sequence:
        inputs = InputShapes(named={"input_ids": InputEntry(shape=(row.sequence,), dtype=DType.INT64)})
    else:
        inputs = _image(_IMAGE_SIZES.get(row.model, 224))
    return Label(
        recipe=Recipe(
            collection="whole-models",
            family=family,
            architecture=architecture,
            arguments=arguments,
            inputs=inputs,
            batch=row.batch,
        ),
        configuration=Configuration(
            batch=row.batch, conditions=Conditions.parse(precision=row.precision, runtime=row.runtime)
        ),
        measurement=Measurement(
            outcome=Outcome.OK,
            device=find_device(row.device).name,
            measured_at="",  # not published
            timed_runs=_TIMED_RUNS[source],
            latency_ms=row.latency_ms,
            software=SoftwareStack(framework=_FRAMEWORKS[source]),
        ),
        source=source,
    )


def _nvidia_labels(path: Path, mode: Mode) -> Iterator[Label]:
    is_training = mode is Mode.TRAINING
    for record in read_records(path):
        model, precision = record["model"], record["precision"]
        is_known = record["framework"] == "pytorch" and model in _NVIDIA_MODELS and precision in _NVIDIA_PRECISIONS
        if not is_known or (is_training and model in _NVIDIA_UNKNOWN_OPTIMIZERS):
            continue
        family, architecture = _NVIDIA_MODELS[model]
        batch = int(float(record["batch"]))
        conditions = Conditions.parse(
            precision=_NVIDIA_PRECISIONS[precision],
            mode=mode,
            layout="nhwc" if "channels_last" in record["notes"] and precision == "mixed" else "nchw",
            optimizer=Optimizer.MOMENTUM if is_training else None,
        )
        yield Label(
            recipe=Recipe(
                collection="whole-models",
                family=family,
                architecture=architecture,
                inputs=_image(224),
                batch=batch,
            ),
            configuration=Configuration(batch=batch, conditions=conditions),
            measurement=Measurement(
                outcome=Outcome.OK,
                device=find_device(record["gpu"]).name,
                measured_at="",
                latency_ms=float(record["step_time_ms" if is_training else "batch_over_throughput_ms"]),
                software=SoftwareStack(framework=f"torch of {record['container']}"),
            ),
            source="nvidia",
        )


def _image(size: int) -> InputShapes:
    return InputShapes(positional=(InputEntry(shape=(3, size, size)),))
