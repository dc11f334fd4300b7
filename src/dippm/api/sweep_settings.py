"""What every model of a sweep is asked, checked once before any of them is read."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from dippm.api.arguments import (
    Batches,
    Devices,
    as_list,
    parse_batches,
    parse_conditions,
    parse_devices,
    parse_mig_policy,
    parse_software,
)
from dippm.api.deciding_versions import hash_folder
from dippm.api.loading import precision_to_read
from dippm.api.prediction import predict
from dippm.api.question import Question
from dippm.costs.conditions import Conditions
from dippm.costs.software import Software
from dippm.devices import DeviceSpec
from dippm.frontends.detect import parse_framework
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.quantised_weights import find_weight_format
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec
from dippm.predictors.adapted import is_adapted

__all__ = ["SweepSettings"]

_DEVICE = "A100"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSettings:
    """One question for many models. It travels to other processes and machines.

    Args:
        batches: Batch sizes, each once.
        devices: Devices, each once; a name that the catalogue need not know where a trained predictor answers, None for
            the one that it knows.
        conditions: What the figures hold for.
        software: The same, where it was asked for.
        options: The words that :func:`dippm.predict` takes beside model, batches and devices.
        reading: The words that :func:`dippm.load` takes beside the model.
        folder: Where relative paths begin.
    """

    batches: tuple[int, ...]
    devices: tuple[DeviceSpec | str | None, ...]
    conditions: Conditions
    software: Software | None
    options: dict[str, Any]
    reading: dict[str, Any]
    folder: str

    @classmethod
    def of(
        cls,
        question: Question,
        *,
        batch: Batches,
        device: Devices | None,
        mig_policy: str = "safe",
        predictor: str | PathLike[str] | None = None,
    ) -> SweepSettings:
        """Check what a caller wrote; arguments as those of :func:`dippm.predict`.

        Raises:
            DippmError: What :func:`dippm.predict` would raise, whatever the model.
        """
        batches = tuple(dict.fromkeys(parse_batches(batch)))
        parse_input_shapes(question.input)
        parse_mig_policy(mig_policy)
        if question.weights is not None:
            find_weight_format(question.weights)
        software = None if question.software is None else parse_software(question.software)
        if question.framework is not None:
            parse_framework(question.framework)
        given = question.named_conditions
        options: dict[str, Any] = {
            **given,
            **question.training_conditions,
            "software": question.software,
            "mig_policy": mig_policy,
            "predictor": None if predictor is None else os.path.abspath(fspath(predictor)),
        }
        devices: tuple[DeviceSpec | str | None, ...]
        if predictor is None:
            devices = tuple(_once(parse_devices(_DEVICE if device is None else device)))
            conditions = parse_conditions(**question.training_conditions, **given)
        else:
            # What it holds for only the predictor knows, and says so when it is asked.
            devices = (None,) if device is None else tuple(_once(as_list(device)))
            asked: Any = None if device is None else list(devices)
            (answer,) = predict(_smallest_graph(), batch=batches[:1], device=asked, **options)
            conditions = answer.conditions
        is_trained = predictor is not None and not is_adapted(predictor)
        return cls(
            batches=batches,
            devices=devices,
            conditions=conditions,
            software=software,
            options=options,
            reading={
                "input": question.input,
                "framework": question.framework,
                "trust": question.trust,
                "mode": "inference" if is_trained else conditions.mode.value,
                "precision": precision_to_read(
                    question.precision if predictor is None else conditions.precision.value, question.lora
                ),
                "weights": question.weights,
            },
            folder=os.getcwd(),
        )

    def describe(self) -> dict[str, object]:
        """Everything that the rows follow from, as JSON values; the same words for the same question."""
        predictor = self.options["predictor"]
        return {
            "batches": list(self.batches),
            "devices": [_describe_device(device) for device in self.devices],
            "conditions": {name: str(value) for name, value in asdict(self.conditions).items()},
            "options": {name: str(value) for name, value in self.options.items() if name != "predictor"},
            "reading": {name: repr(value) for name, value in self.reading.items()},
            "predictor": None if predictor is None else hash_folder(Path(predictor)),
        }


def _once(given: list[Any]) -> list[Any]:
    return [each for place, each in enumerate(given) if each not in given[:place]]


def _describe_device(device: DeviceSpec | str | None) -> str | None:
    if not isinstance(device, DeviceSpec):
        return device
    return f"{device.name} {hashlib.sha256(repr(device).encode()).hexdigest()[:8]}"


def _smallest_graph() -> Graph:
    shape = (Dim(1, 0), Dim(0, 8))
    tensors = [
        TensorSpec(name=name, shape=shape, dtype=DType.FLOAT32, role=role)
        for name, role in (("x", TensorRole.INPUT), ("y", TensorRole.ACTIVATION))
    ]
    return Graph(
        source="relu",
        framework="dippm",
        tensors=tuple(tensors),
        nodes=(Node(kind=OpKind.RELU, inputs=(0,), outputs=(1,)),),
        inputs=(0,),
        outputs=(1,),
    )
