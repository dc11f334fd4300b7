"""Who answers: the shipped predictor, one that was adapted to a device, or a trained network; and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from dippm.api.arguments import Devices, as_list, parse_conditions, parse_devices, parse_software
from dippm.api.question import Question
from dippm.api.refused_devices import RefusedDevice, find_refused, with_refused
from dippm.costs.conditions import Conditions, Mode
from dippm.costs.software import Software
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy
from dippm.predictors.adapted import is_adapted
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

if TYPE_CHECKING:
    from dippm.predictors.adapted import AdaptedPredictor
    from dippm.predictors.pmgns import PmgnsPredictor

__all__ = ["ChosenNetwork", "ChosenPhysics", "choose_predictor", "need_physics"]

_DEVICE = "A100"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChosenPhysics:
    """The shipped predictor or an adapted one, which add up operators, and what is asked of it.

    Args:
        physics: What predicts.
        devices: Devices that can run it, in the order of the question.
        conditions: What the figures hold for.
        software: What the figures hold for.
        refused: Devices of the question that cannot: every answer names them in a warning.
    """

    physics: PhysicsPredictor
    devices: list[DeviceSpec]
    conditions: Conditions
    software: Software
    refused: tuple[RefusedDevice, ...] = ()

    @property
    def asked_devices(self) -> list[DeviceSpec]:
        """All devices of the question."""
        return [*self.devices, *(each.device for each in self.refused)]

    @property
    def reading_mode(self) -> Mode:
        """The mode to read the model for."""
        return self.conditions.mode

    def predict(
        self, graph: Graph, *, batches: Sequence[int], mig_policy: MigPolicy = MigPolicy.SAFE
    ) -> list[Prediction]:
        """Predict every batch on every device, all batches of the first device first."""
        (predictions,) = self.predict_each([graph], batches=batches, mig_policy=mig_policy)
        return predictions

    def predict_each(
        self, graphs: Sequence[Graph], *, batches: Sequence[int], mig_policy: MigPolicy = MigPolicy.SAFE
    ) -> list[list[Prediction]]:
        """The same for each of several graphs, worked out together."""
        answers = self.physics.predict_each(
            graphs,
            batches=batches,
            devices=self.devices,
            conditions=self.conditions,
            software=self.software,
            mig_policy=mig_policy,
        )
        return [with_refused(predictions, self.refused) for predictions in answers]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChosenNetwork:
    """A trained network, which knows one device, under the conditions of its labels.

    Args:
        folder: Where it was read from.
        network: What predicts.
        given: The figures of its device, where the question has them.
    """

    folder: str
    network: PmgnsPredictor
    given: DeviceSpec | None

    @property
    def reading_mode(self) -> Mode:
        """The mode to read the model for: a network has seen forward passes alone, also of training steps."""
        return Mode.INFERENCE

    @property
    def devices(self) -> list[DeviceSpec]:
        """The device of the labels with its figures.

        Raises:
            UnsupportedError: ``device.unknown`` where neither the catalogue nor the question has them.
        """
        spec = self.given or self.network.spec
        if spec is None:
            raise UnsupportedError(
                f"The catalogue does not list '{self.network.device}', the device of the predictor '{self.folder}', so "
                "that its memory is not known.",
                code="device.unknown",
                cure="In Python give its figures: device=dippm.load_device_file(FILE).",
            )
        return [spec]

    @property
    def asked_devices(self) -> list[DeviceSpec]:
        """The same: the question has no other."""
        return self.devices

    def predict(
        self, graph: Graph, *, batches: Sequence[int], mig_policy: MigPolicy = MigPolicy.SAFE
    ) -> list[Prediction]:
        """Predict every batch."""
        return self.network.predict(graph, batches=batches, mig_policy=mig_policy)

    def predict_each(
        self, graphs: Sequence[Graph], *, batches: Sequence[int], mig_policy: MigPolicy = MigPolicy.SAFE
    ) -> list[list[Prediction]]:
        """The same for each of several graphs."""
        return [self.predict(graph, batches=batches, mig_policy=mig_policy) for graph in graphs]


def choose_predictor(
    predictor: str | PathLike[str] | None, question: Question, *, device: Devices | None, is_single: bool = False
) -> ChosenPhysics | ChosenNetwork:
    """Find who answers, and check that it holds for what is asked.

    Args:
        predictor: Folder of a trained or an adapted predictor, or None for the shipped one.
        question: What is asked; conditions that it leaves out are those of the predictor's labels, and of the shipped
            one the first in use.
        device: One or several; left out, that of the predictor, and of the shipped one an A100.
        is_single: Whether there must be one device.

    Raises:
        UsageError: ``predictor.mismatch`` where the predictor does not hold for it, or a name is wrong.
        UnsupportedError: A device or runtime is not supported; ``software.impossible`` or ``runtime.unsupported`` where
            none of the devices can run it.
        DippmError: The predictor cannot be read.
    """
    given = question.named_conditions
    asked = None if device is None else as_list(device)
    if predictor is not None and not is_adapted(predictor):
        network = _load_for(predictor, asked, given)
        _refuse_unlearned(question)
        spec = next((each for each in asked or () if isinstance(each, DeviceSpec)), None)
        return ChosenNetwork(folder=fspath(predictor), network=network, given=spec)
    if predictor is None:
        devices = parse_devices(_DEVICE if device is None else device, is_single=is_single)
        physics = PhysicsPredictor.load()
    else:
        adapted = _load_adapted(predictor, asked)
        devices, physics, given = [adapted.manifest.device], adapted.physics, adapted.conditions_for(given)
    conditions = parse_conditions(**question.training_conditions, **given)
    named = None if question.software is None else parse_software(question.software)
    refused = find_refused(devices, runtime=conditions.runtime, software=named)
    out = [each.device for each in refused]
    answering = [device for device in devices if device not in out]
    if not answering:
        raise refused[0].error
    return ChosenPhysics(
        physics=physics,
        devices=answering,
        conditions=conditions,
        software=named or parse_software(None),
        refused=refused,
    )


def need_physics(chosen: ChosenPhysics | ChosenNetwork, *, because: str) -> ChosenPhysics:
    """The same, for a verb that a network cannot answer.

    Args:
        chosen: Who would answer.
        because: Why a network cannot, as a sentence.

    Raises:
        UnsupportedError: ``predictor.unsuited`` where it is a network.
    """
    if isinstance(chosen, ChosenNetwork):
        raise UnsupportedError(
            f"The predictor '{chosen.folder}' is a network of dippm train. {because}",
            code="predictor.unsuited",
            cure="Leave the predictor out, or name one of dippm train --adapt.",
        )
    return chosen


def _load_for(folder: str | PathLike[str], devices: list[object] | None, given: dict[str, str]) -> PmgnsPredictor:
    """A trained predictor, if it holds for these devices and conditions.

    Raises:
        UsageError: ``predictor.mismatch`` where it does not, or one of :meth:`Conditions.parse`.
    """
    from dippm.predictors.pmgns import PmgnsPredictor

    trained = PmgnsPredictor.load(folder)
    held: dict[str, Any] = {k: value for k, value in asdict(trained.conditions).items() if isinstance(value, str)}
    asked = Conditions.parse(**(held | given))
    names = [each.name if isinstance(each, DeviceSpec) else str(each) for each in devices or [trained.device]]
    if devices == [] or asked != trained.conditions or len(names) > 1 or not trained.is_for(names[0]):
        raise UsageError(
            f"The predictor '{fspath(folder)}' holds for {trained.device}, {', '.join(held.values())}. Got "
            f"{', '.join([*(names if devices is not None else []), *given.values()]) or 'no device'} instead.",
            code="predictor.mismatch",
            cure="Leave device and conditions out, or train one on labels of those.",
        )
    return trained


def _load_adapted(folder: str | PathLike[str], devices: list[object] | None) -> AdaptedPredictor:
    """An adapted predictor, if it holds for these devices.

    Raises:
        UsageError: ``predictor.mismatch`` where it does not.
    """
    from dippm.predictors.adapted import AdaptedPredictor

    adapted = AdaptedPredictor.load(folder)
    own = adapted.manifest.device.name
    names = [
        each.name if isinstance(each, DeviceSpec) else str(each) for each in ([own] if devices is None else devices)
    ]
    if len(names) != 1 or not adapted.is_for(names[0]):
        raise UsageError(
            f"The predictor '{fspath(folder)}' was adapted to {own}. Got {', '.join(names) or 'no device'} instead.",
            code="predictor.mismatch",
            cure="Leave the device out, or leave the predictor out.",
        )
    return adapted


def _refuse_unlearned(question: Question) -> None:
    if question.training_conditions != Question().training_conditions or question.software is not None:
        raise UsageError(
            "No trained predictor has learned accumulation, checkpointing, adapters or other software than that of its "
            "labels.",
            code="predictor.mismatch",
            cure="Leave them out, or leave the predictor out.",
        )
