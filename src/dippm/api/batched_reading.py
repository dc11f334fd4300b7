"""A model at several batches, which some models have to be read for one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dippm.api.chosen_predictor import ChosenNetwork, ChosenPhysics
from dippm.errors import DippmError
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy
from dippm.predictors.prediction import Prediction

__all__ = ["predict_as_read", "predict_each_as_read", "read_for_batches", "with_way_told"]


def read_for_batches(
    read: Callable[[int], Graph], batches: Sequence[int]
) -> Iterator[tuple[Graph | DippmError, Sequence[int]]]:
    """The graphs of a model and the batches that each is for: one for all, or one each where it does not hold for all.

    A graph that its file fixes comes with all batches that are left: it is for whoever predicts to refuse them. One
    that the caller has read, of a model that may go another way at a batch, warns of that.

    Args:
        read: Reads the model for a batch, and proves it up to there where it holds for every batch.
        batches: The batches.

    Raises:
        DippmError: It cannot be read for the largest batch. What keeps it from being read for another one comes in
            place of its graph.
    """
    first = read(max(batches))
    if all(first.serves(batch) for batch in batches):
        yield first, batches
        return
    for place, batch in enumerate(batches):
        try:
            graph = first if first.serves(batch) else read(batch)
        except DippmError as exc:
            yield exc, (batch,)
            continue
        if not graph.holds_for(batch):
            # It is the file that fixes the batch: to read it again would change nothing.
            yield graph, batches[place:]
            return
        yield with_way_told(graph, batch), (batch,)


def with_way_told(graph: Graph, batch: int) -> Graph:
    """A graph with a warning where the model may go another way at a batch than the graph does."""
    if graph.goes_so_at(batch):
        return graph
    found = "it goes another way or does not run" if batch in graph.other_batches else "its way was not looked at"
    told = (
        f"The graph is of a model that decides by its batch, and at {batch} {found}: ask the model itself for that "
        f"batch to have its own figures, or read it with batch_hint={batch} of dippm.load."
    )
    return replace(graph, warnings=(*graph.warnings, told))


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
    (predictions,) = predict_each_as_read(chosen, [read], batches, mig_policy=mig_policy)
    return predictions


def predict_each_as_read(
    chosen: ChosenPhysics | ChosenNetwork,
    readers: Iterable[Callable[[int], Graph]],
    batches: Sequence[int],
    *,
    mig_policy: MigPolicy = MigPolicy.SAFE,
) -> list[list[Prediction]]:
    """The same for each of several models; those whose graph serves all batches are worked out together.

    Raises:
        DippmError: As :func:`predict_as_read`; one model ends it all.
    """
    models = [list(_served(read, batches)) for read in readers]
    whole = [parts[0][0] for parts in models if len(parts) == 1]
    together = iter(chosen.predict_each(whole, batches=batches, mig_policy=mig_policy))
    return [
        next(together) if len(parts) == 1 else _predict_parts(chosen, parts, mig_policy=mig_policy) for parts in models
    ]


def _served(read: Callable[[int], Graph], batches: Sequence[int]) -> Iterator[tuple[Graph, Sequence[int]]]:
    for graph, own in read_for_batches(read, batches):
        if isinstance(graph, DippmError):
            raise graph
        yield graph, own


def _predict_parts(
    chosen: ChosenPhysics | ChosenNetwork, parts: Sequence[tuple[Graph, Sequence[int]]], *, mig_policy: MigPolicy
) -> list[Prediction]:
    """Predict each graph of one model at its own batches."""
    answers = [(chosen.predict(graph, batches=own, mig_policy=mig_policy), len(own)) for graph, own in parts]
    devices = len(answers[0][0]) // answers[0][1]
    return [
        prediction
        for device in range(devices)
        for predictions, count in answers
        for prediction in predictions[device * count : (device + 1) * count]
    ]
