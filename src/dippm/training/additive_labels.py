"""The measured whole models that the additive network learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.splits import split_by_graph
from dippm.datasets.store.label import Label
from dippm.datasets.timm_tables import TimmRow, read_timm_tables
from dippm.errors import UsageError
from dippm.measuring.measurement import Outcome
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["MeasuredModels", "device_parts", "family_folds", "random_parts", "read_measured_models"]

IndexArray = npt.NDArray[np.int64]

# The newest of inference, the only one of training.
_SOURCES = {Mode.INFERENCE: "timm torch 2.4.0", Mode.TRAINING: "timm torch 1.12"}
_FRACTIONS = (0.8, 0.1, 0.1)
# Of the order of families that have equally many rows.
_SEED_OF_FOLDS = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModels:
    """Labels, and what tells whether a graph is of the model that was measured.

    Args:
        labels: Labels that ended well.
        parameters_m: Weights of the measured model by architecture, millions.
        data_sha256: Hash of the tables.
    """

    labels: tuple[Label, ...]
    parameters_m: dict[str, float]
    data_sha256: str


def read_measured_models(folder: Path, mode: Mode, runtime: Runtime = Runtime.EAGER) -> MeasuredModels:
    """Read rows of the timm tables.

    Args:
        folder: Folder of the measured tables.
        mode: Inference or training.
        runtime: Eager or compiled; no training step was measured compiled.

    Raises:
        UsageError: ``data.missing``.
    """
    rows: Sequence[TimmRow] = read_timm_tables(folder / "timm")
    labels = tuple(
        label
        for label in labels_of_timm_rows(rows)
        if label.measurement.outcome is Outcome.OK
        and label.configuration.conditions.runtime is runtime
        and label.configuration.conditions.mode is mode
        and label.source == _SOURCES[mode]
    )
    tables = sorted((folder / "timm").glob("*.csv"))
    return MeasuredModels(
        labels=labels,
        parameters_m={f"zoo:timm:{row.model}": row.parameters_m for row in rows if row.parameters_m > 0.0},
        data_sha256=hashlib.sha256(b"".join(path.read_bytes() for path in tables)).hexdigest(),
    )


def random_parts(samples: AdditiveSamples, *, seed: int) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Training, validation and test, 80/10/10 at random by model: no graph is in two parts."""
    labels = {samples.labels[index].key: samples.labels[index] for index in samples.usable}
    split = split_by_graph(labels.values(), fractions=_FRACTIONS, seed=seed)
    position = {label.key: index for index, label in enumerate(samples.labels)}
    training, validation, test = (
        np.array([position[label.key] for label in part], dtype=np.int64)
        for part in (split.training, split.validation, split.test)
    )
    return training, validation, test


def device_parts(samples: AdditiveSamples, *, device: str, seed: int) -> tuple[IndexArray, IndexArray, IndexArray]:
    """A device left out: what to train on, its own rows of the same models, and its rows of all other models.

    Args:
        samples: All samples.
        device: The device.
        seed: Seed of the draw of models, see :func:`random_parts`.
    """
    training, validation, test = random_parts(samples, seed=seed)
    is_own = np.array([label.measurement.device == device for label in samples.labels], dtype=np.bool_)
    others = np.sort(np.concatenate([validation, test]))
    return training[~is_own[training]], training[is_own[training]], others[is_own[others]]


def family_folds(samples: AdditiveSamples, *, folds: int) -> list[tuple[IndexArray, IndexArray]]:
    """Training and test of each fold; every family is in the test of one fold, and all of it.

    Families go, largest first, to the fold that has fewest rows. Labels of other families whose graph or model occurs
    in a test family are in neither part of that fold.

    Raises:
        UsageError: ``split.empty`` where there are fewer families than folds.
    """
    labels = [samples.labels[index] for index in samples.usable]
    family = np.array([label.recipe.lineage for label in labels])
    names, counts = np.unique(family, return_counts=True)
    if len(names) < folds:
        raise UsageError(f"{len(names)} families cannot make {folds} folds.", code="split.empty")
    draw = [hashlib.sha256(f"{_SEED_OF_FOLDS} {name}".encode()).hexdigest() for name in names]
    rows = [0] * folds
    fold_of: dict[str, int] = {}
    for place in sorted(range(len(names)), key=lambda at: (-counts[at], draw[at])):
        least = rows.index(min(rows))
        fold_of[str(names[place])] = least
        rows[least] += int(counts[place])
    fold = np.array([fold_of[str(name)] for name in family])
    result = []
    for number in range(folds):
        is_test = fold == number
        held = {
            name
            for label, chosen in zip(labels, is_test, strict=True)
            if chosen
            for name in (label.graph_hash, label.recipe.model_key)
        }
        is_free = np.array(
            [label.graph_hash not in held and label.recipe.model_key not in held for label in labels], dtype=np.bool_
        )
        result.append((samples.usable[is_free], samples.usable[is_test]))
    return result
