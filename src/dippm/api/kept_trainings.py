"""Trainings of an evaluation, kept in a folder: what was trained once is read back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dippm.datasets.graph_samples import SampleTable
    from dippm.training.settings import TrainingSettings

__all__ = ["KeptTrainings", "Train"]

FloatArray = npt.NDArray[np.float64]
PartArray = npt.NDArray[np.int8]
_Samples = TypeVar("_Samples", bound="SampleTable", contravariant=True)
_Settings = TypeVar("_Settings", bound="TrainingSettings", contravariant=True)


class Train(Protocol[_Samples, _Settings]):
    """Trains in a folder, or goes on with the training that it holds, and predicts every sample."""

    def __call__(
        self, samples: _Samples, parts: PartArray, settings: _Settings, folder: Path, *, resume: bool
    ) -> FloatArray:
        """Train and predict, [S, 3]."""
        ...


class KeptTrainings(Generic[_Samples, _Settings]):
    """Trains, or reads back what it trained with the same samples, parts and settings.

    Args:
        folder: Where trainings and their predictions lie.
        train: Does the work.
    """

    def __init__(self, folder: Path, train: Train[_Samples, _Settings]) -> None:
        self._folder = folder
        self._train = train

    def predict(self, samples: _Samples, parts: PartArray, settings: _Settings) -> FloatArray:
        """Predictions of a training, [S, 3]."""
        decides = json.dumps([samples.key, settings.to_dict()]).encode() + parts.tobytes()
        folder = self._folder / f"{settings.model}-{hashlib.sha256(decides).hexdigest()[:16]}"
        path = folder / "predictions.npy"
        try:
            kept: FloatArray = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            # Not trained yet, or cut off while it was written.
            pass
        else:
            if kept.shape == samples.targets.shape:
                return kept
        predictions = self._train(samples, parts, settings, folder, resume=True)
        np.save(path, predictions, allow_pickle=False)
        return predictions
