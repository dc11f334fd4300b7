"""A trained predictor of whole models in a folder: weights beside a JSON file that says what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.errors import DippmError, MissingExtraError, UsageError
from dippm.features.pmgns import EdgeMode
from dippm.features.scaling import Scaling

__all__ = ["MANIFEST_FILE", "WEIGHTS_FILE", "NetworkArtefact", "read_weights", "write_weights"]

MANIFEST_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
_FORMAT = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NetworkArtefact:
    """What stands in ``model.json``.

    Args:
        model: Which network, such as ``"pmgns"``, or ``"gbdt"``.
        metrics: Figures that it predicts, with their units in the name.
        edges: Edges that it was trained on.
        scaling: Scaling of its inputs and outputs; None for trees.
        spreads: Half-width of the 90 % interval of ``log(measured / predicted)`` of each metric, by split conformal
            prediction on the validation split; a metric with too few labels for it is missing.
        labels: What was measured: device, source, conditions, software, number of samples; and the least and largest
            batch, MACs and number of operators of the training split.
        errors_percent: Mean absolute percentage errors: part to metric to error.
        settings: Settings of the training.
        provenance: Versions, hash of the data, command, epochs and time.
    """

    model: str
    metrics: tuple[str, ...]
    edges: EdgeMode
    scaling: Scaling | None
    spreads: Mapping[str, float]
    labels: Mapping[str, Any]
    errors_percent: Mapping[str, Mapping[str, float]]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> NetworkArtefact:
        """Read the manifest of a folder.

        Raises:
            UsageError: ``predictor.missing`` where there is no such folder, or no trained predictor in it.
            DippmError: ``artefact.unreadable`` where the manifest is damaged or of another format.
        """
        path = folder / MANIFEST_FILE
        if not path.exists():
            raise UsageError(
                f"There is no folder '{folder}'." if not folder.is_dir() else f"No predictor lies in '{folder}'.",
                code="predictor.missing",
                cure="Name a folder that dippm train has written without --adapt; predict(predictor=...) takes both.",
            )
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held.pop("format") != _FORMAT:
                raise ValueError("another format")
            scaling = held.pop("scaling")
            return cls(
                metrics=tuple(held.pop("metrics")),
                edges=EdgeMode(held.pop("edges")),
                scaling=None if scaling is None else Scaling.from_dict(scaling),
                **held,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise _unreadable(path, exc) from exc

    def write(self, folder: Path) -> None:
        """Write the manifest."""
        values = {"format": _FORMAT, **asdict(self)}
        values["scaling"] = None if self.scaling is None else self.scaling.to_dict()
        (folder / MANIFEST_FILE).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def write_weights(folder: Path, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write the weights of a network.

    Raises:
        MissingExtraError: safetensors is not installed.
    """
    _need_safetensors()
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, folder / WEIGHTS_FILE)


def read_weights(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Read the weights of a network.

    Raises:
        DippmError: ``artefact.unreadable``.
        MissingExtraError: safetensors is not installed.
    """
    _need_safetensors()
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / WEIGHTS_FILE
    try:
        weights: dict[str, npt.NDArray[np.float32]] = load_file(path)
    except (OSError, SafetensorError) as exc:
        raise _unreadable(path, exc) from exc
    return weights


def _need_safetensors() -> None:
    if find_spec("safetensors") is None:
        raise MissingExtraError(package="safetensors", extra="train", purpose="read and write trained networks")


def _unreadable(path: Path, error: Exception) -> DippmError:
    return DippmError(
        f"The predictor '{path}' cannot be read: {error}.",
        code="artefact.unreadable",
        cure="Name a folder that `dippm train` wrote.",
    )
