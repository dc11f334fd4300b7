"""Does it fit, and how large may the batch be?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import overload

from dippm.api.arguments import Batches, Devices, parse_batches
from dippm.api.batch_search import LARGEST_BATCH, BatchSearch
from dippm.api.chosen_predictor import ChosenPhysics, choose_predictor, need_physics
from dippm.api.loading import load
from dippm.api.prices import Price, parse_prices
from dippm.costs.conditions import Conditions, Mode
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph
from dippm.placement.fit import Fit, FitVerdict
from dippm.placement.fit import fits as judge
from dippm.predictors.prediction import Prediction, round_figures

__all__ = ["DeviceFit", "MaxBatch", "fits", "max_batch"]

_NO_SEARCH = (
    "Beyond the batches of its labels nobody knows how far it is off, and its memory need not grow with the batch: no "
    "search finds the largest. dippm fits answers for batches of your choice."
)
_ORDER = {FitVerdict.YES: 0, FitVerdict.UNSURE: 1, FitVerdict.NO: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFit:
    """Whether a model fits one device at one batch.

    Args:
        device: Canonical name of the device.
        batch: Samples per call.
        fit: The verdict and the figures behind it.
        prediction: The prediction that it follows from.
        price: What the run costs, where a price of the device was given.
    """

    device: str
    batch: int
    fit: Fit
    prediction: Prediction
    price: Price | None = None

    @property
    def verdict(self) -> FitVerdict:
        """Yes, no, or unsure."""
        return self.fit.verdict

    @property
    def margin_mb(self) -> float:
        """Capacity less the upper end of what is needed, MiB."""
        return self.fit.margin_mb

    @property
    def needed_mb(self) -> tuple[float, float]:
        """Lower and upper end of the memory that is needed, MiB."""
        return self.fit.needed_mb

    @property
    def capacity_mb(self) -> float:
        """Memory that the device offers to one process, MiB."""
        return self.fit.capacity_mb

    @property
    def largest_part(self) -> str:
        """The part of the memory that decides: the largest one at the peak, such as ``"activations"``."""
        return _largest_part(self.prediction)

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON."""
        answer: dict[str, object] = {
            "device": self.device,
            "batch": self.batch,
            "software": None if self.prediction.software is None else str(self.prediction.software),
            "fits": self.verdict.value,
            "needed_mb": [round(end, 1) for end in self.needed_mb],
            "capacity_mb": round(self.capacity_mb, 1),
            "margin_mb": round(self.margin_mb, 1),
            "largest_part": self.largest_part,
            "memory_parts_mb": _parts(self.prediction),
        }
        return answer | _price_entry(self.price)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxBatch:
    """The largest batch that fits, and what bounds it.

    Args:
        device: Canonical name of the device.
        batch: Largest batch whose memory interval fits whole and whose time keeps the bound; 0 where not even one
            sample does.
        batch_at_most: Largest batch whose memory interval does not rule it out (bound on time kept).
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
        return _largest_part(self.prediction)

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON."""
        answer: dict[str, object] = {
            "device": self.device,
            "batch": self.batch,
            "batch_at_most": self.batch_at_most,
            "bound_by": self.bound_by,
            "largest_part": self.largest_part,
        }
        return answer | _price_entry(self.price) | {"prediction": self.prediction.to_dict()}


@overload
def fits(
    model: object,
    *,
    device: str | DeviceSpec | None = None,
    batch: int = 1,
    prices: Mapping[str, float] | None = None,
    framework: str | None = None,
    input: object = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    predictor: str | PathLike[str] | None = None,
) -> DeviceFit: ...


@overload
def fits(
    model: object,
    *,
    device: Devices | None = None,
    batch: Batches = 1,
    prices: Mapping[str, float] | None = None,
    framework: str | None = None,
    input: object = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    predictor: str | PathLike[str] | None = None,
) -> list[DeviceFit]: ...


def fits(
    model: object,
    *,
    device: Devices | None = None,
    batch: Batches = 1,
    prices: Mapping[str, float] | None = None,
    framework: str | None = None,
    input: object = None,  # noqa: A002 - the contract's name
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    predictor: str | PathLike[str] | None = None,
) -> DeviceFit | list[DeviceFit]:
    """Say whether a model fits devices or MIG slices (``"1g.5gb@A100-SXM4-40GB"``): yes, no or unsure.

    Args:
        model: As in :func:`dippm.predict`, and so are the others.
        device: A device, a MIG slice, or a list of them; an A100, or the device of the predictor, when left out.
        batch: Samples per call, or a list.
        prices: Price of a device per hour by its name, in any currency; some may be left out.
        framework: Framework of the file.
        input: Shapes of one sample.
        precision: Arithmetic.
        mode: ``inference``, or ``training``: one whole step.
        optimizer: What updates the weights in training; ``momentum`` when left out.
        accumulation: As in :func:`dippm.predict`.
        checkpointing: As in :func:`dippm.predict`.
        layout: Memory order of images.
        runtime: How kernels are launched.
        software: As in :func:`dippm.predict`.
        trust: Allow pickles.
        predictor: As in :func:`dippm.predict`: the folder's own device and conditions stand for what is left out. A
            network that :func:`dippm.train` wrote has intervals for models and batches like those of its labels.

    Returns:
        One answer for one device and one batch; else a list, all batches of the first device first. With prices the
        list is in the order in which to try: what fits first, then what may, then what does not; the cheapest per
        sample first among those, devices without a price last.

    Raises:
        UsageError: As :func:`dippm.predict`, or a price is wrong.
        UnsupportedError: As :func:`dippm.predict`; ``prediction.no_interval`` where the predictor gives no interval of
            the memory, ``device.unknown`` where the catalogue does not list its device.
        DippmError: As :func:`dippm.predict`.
    """
    batches = parse_batches(batch)
    chosen = choose_predictor(
        predictor,
        device=device,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulation=accumulation,
        checkpointing=checkpointing,
        layout=layout,
        runtime=runtime,
        software=software,
    )
    specs = chosen.devices
    per_hour = parse_prices(prices, specs)
    graph = load(model, framework=framework, input=input, trust=trust, mode=chosen.reading_mode, batch_hint=batches[0])
    predictions = chosen.predict(graph, batches=batches)
    owners = [spec for spec in specs for _ in batches]
    answers = [
        DeviceFit(
            device=spec.name,
            batch=prediction.batch,
            fit=judge(_memory_interval(prediction), spec.capacity_mb),
            prediction=prediction,
            price=Price.of(prediction, per_hour[spec.name]) if spec.name in per_hour else None,
        )
        for spec, prediction in zip(owners, predictions, strict=True)
    ]
    if _is_one(device, batch):
        return answers[0]
    if per_hour:
        answers.sort(key=lambda answer: (_ORDER[answer.verdict], _per_sample(answer.price)))
    return answers


@overload
def max_batch(  # type: ignore[overload-overlap]  # a str is a Sequence of str as well; the first overload wins
    model: object,
    *,
    device: str | DeviceSpec | None = None,
    latency_ms: float | None = None,
    step_time_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    framework: str | None = None,
    input: object = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    predictor: str | PathLike[str] | None = None,
) -> MaxBatch: ...


@overload
def max_batch(
    model: object,
    *,
    device: Sequence[str | DeviceSpec],
    latency_ms: float | None = None,
    step_time_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    framework: str | None = None,
    input: object = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    predictor: str | PathLike[str] | None = None,
) -> list[MaxBatch]: ...


def max_batch(
    model: object,
    *,
    device: Devices | None = None,
    latency_ms: float | None = None,
    step_time_ms: float | None = None,
    prices: Mapping[str, float] | None = None,
    framework: str | None = None,
    input: object = None,  # noqa: A002 - the contract's name
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    predictor: str | PathLike[str] | None = None,
) -> MaxBatch | list[MaxBatch]:
    """Find the largest batch that fits; the model is read once.

    Memory does not grow evenly with the batch, because the allocator works in segments: past the batch that a search
    by interpolation finds, larger ones are looked at, the nearest one by one and a sample of a fourth as many again.

    Args:
        model: As in :func:`dippm.predict`.
        device: A device, a MIG slice, or a list of them; an A100, or the device of the predictor, when left out.
        latency_ms: Bound on the predicted time of a call, in training of a step, ms, or None.
        step_time_ms: The same under training's own name; in training alone.
        prices: As in :func:`fits`, and so are the others.
        framework: Framework of the file.
        input: Shapes of one sample.
        precision: Arithmetic.
        mode: ``inference``, or ``training``: one whole step.
        optimizer: What updates the weights in training; ``momentum`` when left out.
        accumulation: As in :func:`dippm.predict`.
        checkpointing: As in :func:`dippm.predict`.
        layout: Memory order of images.
        runtime: How kernels are launched.
        software: As in :func:`dippm.predict`.
        trust: Allow pickles.
        predictor: Folder that :func:`dippm.adapt` wrote; its own device and conditions stand for what is left out.

    Returns:
        One answer for one device, else a list in the order of the devices; with prices the cheapest per sample first,
        then those without a price, then those where nothing fits.

    Raises:
        UnsupportedError: ``graph.fixed_batch`` where the model holds for one batch size only, ``predictor.unsuited``
            where the predictor is a network that :func:`dippm.train` wrote: its memory need not grow with the batch.
        UsageError: ``latency.invalid`` where a bound is not a positive number, ``latency.twice`` where both are given,
            ``step_time.unused`` outside training.
    """
    chosen = choose_predictor(
        predictor,
        device=device,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulation=accumulation,
        checkpointing=checkpointing,
        layout=layout,
        runtime=runtime,
        software=software,
    )
    asked = need_physics(chosen, because=_NO_SEARCH)
    bound_ms = _parse_bound(asked.conditions, latency_ms=latency_ms, step_time_ms=step_time_ms)
    per_hour = parse_prices(prices, asked.devices)
    graph = load(model, framework=framework, input=input, trust=trust, mode=asked.conditions.mode)
    if graph.fixed_batch is not None:
        raise UnsupportedError(
            f"'{graph.source}' holds for batch {graph.fixed_batch} only: {graph.fixed_batch_reason}",
            code="graph.fixed_batch",
            cure="Export the model with a dynamic batch.",
        )
    answers = [
        _search(graph, spec, asked, bound_ms=bound_ms, per_hour=per_hour.get(spec.name)) for spec in asked.devices
    ]
    if _is_one(device, 1):
        return answers[0]
    if per_hour:
        answers.sort(key=lambda answer: (answer.batch == 0, _per_sample(answer.price)))
    return answers


def _search(
    graph: Graph, spec: DeviceSpec, asked: ChosenPhysics, *, bound_ms: float | None, per_hour: float | None
) -> MaxBatch:
    on_device = replace(asked, devices=[spec])

    def predict(batches: Sequence[int]) -> list[Prediction]:
        return on_device.predict(graph, batches=batches)

    search = BatchSearch(predict, capacity_mb=spec.capacity_mb, time_bound_ms=bound_ms)
    batch = search.largest_certain()
    bound_by = "none"
    if batch < LARGEST_BATCH:
        of_time = "step_time" if asked.conditions.mode is Mode.TRAINING else "latency"
        bound_by = of_time if search.is_bound_by_time(batch) else "memory"
    (prediction,) = predict([max(batch, 1)])
    return MaxBatch(
        device=spec.name,
        batch=batch,
        batch_at_most=max(batch, search.largest_possible()),
        bound_by=bound_by,
        prediction=prediction,
        price=Price.of(prediction, per_hour) if per_hour is not None and batch else None,
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
    if bound_ms is not None and not (math.isfinite(bound_ms) and bound_ms > 0):
        name = "latency" if step_time_ms is None else "step-time"
        raise UsageError(f"A {name} bound must be above 0 ms. Got {bound_ms!r} instead.", code="latency.invalid")
    return bound_ms


def _memory_interval(prediction: Prediction) -> tuple[float, float]:
    """The memory from low to high.

    Raises:
        UnsupportedError: ``prediction.no_interval`` where the predictor gives none.
    """
    interval = prediction.intervals.get("memory_mb")
    if interval is None:
        lacking = "memory, as its labels had none" if prediction.memory_mb is None else "interval of the memory"
        raise UnsupportedError(
            f"Whether '{prediction.model.source}' fits at batch {prediction.batch} is not known: the predictor gives "
            f"no {lacking}. {' '.join(prediction.warnings)}".rstrip(),
            code="prediction.no_interval",
            cure="Leave the predictor out, or train it on labels with memory of models and batches like these.",
        )
    return interval


def _is_one(device: Devices | None, batch: Batches) -> bool:
    return (device is None or isinstance(device, str | DeviceSpec)) and not isinstance(batch, Iterable)


def _largest_part(prediction: Prediction) -> str:
    parts = prediction.memory_parts_mb
    return max(parts, key=lambda name: parts[name]) if parts else "unknown"


def _parts(prediction: Prediction) -> dict[str, float]:
    return {name: round_figures(value) for name, value in prediction.memory_parts_mb.items()}


def _per_sample(price: Price | None) -> float:
    return math.inf if price is None else price.per_sample


def _price_entry(price: Price | None) -> dict[str, object]:
    return {} if price is None else {"price": price.to_dict()}
