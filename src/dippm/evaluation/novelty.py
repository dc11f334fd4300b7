"""How new a model is to a predictor, and splits of a data set that make test rows of each kind.

Table 5 of the DIPPM paper tells architectures that training has seen, has partly seen and has never seen. Here a row is

* **seen** where its graph was trained on, at another batch or under another name;
* **partly seen** where its family was trained on, and its graph was not;
* **unseen** where nothing of its family was trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import FRACTIONS, Part, SampleTable, assign_parts, parts_of_split
from dippm.datasets.splits import Split, draw, leave_family_out, split_by_graph
from dippm.datasets.store.label import Label
from dippm.errors import UsageError

__all__ = ["Novelty", "hold_out", "leave_families_out", "novelty_of_samples", "split_for"]

PartArray = npt.NDArray[np.int8]


class Novelty(StrEnum):
    """How much of a model was in the training."""

    SEEN = "seen"
    PARTLY_SEEN = "partly seen"
    UNSEEN = "unseen"


def split_for(samples: SampleTable, novelty: Novelty, *, seed: int) -> PartArray | None:
    """Parts of each sample, 70/15/15, such that test rows of this novelty are among them.

    Seen rows come from a split at random by row, partly seen ones from the split at random by model that
    ``dippm train`` makes, unseen ones from families held out together, drawn until they hold 15 % of the rows. A test
    part may hold rows of other novelty too: :func:`novelty_of_samples` tells.

    Args:
        samples: All samples.
        novelty: What the test rows are to be.
        seed: Seed of the draw.

    Returns:
        The parts, or None where the data have no such test rows: no model at two batches, or a single family.
    """
    if novelty is Novelty.PARTLY_SEEN:
        parts: PartArray | None = assign_parts(samples, seed=seed)
    elif novelty is Novelty.SEEN:
        parts = _by_row(samples, seed=seed)
    else:
        parts = _by_family(samples, seed=seed)
    if parts is None or not ((parts == Part.TEST) & (novelty_of_samples(samples, parts) == novelty)).any():
        return None
    return parts


def leave_families_out(samples: SampleTable, groups: int, *, seed: int) -> dict[tuple[str, ...], PartArray]:
    """All families in groups of about equally many rows, each with parts whose test rows are all of the group.

    Args:
        samples: All samples.
        groups: How many groups; with as many as there are families each is left out alone. 0 for none.
        seed: Seed of the division of the rest into training and validation.

    Returns:
        Parts by the families of the group, none of which is in training. A group beside which too little is left is
        not there.
    """
    counts = Counter(samples.families.tolist())
    members: list[list[str]] = [[] for _ in range(min(groups, len(counts)))]
    rows = [0] * len(members)
    for family in sorted(counts, key=lambda name: (-counts[name], name)) if members else ():
        lightest = rows.index(min(rows))
        members[lightest].append(family)
        rows[lightest] += counts[family]
    found = {tuple(group): _without(samples, tuple(group), seed=seed) for group in members}
    return {group: parts for group, parts in found.items() if parts is not None}


def hold_out(samples: SampleTable, rest: Sequence[Label], held: Sequence[Label], *, seed: int) -> PartArray | None:
    """Parts whose test rows are the held ones; None where the rest is too little to train on and to validate with.

    Args:
        samples: All samples.
        rest: Labels to divide into training and validation.
        held: Labels to test on.
        seed: Seed of the division.
    """
    training, validation, _ = FRACTIONS
    known = training + validation
    split = split_by_graph(rest, fractions=(training / known, validation / known, 0.0), seed=seed)
    parts = parts_of_split(samples, Split(training=split.training, validation=split.validation, test=tuple(held)))
    return parts if (parts == Part.TRAINING).any() and (parts == Part.VALIDATION).any() else None


def novelty_of_samples(samples: SampleTable, parts: PartArray) -> npt.NDArray[np.str_]:
    """Novelty of every sample, as seen from the training part."""
    training = [label for label, part in zip(samples.labels, parts, strict=True) if part == Part.TRAINING]
    graphs = {label.graph_hash for label in training}
    families = {label.recipe.family for label in training}
    return np.array(
        [
            Novelty.SEEN.value
            if label.graph_hash in graphs
            else Novelty.PARTLY_SEEN.value
            if label.recipe.family in families
            else Novelty.UNSEEN.value
            for label in samples.labels
        ]
    )


def _by_row(samples: SampleTable, *, seed: int) -> PartArray:
    order = sorted(range(len(samples)), key=lambda index: draw(seed, samples.labels[index].key))
    ends = np.round(np.cumsum(FRACTIONS) * len(samples)).astype(int)
    parts = np.full(len(samples), Part.TEST, dtype=np.int8)
    parts[order[: ends[0]]] = Part.TRAINING
    parts[order[ends[0] : ends[1]]] = Part.VALIDATION
    return parts


def _by_family(samples: SampleTable, *, seed: int) -> PartArray | None:
    families = samples.families
    drawn: list[str] = []
    for family in sorted(set(families.tolist()), key=lambda name: draw(seed, name)):
        if np.isin(families, drawn).mean() >= FRACTIONS[2]:
            break
        drawn.append(family)
    return _without(samples, tuple(drawn), seed=seed)


def _without(samples: SampleTable, families: tuple[str, ...], *, seed: int) -> PartArray | None:
    try:
        held_out = leave_family_out(samples.labels, families)
    except UsageError as exc:
        if exc.code != "split.empty":
            raise
        return None
    return hold_out(samples, held_out.training, held_out.test, seed=seed)
