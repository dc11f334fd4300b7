"""The shipped predictor after a device's own labels: what ``dippm train --adapt`` writes into a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dippm.costs.conditions import Conditions, Mode
from dippm.costs.kernels.model import load_kernel_model
from dippm.devices import DeviceSpec, MigProfile, find_device
from dippm.errors import DippmError, UnsupportedError
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import OWN_REGIMES, REGIMES, manifest_path
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["AdaptedManifest", "AdaptedPredictor", "calibration_path", "is_adapted", "load_physics"]

_FORMAT = 1
_MANIFEST = "adapted.json"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AdaptedManifest:
    """What stands beside the networks and calibrations of the folder.

    Args:
        device: The device of the labels, with its figures.
        conditions: Conditions of most of the labels: they stand for what a question leaves out.
        report: Errors before and after, and what the labels were.
        provenance: Settings, versions.
    """

    device: DeviceSpec
    conditions: Conditions
    report: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> AdaptedManifest:
        """Read the manifest of a folder.

        Raises:
            DippmError: ``artefact.unreadable`` where it is missing, damaged or of another format.
        """
        path = folder / _MANIFEST
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held["format"] != _FORMAT:
                raise ValueError("another format")
            return cls(
                device=_device_of(held["device"]),
                conditions=Conditions.parse(**held["conditions"]),
                report=held["report"],
                provenance=held["provenance"],
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DippmError) as exc:
            raise DippmError(
                f"The predictor '{path}' cannot be read: {exc}.",
                code="artefact.unreadable",
                cure="Name a folder that `dippm train --adapt` wrote.",
            ) from exc

    def write(self, folder: Path) -> None:
        """Write the manifest."""
        held = {
            "format": _FORMAT,
            "device": asdict(self.device),
            "conditions": {key: value for key, value in asdict(self.conditions).items() if isinstance(value, str)},
            "report": self.report,
            "provenance": self.provenance,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MANIFEST).write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AdaptedPredictor:
    """The shipped predictor with networks and calibrations that have seen labels of one device.

    Args:
        manifest: What the labels were.
        physics: What predicts. It holds for the device of the manifest alone.
    """

    manifest: AdaptedManifest
    physics: PhysicsPredictor

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AdaptedPredictor:
        """Read what ``dippm train --adapt`` wrote.

        Raises:
            DippmError: ``artefact.unreadable``.
            UnsupportedError: ``artefact.columns`` where another version wrote it.
        """
        folder = Path(folder)
        manifest = AdaptedManifest.read(folder)
        missing = [path for regime in (*REGIMES, *OWN_REGIMES) if not (path := manifest_path(regime, folder)).exists()]
        cure = f"Adapt to {manifest.device.name} again with `dippm train --adapt`."
        if missing:
            raise DippmError(f"The predictor '{missing[0]}' is missing.", code="artefact.unreadable", cure=cure)
        try:
            return cls(manifest=manifest, physics=load_physics(folder))
        except DippmError as exc:
            # The cure of a shipped artefact is none here.
            raise type(exc)(str(exc).removesuffix(f" {exc.cure}"), code=exc.code, cure=cure) from exc

    def is_for(self, device: str) -> bool:
        """Whether this is a name of the device of the labels."""
        spec = self.manifest.device
        if device.strip().casefold() in {name.casefold() for name in (spec.name, *spec.aliases)}:
            return True
        try:
            return find_device(device).name == spec.name
        except UnsupportedError:
            return False

    def conditions_for(self, given: Mapping[str, str]) -> dict[str, str]:
        """Names of all conditions: those that are given, and for what is left out those of most of the labels."""
        held = {name: value for name, value in asdict(self.manifest.conditions).items() if isinstance(value, str)}
        if given.get("mode", held["mode"]) != held["mode"]:
            # The labels' optimizer and runtime belong to their mode.
            held.pop("optimizer", None)
            held.pop("runtime", None)
        return {name: str(value) for name, value in (held | dict(given)).items()}


def is_adapted(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an adapted predictor, and not a network of its own."""
    return (Path(folder) / _MANIFEST).is_file()


def load_physics(folder: Path) -> PhysicsPredictor:
    """Networks and calibrations of a folder, read anew: an adaptation may have written them since.

    Raises:
        DippmError: ``artefact.unreadable``.
        UnsupportedError: ``artefact.columns``.
    """
    return PhysicsPredictor(
        Calibration.read(calibration_path(Mode.INFERENCE, folder)),
        load_kernel_model(),
        training=Calibration.read(calibration_path(Mode.TRAINING, folder)),
        additive=AdditivePredictor.read(folder),
    )


def calibration_path(mode: Mode, folder: Path) -> Path:
    """Where the calibration of a mode lies."""
    return folder / (ARTEFACT_PATH if mode is Mode.INFERENCE else TRAINING_ARTEFACT_PATH).name


def _device_of(held: dict[str, Any]) -> DeviceSpec:
    profiles = [
        MigProfile(**{**profile, "placements": tuple(profile["placements"])}) for profile in held.pop("mig_profiles")
    ]
    major, minor = held.pop("compute_capability")
    return DeviceSpec(
        compute_capability=(major, minor),
        aliases=tuple(held.pop("aliases")),
        mig_profiles=tuple(profiles),
        **held,
    )
