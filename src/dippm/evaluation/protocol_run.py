"""A training of a protocol: what it is tested on, and what it predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import Part, SampleTable, assign_parts
from dippm.errors import DippmError, UsageError

__all__ = ["OnRun", "Run", "draw_tested_parts"]

OnRun = Callable[[int, int, str], None]
"""Called with trainings done, their total, and what comes next."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """A training, and its predictions of all samples.

    Args:
        model: What was trained.
        seed: Its seed.
        parts: Part of each sample.
        predicted: Its predictions.

    Shapes:
        parts: [S]; predicted: [S, 3].
    """

    model: str
    seed: int
    parts: npt.NDArray[np.int8]
    predicted: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls,
        samples: SampleTable,
        parts: npt.NDArray[np.int8],
        predicted: npt.NDArray[np.float64],
        *,
        model: str,
        seed: int,
    ) -> Run:
        """A training whose predictions are numbers; what it says of a figure that it was never shown is none.

        Raises:
            DippmError: ``evaluation.not_finite``.
        """
        is_learned = np.isfinite(samples.targets[parts == Part.TRAINING]).any(axis=0)
        predicted = np.where(is_learned, predicted, np.nan)
        if not np.isfinite(predicted[:, is_learned]).all():
            raise DippmError(
                f"The {model} of seed {seed} predicts figures that are no numbers.",
                code="evaluation.not_finite",
                cure="Use a smaller learning rate.",
            )
        return cls(model=model, seed=seed, parts=parts, predicted=predicted)


def draw_tested_parts(samples: SampleTable, *, seed: int) -> npt.NDArray[np.int8]:
    """Parts at random by model, as :func:`assign_parts` draws them, with something to test on.

    Raises:
        UsageError: ``evaluation.too_few`` where there are no test rows.
    """
    parts = assign_parts(samples, seed=seed)
    if not np.isfinite(samples.targets[parts == Part.TEST]).any():
        raise UsageError(
            f"The test split of {len(samples)} samples is empty.",
            code="evaluation.too_few",
            cure="Evaluate on labels of more models.",
        )
    return parts
