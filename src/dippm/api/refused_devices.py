"""Devices among several that cannot run what is asked of all of them: the others are answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dippm.api.arguments import Devices, parse_conditions, parse_devices
from dippm.api.question import Question
from dippm.costs.conditions import Runtime
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_software, driving_build
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.predictors.prediction import Prediction

__all__ = ["RefusedDevice", "find_refused", "refused_entry", "with_refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedDevice:
    """A device that cannot run what is asked, and why.

    Args:
        device: The device.
        error: What a question for it alone is refused with.
    """

    device: DeviceSpec
    error: UnsupportedError

    def to_dict(self) -> dict[str, object]:
        """An entry of ``refused`` in JSON."""
        return {"device": self.device.name, "code": self.error.code, "message": str(self.error)}


def find_refused(
    devices: Iterable[DeviceSpec], *, runtime: Runtime, software: Software | None
) -> tuple[RefusedDevice, ...]:
    """The devices that cannot run what is asked, whatever the model; each once.

    Args:
        devices: Devices of the question.
        runtime: Its runtime.
        software: The releases that it names; None for those of today, which drive every device by one of their builds.
    """
    found: list[RefusedDevice] = []
    for device in devices:
        if any(each.device == device for each in found):
            continue
        build = driving_build(device, DEFAULT_SOFTWARE) if software is None else software
        try:
            check_software(build, device, runtime)
        except UnsupportedError as exc:
            found.append(RefusedDevice(device=device, error=exc))
    return tuple(found)


def refused_entry(device: Devices | None, question: Question) -> dict[str, object]:
    """What the JSON of the shipped predictor's answer says beside it of devices that are left out of it.

    Args:
        device: Devices of the question, as a verb takes them.
        question: What is asked of them.

    Returns:
        ``refused`` with an entry for each of them; nothing where every device is answered.
    """
    if device is None:
        return {}
    refused = find_refused(
        parse_devices(device),
        runtime=parse_conditions(**question.training_conditions, **question.named_conditions).runtime,
        software=None if question.software is None else Software.parse(question.software),
    )
    return {"refused": [each.to_dict() for each in refused]} if refused else {}


def with_refused(predictions: Iterable[Prediction], refused: Sequence[RefusedDevice]) -> list[Prediction]:
    """Predictions whose warnings name the devices that are left out beside them, and say why."""
    if not refused:
        return list(predictions)
    # One text, the same in each: whoever shows the warnings of several predictions shows it once and whole.
    warning = " ".join(f"{each.device.name} is left out: {each.error}" for each in refused)
    return [
        replace(each, predictor=replace(each.predictor, warnings=(warning, *each.predictor.warnings)))
        for each in predictions
    ]
