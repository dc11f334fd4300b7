"""A model at several batches, which some models have to be read for one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dippm.api.chosen_predictor import ChosenNetwork, ChosenPhysics
from dippm.errors import DippmError
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy
from dippm.predictors.prediction import Prediction

__all__ = ["predict_as_read", "read_for_batches"]


def read_for_batches(
    read: Callable[[int], Graph], batches: Sequence[int]
) -> Iterator[tuple[Graph | DippmError, Sequence[int]]]:
    """The graphs of a model and the batches that each is for: one for all, or one each where it does not hold for all.

    A graph that its file fixes comes with all batches that are left: it is for whoever predicts to refuse them.

    Args:
        read: Reads the model for a batch, and proves it up to there where it holds for every batch.
        batches: The batches.

    Raises:
        DippmError: It cannot be read for the largest batch. What keeps it from being read for another one comes in
            place of its graph.
    """
    first = read(max(batches))
    if all(first.holds_for(batch) for batch in batches):
        yield first, batches
        return
    for place, batch in enumerate(batches):
        try:
            graph = first if first.holds_for(batch) else read(batch)
        except DippmError as exc:
            yield exc, (batch,)
            continue
        if not graph.holds_for(batch):
            # It is the file that fixes the batch: to read it again would change nothing.
            yield graph, batches[place:]
            return
        yield graph, (batch,)


def predict_as_read(
    chosen: ChosenPhysics | ChosenNetwork,
    read: Callable[[int], Graph],
    batches: Sequence[int],
    *,
    mig_policy: MigPolicy = MigPolicy.SAFE,
) -> list[Prediction]:
    """Read a model and predict it on every device at every batch, all batches of the first device first.

    Args:
        chosen: Who answers.
        read: As in :func:`read_for_batches`.
        batches: The batches.
        mig_policy: How slices are chosen.

    Raises:
        DippmError: It cannot be read for one of the batches, or is refused.
    """
    parts = []
    for graph, own in read_for_batches(read, batches):
        if isinstance(graph, DippmError):
            raise graph
        parts.append((chosen.predict(graph, batches=own, mig_policy=mig_policy), len(own)))
    devices = len(parts[0][0]) // parts[0][1]
    return [
        prediction
        for device in range(devices)
        for predictions, count in parts
        for prediction in predictions[device * count : (device + 1) * count]
    ]
