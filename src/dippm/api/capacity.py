"""Does it fit, and how large may the batch be?"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from dippm.api.prediction import LARGEST_BATCH, load, parse_batches, parse_conditions, parse_devices
from dippm.costs.conditions import Conditions
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph
from dippm.placement.fit import Fit, FitVerdict
from dippm.placement.fit import fits as judge
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

__all__ = ["MaxBatch", "fits", "max_batch"]

# How far past the batch that bisection finds is looked: a fourth of it, at least so many.
_STRETCH = 4
# Of a longer stretch, so many batches next to it are looked at, and as many spread over the rest.
_CLOSELY = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxBatch:
    """The largest batch that fits, and what bounds it.

    Args:
        device: Canonical name of the device.
        batch: Largest batch whose memory interval fits whole and whose latency keeps the bound; 0 where not even
            one sample does.
        batch_at_most: Largest batch whose memory interval does not rule it out (latency bound kept).
        bound_by: ``"memory"``, ``"latency"``, or ``"none"`` where the largest batch tried still fits.
        prediction: The prediction at ``batch``, or at 1 where ``batch`` is 0.
    """

    device: str
    batch: int
    batch_at_most: int
    bound_by: str
    prediction: Prediction

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON."""
        return {
            "device": self.device,
            "batch": self.batch,
            "batch_at_most": self.batch_at_most,
            "bound_by": self.bound_by,
            "prediction": self.prediction.to_dict(),
        }


def fits(
    model: object,
    *,
    device: str | DeviceSpec,
    batch: int = 1,
    framework: str | None = None,
    input: object = None,  # noqa: A002 - the contract's name
    precision: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    trust: bool = False,
) -> Fit:
    """Say whether a model fits a device or a MIG slice (``"1g.5gb@A100-SXM4-40GB"``): yes, no or unsure.

    Arguments as in :func:`dippm.predict`.
    """
    conditions = parse_conditions(precision=precision, mode=mode, optimizer=optimizer, layout=layout, runtime=runtime)
    (size,) = parse_batches(batch, is_single=True)
    (spec,) = parse_devices(device, is_single=True)
    graph = load(model, framework=framework, input=input, trust=trust, batch_hint=size)
    prediction = _predict(graph, size, spec, conditions)
    return judge(prediction.intervals["memory_mb"], spec.capacity_mb)


def max_batch(
    model: object,
    *,
    device: str | DeviceSpec,
    latency_ms: float | None = None,
    framework: str | None = None,
    input: object = None,  # noqa: A002 - the contract's name
    precision: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    trust: bool = False,
) -> MaxBatch:
    """Find the largest batch that fits; the model is read once.

    Memory does not grow evenly with the batch, because the allocator works in segments: past the batch that bisection
    finds, larger ones are looked at until none of a whole stretch fits, all of the next thousand among them.

    Args:
        model: As in :func:`dippm.predict`.
        device: A device or a MIG slice.
        latency_ms: Bound on the predicted latency, ms, or None.
        framework: As in :func:`dippm.predict`, and so are the others.
        input: Shapes of one sample.
        precision: Arithmetic.
        mode: Inference.
        optimizer: None.
        layout: Memory order of images.
        runtime: How kernels are launched.
        trust: Allow pickles.

    Raises:
        UnsupportedError: ``graph.fixed_batch`` where the model holds for one batch size only.
        UsageError: ``latency.invalid`` where the bound is not a positive number.
    """
    conditions = parse_conditions(precision=precision, mode=mode, optimizer=optimizer, layout=layout, runtime=runtime)
    if latency_ms is not None and not (math.isfinite(latency_ms) and latency_ms > 0):
        raise UsageError(f"A latency bound must be above 0 ms. Got {latency_ms!r} instead.", code="latency.invalid")
    (spec,) = parse_devices(device, is_single=True)
    graph = load(model, framework=framework, input=input, trust=trust)
    if graph.fixed_batch is not None:
        raise UnsupportedError(
            f"'{graph.source}' holds for batch {graph.fixed_batch} only: {graph.fixed_batch_reason}",
            code="graph.fixed_batch",
            cure="Export the model with a dynamic batch.",
        )

    predictor = PhysicsPredictor.load()

    def judge_many(batches: Sequence[int]) -> list[tuple[FitVerdict, bool]]:
        try:
            predictions = predictor.predict(graph, batches=batches, devices=[spec], conditions=conditions)
        except UnsupportedError as exc:
            if exc.code != "graph.too_large":
                raise
            return [(FitVerdict.NO, True)] * len(batches)
        return [
            (
                judge(prediction.intervals["memory_mb"], spec.capacity_mb).verdict,
                latency_ms is None or prediction.latency_ms <= latency_ms,
            )
            for prediction in predictions
        ]

    def largest(accepted: Container[FitVerdict]) -> int:
        def holds(batch: int) -> bool:
            ((fit, in_time),) = judge_many([batch])
            return in_time and fit in accepted

        best = _largest(holds)
        while 0 < best < LARGEST_BATCH:
            stretch = _batches_beyond(best)
            further = [
                batch
                for batch, (fit, in_time) in zip(stretch, judge_many(stretch), strict=True)
                if in_time and fit in accepted
            ]
            if not further:
                break
            best = further[-1]
        return best

    batch = largest({FitVerdict.YES})
    bound_by = "none"
    if batch < LARGEST_BATCH:
        bound_by = "memory" if judge_many([batch + 1])[0][1] else "latency"
    return MaxBatch(
        device=spec.name,
        batch=batch,
        batch_at_most=max(batch, largest({FitVerdict.YES, FitVerdict.UNSURE})),
        bound_by=bound_by,
        prediction=_predict(graph, max(batch, 1), spec, conditions),
    )


def _largest(holds: Callable[[int], bool]) -> int:
    """Largest batch for which a condition holds that fails from some batch on: doubling, then bisection."""
    if not holds(1):
        return 0
    low = 1
    while low < LARGEST_BATCH and holds(min(2 * low, LARGEST_BATCH)):
        low = min(2 * low, LARGEST_BATCH)
    high = min(2 * low, LARGEST_BATCH + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _batches_beyond(batch: int) -> list[int]:
    """Larger batches to look at, in order: all of a stretch, or its beginning and a sample of its rest."""
    end = min(batch + max(batch // _STRETCH, _STRETCH), LARGEST_BATCH)
    near = min(batch + _CLOSELY, end)
    step = max((end - near) // _CLOSELY, 1)
    return [*range(batch + 1, near + 1), *range(near + step, end + 1, step)]


def _predict(graph: Graph, batch: int, device: DeviceSpec, conditions: Conditions) -> Prediction:
    (prediction,) = PhysicsPredictor.load().predict(graph, batches=[batch], devices=[device], conditions=conditions)
    return prediction
