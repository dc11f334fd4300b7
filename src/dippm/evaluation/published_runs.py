"""Published measurements as questions that a predictor can answer: model, device and conditions of each row.

Where a source leaves something open, what is usual is taken and said here or in ``data/published/README.md``. Rows that
no question describes are left out, with the reason. Models are divided in two: those of ``FITTED_MODELS`` may be fitted
on, the others are only ever tested on, whatever table they stand in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dippm.costs.conditions import Conditions, LowRankAdapters, Mode
from dippm.costs.precision import whole_model_type
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_software
from dippm.datasets.published import (
    PublishedRow,
    read_configurations,
    read_deep_learning_examples,
    read_held_out_configurations,
    read_held_out_power,
    read_mig_slices,
    read_published,
    read_published_power,
)
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.named_checkpoints import find_named
from dippm.frontends.quantised_weights import find_weight_format, quantise_layers
from dippm.graph import DType, Graph

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "FITTED_MODELS",
    "PUBLISHED_FOLDER",
    "PublishedRun",
    "read_example_runs",
    "read_held_out_power_runs",
    "read_mig_slice_runs",
    "read_power_runs",
    "read_published_runs",
]

#: Where the tables lie in the project's repository.
PUBLISHED_FOLDER = Path("data") / "published"

#: Parts of the names of the models that may be fitted on: one of each kind of architecture.
FITTED_MODELS = (
    "Llama-2-7b", "bert-base", "bge-base", "gpt2", "distilbert",
    "torchvision:resnet50", "torchvision:squeezenet1_0", "torchvision:mnasnet1_0",
)  # fmt: skip

_LAPTOP = "rtx3080ti-16GB"
# The canonical name of each device; of a bare name the usual variant.
_DEVICES = {
    "A100": "A100-SXM4-40GB",
    "A100 40GB PCIe": "A100-PCIE-40GB",
    "A100 40GB SXM4": "A100-SXM4-40GB",
    "A100 80GB PCIe": "A100 80GB PCIe",
    "A100 80GB SXM4": "A100-SXM4-80GB",
    "A100-PCIe-80GB": "A100 80GB PCIe",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-SXM4-80GB",
    # No desktop card of that name has 8 GB.
    "GeForce RTX 2060-8GB": "GeForce RTX 2060 SUPER",
    "H100 80GB PCIe Gen5": "H100 PCIe",
    "L40S-45GB": "L40S",
    "NVIDIA A10G": "A10G",
    "Quadro RTX 8000": "Quadro RTX 6000",  # the same but for its memory
    "RTX 4000 Ada": "RTX 4000 Ada Generation",
    "RTX 6000 Ada": "RTX 6000 Ada Generation",
    "RTX PRO 6000 Max-Q": "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "Tesla T4-15GB": "Tesla T4",
    "V100": "Tesla V100-SXM2-16GB",
    "V100 16GB": "Tesla V100-SXM2-16GB",
    "V100 32GB": "Tesla V100-SXM2-32GB",
    "V100-SXM2-16GB": "Tesla V100-SXM2-16GB",
    # Only the laptop's has 16 GB.
    _LAPTOP: "GeForce RTX 3080 Ti Laptop GPU",
}
# Beginnings of the names of sources that are no single call of one model on one stated device, or in doubt.
_LEFT_OUT = {
    "transformers-docs-vit-a100": "the figures contradict the stated number format",
    "transformers-docs-vivit": "the figures contradict the stated number format",
    "transformers-docs-octocoder": "the number of tokens is not stated",
    "transformers-docs-beit": "the step is not known",
    "transformers-docs-data2vec": "the step is not known",
    "transformers-docs-clip": "the number of tokens is not stated",
    "transformers-docs-bert-large-trainer-checkpointing": "part of a step is checkpointed and accumulated",
    "transformers-docs-benchmarks-page": "queued calls were not waited for",
    "torchvision-bs12-2020": "the copy of the images from the host is inside",
    "u39kun-dlbench": "releases of PyTorch before 1.2 are not known",
    "litgpt": "a model's own code, not transformers'",
    "gpt-fast": "a model's own code, not transformers'",
    "segment-anything-fast": "a loop over the objects of each image is inside",
    "diffusers-benchmarks-l40": "which card it was is in doubt",
    "ort-stable-diffusion": "a pipeline of many models",
    "torchtune": "the configuration is not stated",
    "migperf-80gb-bert-long": "texts are shorter than the stated tokens",
    "openmodellab": "the number of tokens is not stated",
    "dle-jasper-training": "how long the samples of a batch are is not stated",
}
# Beginnings of the names of sources that train adapters, and what they train: PEFT's default layers of a Llama.
_ADAPTERS = {
    "optimum-llama-lora": LowRankAdapters(rank=8, targets=("q_proj", "v_proj")),
    "optimum-llama-qlora": LowRankAdapters(rank=8, targets=("q_proj", "v_proj")),
}
_QUANTISED = {
    "optimum-llama-qlora": "nf4",
    "optimum-llama-gptq": "int4",
    "bitsandbytes-nf4": "nf4",
    "bitsandbytes-nested-nf4": "nf4-double",
    "bitsandbytes-int8": "int8",
}
_WITHOUT_TF32 = "optimum-bge"
# Its rate leaves no format but one of 16 bits.
_FORMAT_NOT_STATED = "mlenergy-diffusion"
# Images have their channels last where the notes say so.
_CHANNELS_LAST = "channels_last"
_UNET_CLASS = "UNet2DConditionModel"
# PyTorch in NVIDIA's containers, by its support matrix.
_RELEASE_OF_CONTAINER = {
    "20.01": "torch 1.4",
    "20.06": "torch 1.6+cu110",
    "20.10": "torch 1.7",
    "20.12": "torch 1.8",
    "21.02": "torch 1.8",
    "21.04": "torch 1.9+cu113",
    "21.07": "torch 1.10+cu114",
    "22.09": "torch 1.13+cu118",
    "22.10": "torch 1.13+cu118",
    "22.11": "torch 1.14+cu118",
}
_TOKENS = "input_ids"
# Pages whose scripts take the sum of the scores for a loss, where no optimizer is named.
_SUMMED_SCORES = ("transformers-docs", "transformers-pr")
_POSITIONS_OF_PYTHIA = 2048
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRun:
    """A published measurement and the question whose answer it is.

    Args:
        row: The measurement.
        device: The device.
        conditions: Precision, mode, optimizer, adapters.
        software: The release of PyTorch, today's where none is stated or none so old is known.
        is_fitted: Whether its model may be fitted on.
        has_comparable_memory: Whether today's model holds its memory as the measured one did.
        has_known_clocks: Whether clocks and power of the card are those of its data sheet; a laptop sets its own. Such
            rows are scored and not fitted on.
    """

    row: PublishedRow
    device: DeviceSpec
    conditions: Conditions
    software: Software
    is_fitted: bool
    has_comparable_memory: bool
    has_known_clocks: bool

    @property
    def is_quantised(self) -> bool:
        """Whether its weights are stored in few bits."""
        return _of_source(_QUANTISED, self.row) is not None

    @property
    def machine(self) -> str:
        """What shares a host: the source and the device."""
        return f"{self.row.source} on {self.device.name}"

    @property
    def graph_key(self) -> tuple[object, ...]:
        """Equal for runs of one graph."""
        row = self.row
        return (
            row.model, row.model_class, row.attention, row.mode, row.optimizer, row.sequence, row.image,
            row.past_tokens, whole_model_type(self.conditions.precision), _of_source(_QUANTISED, row),
        )  # fmt: skip

    def build_graph(self, configurations: Mapping[str, Mapping[str, Any]]) -> Graph:
        """Build the model without memory for its weights, and read its graph.

        Args:
            configurations: Of each model of transformers what is not its class's default.

        Raises:
            DippmError: Whatever keeps it from being built or read.
        """
        from dippm.frontends import zoo
        from dippm.frontends.torch import read_module

        row, options = self.row, {}
        if self._built_name.startswith("hf:"):
            options = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in configurations.get(row.model, {}).items()
            }
            if row.attention:
                options["attn_implementation"] = row.attention
        module, inputs = zoo.build(self._built_name, options=options, precision=self.conditions.precision)
        # A step of diffusion takes what the library's own pipeline gives it.
        if not self._step and row.model_class != _UNET_CLASS:
            inputs = self._inputs
        if self.conditions.mode is Mode.TRAINING and row.optimizer == "none" and row.source.startswith(_SUMMED_SCORES):
            module = _with_summed_scores(module)
        graph = read_module(module, input=inputs, source=row.model, mode=self.conditions.mode)
        stored = _of_source(_QUANTISED, row)
        layers = None if stored is None else find_weight_format(stored)
        return graph if layers is None else quantise_layers(graph, layers)

    @property
    def _built_name(self) -> str:
        row = self.row
        if row.model_class == _UNET_CLASS:
            return f"diffusers:{_unet_of(row)}#image={row.image[0] if row.image else ''}"
        return row.model if ":" in row.model else f"hf:{row.model_class}{self._step}"

    @property
    def _step(self) -> str:
        """The step of a decoder, as it is appended to a name; empty for a whole model, with or without its cache."""
        if self.row.mode == "decode":
            return f"#decode={self.row.past_tokens}"
        is_whole_decoder = self.row.mode == "prefill" and self.row.model_class.endswith("CausalLM")
        return f"#prefill={self.row.sequence}" if is_whole_decoder else ""

    @property
    def _inputs(self) -> InputShapes:
        if self.row.image is not None:
            return InputShapes(positional=(InputEntry(shape=(3, *self.row.image)),))
        return InputShapes(named={_TOKENS: InputEntry(shape=(self.row.sequence or 1,), dtype=DType.INT64)})


def read_published_runs(folder: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """All rows that a question describes, and how many were left out for which reason.

    Args:
        folder: ``data/published`` of the repository.

    Raises:
        UsageError: ``data.missing``.
    """
    return _divide(read_published(folder), known=read_configurations(folder))


def read_power_runs(folder: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """The rows that state energy, as :func:`read_published_runs`.

    Models of ``power.csv`` have the configuration that is their class's default.

    Raises:
        UsageError: ``data.missing``.
    """
    rows = read_published_power(folder)
    return _divide(rows, known={*read_configurations(folder), *(row.model for row in rows if not row.image)})


def read_held_out_power_runs(folder: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """The rows that state energy and that nothing is fitted on, as :func:`read_published_runs`.

    Raises:
        UsageError: ``data.missing``.
    """
    return _divide(read_held_out_power(folder), known=read_held_out_configurations(folder))


def read_mig_slice_runs(folder: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """The rows of MIG slices, that nothing is fitted on, as :func:`read_published_runs`.

    Raises:
        UsageError: ``data.missing``.
    """
    return _divide(read_mig_slices(folder), known=read_configurations(folder))


def read_example_runs(folder: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """The rows of networks that no library builds, that nothing is fitted on, as :func:`read_published_runs`.

    Raises:
        UsageError: ``data.missing``.
    """
    return _divide(read_deep_learning_examples(folder), known=())


def _divide(rows: Iterable[PublishedRow], *, known: Collection[str]) -> tuple[list[PublishedRun], Counter[str]]:
    runs, left_out = [], Counter[str]()
    for row in rows:
        reason = _reason_to_leave_out(row, known)
        if reason:
            left_out[reason] += 1
        else:
            runs.append(_run(row))
    return runs, left_out


def _reason_to_leave_out(row: PublishedRow, known: Collection[str]) -> str:
    for beginning, reason in _LEFT_OUT.items():
        if row.source.startswith(beginning):
            return reason
    if row.latency_ms is None:
        return "no time is stated, or it ran out of memory"
    if row.attention == "flash2":
        return "another library's attention"
    if (row.source, row.mode) == ("transformers-docs-bert", "inference"):
        return "a loop of several calls"
    if (row.source, row.mode) == ("transformers-pr-electra", "inference"):
        return "rounded to 8 %"
    if row.source.startswith("lambda-ngc2020") and row.model == "torchvision:resnet50":
        return "may be bound by the loading of images"
    if row.model_class == _UNET_CLASS:
        is_known = find_named("diffusers", _unet_of(row)) is not None and row.image is not None
    else:
        is_known = ":" in row.model or (row.model in known and bool(row.model_class))
    if not is_known:
        return "what was built is not stated in full"
    if row.model.startswith("EleutherAI") and (row.past_tokens or 0) >= _POSITIONS_OF_PYTHIA:
        return "more tokens than the model has positions"
    if row.model.startswith("microsoft/beit") and row.batch > 1:
        return "today's class holds for one batch alone"
    try:
        find_device(_DEVICES.get(row.device, row.device))
    except UnsupportedError:
        return f"the catalogue has no {row.device}"
    return ""


def _unet_of(row: PublishedRow) -> str:
    """The network of a pipeline that takes the noise out, whoever has published the checkpoint."""
    return f"{row.model.rpartition('/')[2]}/unet"


def _is_compiled(row: PublishedRow) -> bool:
    return "compile" in row.software or row.source.endswith("-compiled")


def _run(row: PublishedRow) -> PublishedRun:
    device = find_device(_DEVICES.get(row.device, row.device))
    is_training = row.mode == Mode.TRAINING.value
    precision = "fp32-strict" if row.source.startswith(_WITHOUT_TF32) else row.precision
    conditions = Conditions.parse(
        precision="fp16" if row.source == _FORMAT_NOT_STATED else precision,
        layout="nhwc" if _CHANNELS_LAST in row.notes else "nchw",
        mode="training" if is_training else "inference",
        runtime="compile" if _is_compiled(row) else "eager",
        optimizer=(row.optimizer or "none") if is_training else None,
    )
    conditions = replace(conditions, adapters=_of_source(_ADAPTERS, row))
    return PublishedRun(
        row=row,
        device=device,
        conditions=conditions,
        software=_software(row, device, conditions),
        is_fitted=any(name in row.model for name in FITTED_MODELS),
        # The library of that time copied the cache of all layers before it gave the old one back.
        has_comparable_memory=row.mode != "decode",
        has_known_clocks=row.device != _LAPTOP,
    )


def _of_source(values: Mapping[str, _Value], row: PublishedRow) -> _Value | None:
    """What holds for the source of a row; None where nothing does."""
    return next((value for beginning, value in values.items() if row.source.startswith(beginning)), None)


def _software(row: PublishedRow, device: DeviceSpec, conditions: Conditions) -> Software:
    stated = re.search(r"\btorch [1-9]\d*\.\d+", row.software)
    container = re.search(r"\b(2\d\.\d\d)\b", row.software)
    release = stated.group() if stated else _RELEASE_OF_CONTAINER.get(container.group(1), "") if container else ""
    if release:
        software = Software.parse(release)
        with suppress(UnsupportedError, UsageError):
            check_software(software, device, conditions.runtime)
            return software
    return DEFAULT_SOFTWARE


def _with_summed_scores(module: nn.Module) -> nn.Module:
    """The module with the stand-in for a loss of the scripts behind these tables: the sum of its scores.

    They hold the scores until the step's end, and the gradient of a sum is written out before it is multiplied. The
    rectifier makes the graph do both: it keeps what it was given and writes a gradient of that size.
    """
    from torch import Tensor, nn

    class SummedScores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, input_ids: Tensor) -> Tensor:
            scores: Tensor = self.model(input_ids=input_ids)[0]
            return scores.relu().sum()

    return SummedScores()
