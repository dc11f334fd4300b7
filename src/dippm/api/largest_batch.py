"""How large may the batch be?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Unpack, overload

from dippm.api.arguments import Devices, asks_for_one
from dippm.api.batch_search import LARGEST_BATCH, BatchSearch
from dippm.api.chosen_predictor import ChosenPhysics, choose_predictor, need_physics
from dippm.api.named_models import PROOF_BATCH
from dippm.api.needed_memory import needed_of, rows_of_need
from dippm.api.prices import Price, parse_prices, price_entry, price_per_sample
from dippm.api.question import Options, Question, spelled_out
from dippm.costs.conditions import Conditions, Mode
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError, UsageError, quote
from dippm.graph import Graph
from dippm.predictors.prediction import Prediction, format_figure, format_interval, text_row

__all__ = ["MaxBatch", "max_batch"]

_NO_SEARCH = (
    "Beyond the batches of its labels nobody knows how far it is off, and its memory need not grow with the batch: no "
    "search finds the largest. dippm fits answers for batches of your choice."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxBatch:
    """The largest batch that fits, and what bounds it.

    Args:
        device: Canonical name of the device.
        batch: Largest batch that surely fits, with all of the interval of what it needs, and whose time keeps the
            bound; 0 where not even one sample does.
        batch_at_most: Largest batch that is not ruled out by what it needs (bound on time kept).
        bound_by: ``"memory"``, ``"latency"`` (in training ``"step_time"``), or ``"none"`` where the largest batch tried
            still fits.
        prediction: The prediction at ``batch``, or at 1 where ``batch`` is 0.
        price: What the run costs at ``batch``, where a price of the device was given and the batch is not 0.
    """

    device: str
    batch: int
    batch_at_most: int
    bound_by: str
    prediction: Prediction
    price: Price | None = None

    @property
    def largest_part(self) -> str:
        """The part of the memory that decides: the largest one at the peak, such as ``"activations"``."""
        return self.prediction.largest_part

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON."""
        answer: dict[str, object] = {
            "device": self.device,
            "batch": self.batch,
            "batch_at_most": self.batch_at_most,
            "bound_by": self.bound_by,
            "needed_mb": [round(end, 1) for end in self.needed_mb],
            "largest_part": self.largest_part,
        }
        return answer | price_entry(self.price) | {"prediction": self.prediction.to_dict()}

    @property
    def needed_mb(self) -> tuple[float, float]:
        """Lower and upper end of the memory that is needed at ``batch``, at 1 where that is 0, MiB."""
        return needed_of(self.prediction)

    @property
    def none_note(self) -> str:
        """Why not even a batch of one is possible; ``""`` where one is."""
        if self.batch:
            return ""
        prediction = self.prediction
        if self.bound_by == "memory":
            why = f"needs too much memory: {format_interval(self.needed_mb)} MiB"
        else:
            interval = format_interval(prediction.intervals["latency_ms"])
            why = f"is too slow: it takes {format_figure(prediction.latency_ms)} ms [{interval}]"
        return f"{self.device}: even batch 1 {why}."

    def __str__(self) -> str:
        prediction = self.prediction
        rows = [
            text_row("batch", f"{self.batch:,}"),
            text_row("at most", f"{self.batch_at_most:,}"),
            text_row("bound by", self.bound_by.replace("_", " ")),
            *([*prediction.figure_rows(), *rows_of_need(prediction)] if self.batch else [f"  ! {self.none_note}"]),
        ]
        if self.price is not None:
            rows.append(f"  price: {self.price}")
        return "\n".join([prediction.title(with_batch=False), *rows, *prediction.warning_rows()])


@overload
def max_batch(  # type: ignore[overload-overlap]  # a str is a Sequence of str as well; the first overload wins
    model: object,
    *,
    device: str | DeviceSpec | None = None,
    latency_ms: float | None = None,
    step_time_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> MaxBatch: ...


@overload
def max_batch(
    model: object,
    *,
    device: Sequence[str | DeviceSpec],
    latency_ms: float | None = None,
    step_time_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[MaxBatch]: ...


@spelled_out
def max_batch(
    model: object,
    *,
    device: Devices | None = None,
    latency_ms: float | None = None,
    step_time_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> MaxBatch | list[MaxBatch]:
    """Find the largest batch that fits; the model is read once, and again at that batch where it is above 64.

    Memory does not grow evenly with the batch, because the allocator works in segments: past the batch that a search
    by interpolation finds, larger ones are looked at, the nearest one by one and a sample of a fourth as many again.

    Args:
        model: As in :func:`dippm.predict`.
        device: A device, a MIG slice, or a list of them; an A100, or the device of the predictor, when left out.
        latency_ms: Bound on the predicted time of a call, in training of a step, ms, or None.
        step_time_ms: The same under training's own name; in training alone.
        prices: As in :func:`dippm.fits`, and so are the options.
        predictor: Folder that :func:`dippm.adapt` wrote; its own device and conditions stand for what is left out.
        **options: See above.

    Returns:
        One answer for one device, else a list in the order of the devices, without those that cannot run what is asked,
        which a warning of all predictions names; with prices the cheapest per sample first, then those without a price,
        then those where nothing fits.

    Raises:
        UnsupportedError: ``graph.fixed_batch`` where the model holds for one batch size only, ``graph.no_batch`` where
            no input has a batch, ``predictor.unsuited`` where the predictor is a network that :func:`dippm.train`
            wrote: its memory need not grow with the batch.
        UsageError: ``latency.invalid`` where a bound is not a positive number, ``latency.twice`` where both are given,
            ``step_time.unused`` outside training.
    """
    question = Question(**options)
    chosen = choose_predictor(predictor, question, device=device)
    asked = need_physics(chosen, because=_NO_SEARCH)
    bound_ms = _parse_bound(asked.conditions, latency_ms=latency_ms, step_time_ms=step_time_ms)
    per_hour = parse_prices(prices, asked.asked_devices)
    graph = question.read(model, mode=asked.reading_mode)
    if graph.fixed_batch is not None:
        raise UnsupportedError(
            f"'{graph.source}' holds for batch {graph.fixed_batch} only: {graph.fixed_batch_reason}",
            code="graph.fixed_batch",
            cure="Export a file with a dynamic batch; a model that is read for each batch can be asked with fits.",
        )
    if not graph.has_batch:
        raise UnsupportedError(
            f"No input of '{graph.source}' has a batch: any batch fits, or none does.",
            code="graph.no_batch",
            cure="Ask whether it fits; an input has a batch where its shape is not said to be unbatched.",
        )
    searches = [_search(graph, spec, asked, bound_ms=bound_ms) for spec in asked.devices]
    largest = max(1, *(found.at_most for found in searches))
    if not (graph.is_proved_for(largest) and graph.goes_so_at(largest)):
        proved = _prove(question.read(model, mode=asked.reading_mode, batch_hint=largest), largest)
        # A search passes over batches that nobody named, and the first reading warns of these.
        graph = replace(proved, warnings=tuple(dict.fromkeys((*graph.warnings, *proved.warnings))))
    answers = [
        _answer(graph, spec, found, asked, per_hour=per_hour.get(spec.name))
        for spec, found in zip(asked.devices, searches, strict=True)
    ]
    if asks_for_one(device):
        return answers[0]
    if per_hour:
        answers.sort(key=lambda answer: (answer.batch == 0, price_per_sample(answer.price)))
    return answers


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What a search has found: the largest batch that surely fits, that may fit, and what keeps it from more."""

    batch: int
    at_most: int
    bound_by: str


def _prove(graph: Graph, batch: int) -> Graph:
    """A graph that was read for the largest batch that was found.

    Raises:
        UnsupportedError: ``graph.fixed_batch`` where the model does not grow up to there as it does at small batches.
    """
    if graph.fixed_batch is not None:
        raise UnsupportedError(
            f"'{graph.source}' does not grow up to batch {batch} as it does up to {PROOF_BATCH}: "
            f"{graph.fixed_batch_reason}",
            code="graph.fixed_batch",
            cure="Ask whether it fits at the batches that you consider.",
        )
    return graph


def _search(graph: Graph, spec: DeviceSpec, asked: ChosenPhysics, *, bound_ms: float | None) -> _Found:
    on_device = replace(asked, devices=[spec])

    def predict(batches: Sequence[int]) -> list[Prediction]:
        return on_device.predict(graph, batches=batches)

    search = BatchSearch(predict, capacity_mb=spec.capacity_mb, time_bound_ms=bound_ms)
    batch = search.largest_certain()
    bound_by = "none"
    if batch < LARGEST_BATCH:
        of_time = "step_time" if asked.conditions.mode is Mode.TRAINING else "latency"
        bound_by = of_time if search.is_bound_by_time(batch) else "memory"
    return _Found(batch=batch, at_most=max(batch, search.largest_possible()), bound_by=bound_by)


def _answer(graph: Graph, spec: DeviceSpec, found: _Found, asked: ChosenPhysics, *, per_hour: float | None) -> MaxBatch:
    (prediction,) = replace(asked, devices=[spec]).predict(graph, batches=[max(found.batch, 1)])
    return MaxBatch(
        device=spec.name,
        batch=found.batch,
        batch_at_most=found.at_most,
        bound_by=found.bound_by,
        prediction=prediction,
        price=Price.of(prediction, per_hour) if per_hour is not None and found.batch else None,
    )


def _parse_bound(conditions: Conditions, *, latency_ms: float | None, step_time_ms: float | None) -> float | None:
    if step_time_ms is not None and conditions.mode is not Mode.TRAINING:
        raise UsageError(
            "A bound on the step time has a meaning in training mode only.",
            code="step_time.unused",
            cure="Give a bound on the latency, or mode training.",
        )
    if step_time_ms is not None and latency_ms is not None:
        raise UsageError("In training the latency is the step time: give one of the two bounds.", code="latency.twice")
    bound_ms = latency_ms if step_time_ms is None else step_time_ms
    if bound_ms is not None and not 0 < bound_ms <= sys.float_info.max:
        name = "latency" if step_time_ms is None else "step-time"
        raise UsageError(
            f"A {name} bound must be above 0 ms and finite. Got {quote(bound_ms)} instead.", code="latency.invalid"
        )
    return bound_ms
