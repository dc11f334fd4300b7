"""Importer of the timm project's published benchmark tables: whole image models on RTX 3090 and RTX 4090.

Source: huggingface/pytorch-image-models, folder ``results`` (Apache-2.0). How they were taken: random input already
on the device, 10 warm-ups, 40 timed and synchronised steps, ``cudnn.benchmark`` on; inference under
``torch.inference_mode`` with fp16 autocast; the mean of the step time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dippm.errors import UsageError

__all__ = ["TimmRow", "read_timm_tables"]

_FILE_NAME = re.compile(
    r"benchmark-(?P<mode>infer|train)-(?P<precision>amp|fp32)-(?P<layout>nchw|nhwc)-pt(?P<torch>\d+)-"
    r"(?:cu(?P<cuda>\d+)-)?(?P<device>[a-z0-9]+(?:-i\d_\w+)?)(?P<compiled>-dynamo)?\.csv"
)
_DEVICES = {"rtx3090": "GeForce RTX 3090", "rtx4090": "GeForce RTX 4090"}
_REQUIRED = ("img_size", "batch_size", "step_time")
_MODES = {"infer": "inference", "train": "training"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimmRow:
    """One measured model.

    Args:
        model: timm's name of the model.
        image_size: Height and width of the square input, pixels.
        batch: Images per step.
        step_time_ms: Mean time of one step, ms.
        mode: ``"inference"`` or ``"training"``.
        precision: ``"amp"`` or ``"fp32"``.
        layout: ``"nchw"`` or ``"nhwc"``.
        runtime: ``"eager"`` or ``"compile"``.
        device: Canonical device name, as in the catalogue.
        torch_version: Release digits as published, such as ``"240"`` for 2.4.0.
        cuda_version: Digits of the CUDA release as published, such as ``"124"`` for 12.4.
        parameters_m: Weights of the model that was measured, millions; 0 where the table does not say.
    """

    model: str
    image_size: int
    batch: int
    step_time_ms: float
    mode: str
    precision: str
    layout: str
    runtime: str
    device: str
    torch_version: str
    cuda_version: str = ""
    parameters_m: float = 0.0


def read_timm_tables(folder: Path) -> list[TimmRow]:
    """Read every GPU table of a folder; CPU tables are left out, and so are rows whose run failed (no figures).

    Args:
        folder: The folder ``timm`` of the measured tables.

    Raises:
        UsageError: ``data.missing`` where the folder holds no such table.
    """
    rows = [row for path in sorted(folder.glob("benchmark-*.csv")) for row in _read_table(path)]
    if not rows:
        raise UsageError(f"There are no timm benchmark tables in '{folder}'.", code="data.missing")
    return rows


def _read_table(path: Path) -> Iterator[TimmRow]:
    found = _FILE_NAME.fullmatch(path.name)
    if found is None or found["device"] not in _DEVICES:
        return
    prefix = found["mode"]
    with path.open(newline="", encoding="utf-8") as stream:
        for record in csv.DictReader(stream):
            if not all(record[f"{prefix}_{column}"] for column in _REQUIRED):
                continue
            yield TimmRow(
                model=record["model"],
                image_size=int(float(record[f"{prefix}_img_size"])),
                batch=int(float(record[f"{prefix}_batch_size"])),
                step_time_ms=float(record[f"{prefix}_step_time"]),
                mode=_MODES[prefix],
                precision=found["precision"],
                layout=found["layout"],
                runtime="compile" if found["compiled"] else "eager",
                device=_DEVICES[found["device"]],
                torch_version=found["torch"],
                cuda_version=found["cuda"] or "",
                parameters_m=float(record.get("param_count") or 0.0),
            )
