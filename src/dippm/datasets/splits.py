"""Parts of a data set for training, validation and test, such that no model stands in two of them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dippm.datasets.store.label import Label
from dippm.errors import UsageError

__all__ = ["Split", "draw", "leave_family_out", "split_by_graph"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Labels in three parts, each in the order in which they were given."""

    training: tuple[Label, ...]
    validation: tuple[Label, ...] = ()
    test: tuple[Label, ...] = ()


def split_by_graph(
    labels: Iterable[Label], *, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0
) -> Split:
    """Split labels by model: all labels of a graph, and all of a model key, fall in one part.

    Models are dealt out family by family, in an order that the seed decides, always to the part that lacks most rows.
    So every family is spread over the parts as far as its number of models allows, and the parts come out at their
    fractions to within about the rows of one model. The order of the labels does not matter.

    Args:
        labels: What to split; labels without a graph hash go by their model key alone.
        fractions: Parts of the rows for training, validation and test, each at least 0, 1 in sum.
        seed: Decides which models fall in which part.

    Raises:
        UsageError: ``split.fractions``.
    """
    if (
        len(fractions) != 3
        or not all(fraction >= 0 for fraction in fractions)
        or not math.isclose(sum(fractions), 1.0, abs_tol=1e-6)
    ):
        raise UsageError(
            f"The fractions of a split must be three numbers of at least 0 that sum to 1. Got {fractions} instead.",
            code="split.fractions",
        )
    labels = tuple(labels)
    models = _models(labels)
    members = defaultdict(list)
    for label, model in zip(labels, models, strict=True):
        members[model].append(label)
    order = sorted(members, key=lambda model: (draw(seed, _family(members[model])), draw(seed, model)))
    part_of: dict[str, int] = {}
    lacking = [0.0, 0.0, 0.0]
    for model in order:
        rows = len(members[model])
        lacking = [rows_lacking + rows * fraction for rows_lacking, fraction in zip(lacking, fractions, strict=True)]
        # A part of no rows never lacks any, but rounding may say so.
        part = max((index for index in range(3) if fractions[index] > 0), key=lacking.__getitem__)
        lacking[part] -= rows
        part_of[model] = part
    parts: tuple[list[Label], ...] = ([], [], [])
    for label, model in zip(labels, models, strict=True):
        parts[part_of[model]].append(label)
    return Split(training=tuple(parts[0]), validation=tuple(parts[1]), test=tuple(parts[2]))


def leave_family_out(labels: Iterable[Label], families: Collection[str]) -> Split:
    """Test on families that training has never seen.

    Labels of other families whose graph or model key occurs in a left-out family too fall in neither part.

    Raises:
        UsageError: ``split.empty`` where no label, or every label, is of these families.
    """
    labels = tuple(labels)
    models = _models(labels)
    test = [label.recipe.family in families for label in labels]
    held = {model for model, is_test in zip(models, test, strict=True) if is_test}
    split = Split(
        training=tuple(label for label, model in zip(labels, models, strict=True) if model not in held),
        test=tuple(label for label, is_test in zip(labels, test, strict=True) if is_test),
    )
    if not split.training or not split.test:
        empty = "test" if not split.test else "training"
        present = sorted({label.recipe.family for label in labels})
        raise UsageError(
            f"Leaving out the family {', '.join(sorted(families)) or '(none)'} leaves no labels for {empty}.",
            code="split.empty",
            cure=f"The labels are of {', '.join(present[:20]) or 'nothing'}.",
        )
    return split


def _models(labels: Sequence[Label]) -> list[str]:
    """For each label a name of its model: equal where model keys or graph hashes are, directly or by way of others."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    keys = [f"model {label.recipe.model_key}" for label in labels]
    for label, key in zip(labels, keys, strict=True):
        root = find(key)
        if label.graph_hash:
            other = find(f"graph {label.graph_hash}")
            # The smaller name wins, so that the name does not depend on the order of the labels.
            low, high = min(root, other), max(root, other)
            parent[high] = low
    return [find(key) for key in keys]


def _family(labels: Sequence[Label]) -> str:
    """Family that most of a model's labels name; the first by name among equals."""
    counts = Counter(label.recipe.family for label in labels)
    return min(counts, key=lambda family: (-counts[family], family))


def draw(seed: int, name: str) -> str:
    """What to sort names by to have them in random order, the same for every collection that a name is in."""
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()
