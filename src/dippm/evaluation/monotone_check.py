"""Whether more work ever gets cheaper, and whether a better device ever gets slower.

What the default predictor answers for a model is compared with what it answers for twice the batch, twice the side of
the image, twice the blocks, and on a device whose data sheet is better. Nothing is measured: physics alone says which
of two answers must be the larger one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.devices import DeviceSpec, find_device
from dippm.evaluation.better_devices import Improvement, dominating_pairs, improve
from dippm.graph import Graph
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

__all__ = [
    "BATCHES",
    "FEW_BATCHES",
    "SETTINGS",
    "Check",
    "Fall",
    "Figure",
    "Setting",
    "Side",
    "Tallies",
    "Tally",
    "Variant",
    "check_devices",
    "check_work",
    "explain_fall",
]

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Batches, each twice the one before."""

FEW_BATCHES = (1, 16, 256)
"""Batches at which images, blocks and devices are compared."""

# Sums of the same parts in another order differ by so much.
_ROUNDING = 1e-9
_CLEAR = 0.01


class Check(StrEnum):
    """What is doubled or made better."""

    BATCH = "batch doubled"
    IMAGE = "image side doubled"
    DEPTH = "blocks doubled"
    ALL_FIGURES = "every figure better"
    ONE_FIGURE = "one figure better"
    CARD = "better card"


class Figure(StrEnum):
    """What must not fall."""

    TIME = "time"
    MEMORY = "memory"
    LIVE = "live peak"


class Variant(StrEnum):
    """Which of a model's graphs."""

    BASE = "base"
    LARGER = "larger image"
    DEEPER = "more blocks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A device and conditions.

    Args:
        device: The device.
        conditions: Precision, mode and what else a prediction holds for.
    """

    device: DeviceSpec
    conditions: Conditions


def _setting(device: str, precision: Precision, mode: Mode) -> Setting:
    optimizer = Optimizer.MOMENTUM if mode is Mode.TRAINING else None
    conditions = Conditions(precision=precision, mode=mode, optimizer=optimizer)
    return Setting(device=find_device(device), conditions=conditions)


SETTINGS: tuple[Setting, ...] = tuple(
    _setting(device, precision, mode)
    for mode in Mode
    for device, precision in (
        ("GeForce RTX 3090", Precision.AMP),
        ("A100-SXM4-40GB", Precision.AMP),
        ("H100 80GB HBM3", Precision.AMP),
        ("A100-SXM4-40GB", Precision.FP32),
    )
)
"""Networks correct the times in amp, on the first device as trained; in FP32 they are plain sums."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison.

    Args:
        variant: Which graph of the model.
        batch: Batch.
        device: Device.
    """

    variant: Variant
    batch: int
    device: DeviceSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """A comparison that came out on the wrong side.

    Args:
        check: What was doubled or made better.
        figure: What fell, or rose where a device is better.
        model: Name of the model.
        conditions: Precision and mode.
        before: The side with less work, or the worse device.
        after: The other side.
        step: What changed between them, in words.
        value: The figure before, ms or MiB.
        change: Change of the figure as a share.
    """

    check: Check
    figure: Figure
    model: str
    conditions: Conditions
    before: Side
    after: Side
    step: str
    value: float
    change: float


@dataclass(kw_only=True, slots=True)
class Tally:
    """Comparisons of one kind.

    Args:
        pairs: How many.
        falls: Those on the wrong side by more than rounding.
    """

    pairs: int = 0
    falls: list[Fall] = field(default_factory=list)

    @property
    def clear(self) -> int:
        """Falls of more than one percent."""
        return sum(abs(fall.change) > _CLEAR for fall in self.falls)

    @property
    def worst(self) -> list[Fall]:
        """All falls, the largest first."""
        return sorted(self.falls, key=lambda fall: (-abs(fall.change), fall.model, fall.step, fall.before.batch))


class Tallies(dict[tuple[Check, Figure, str], Tally]):
    """Comparisons by check, figure and setting."""

    def add(
        self,
        check: Check,
        figure: Figure,
        setting: str,
        *,
        model: str,
        conditions: Conditions,
        step: str,
        before: Sequence[tuple[Side, float]],
        after: Sequence[tuple[Side, float]],
    ) -> None:
        """Compare values side by side: a better device must not take longer, more work must not take less.

        Args:
            check: What was doubled or made better.
            figure: What is compared.
            setting: Name of the device and the conditions.
            model: Name of the model.
            conditions: Precision and mode.
            step: What changes between the sides, in words.
            before: Sides with less work, or of the worse device, with their values.
            after: The others, in the same order.
        """
        tally = self.setdefault((check, figure, setting), Tally())
        wrong = 1.0 if check in _OF_DEVICES else -1.0
        for (first, value), (second, other) in zip(before, after, strict=True):
            change = other / value - 1.0
            tally.pairs += 1
            if wrong * change > _ROUNDING:
                tally.falls.append(
                    Fall(
                        check=check,
                        figure=figure,
                        model=model,
                        conditions=conditions,
                        before=first,
                        after=second,
                        step=step,
                        value=value,
                        change=change,
                    )
                )


def check_work(
    predictor: PhysicsPredictor,
    model: str,
    graphs: Mapping[Variant, Graph],
    tallies: Tallies,
    *,
    settings: Sequence[Setting] = SETTINGS,
) -> None:
    """Compare a model with more batch, pixels and blocks.

    Args:
        predictor: Whose answers.
        model: Name of the model.
        graphs: Its graph, and those with a larger image and more blocks where there are such.
        tallies: What the comparisons are added to.
        settings: Devices and conditions.
    """
    for conditions, devices in _by_conditions(settings):
        answers = {
            variant: _predict(
                predictor, graph, variant, devices, conditions, BATCHES if variant is Variant.BASE else FEW_BATCHES
            )
            for variant, graph in graphs.items()
        }
        few = [BATCHES.index(batch) for batch in FEW_BATCHES]
        for place, device in enumerate(devices):
            setting = _name(device.name, conditions)
            for figure in Figure:
                base = answers[Variant.BASE][place][figure]
                comparisons = [(Check.BATCH, base[:-1], base[1:])]
                comparisons += [
                    (_CHECK_OF[variant], [base[index] for index in few], answers[variant][place][figure])
                    for variant in graphs
                    if variant in _CHECK_OF
                ]
                for check, before, after in comparisons:
                    tallies.add(
                        check,
                        figure,
                        setting,
                        model=model,
                        conditions=conditions,
                        step=check.value,
                        before=before,
                        after=after,
                    )


def check_devices(
    predictor: PhysicsPredictor,
    model: str,
    graph: Graph,
    tallies: Tallies,
    *,
    settings: Sequence[Setting] = SETTINGS,
    cards: Sequence[DeviceSpec] = (),
) -> None:
    """Compare devices with better ones.

    Args:
        predictor: Whose answers.
        model: Name of the model.
        graph: Its graph.
        tallies: What the comparisons are added to.
        settings: Devices of which figures are made better, and conditions.
        cards: Devices of which every pair is compared where one is better than the other in every figure.
    """
    for conditions, devices in _by_conditions(settings):
        pairs = [
            (
                Check.ALL_FIGURES if what is Improvement.ALL else Check.ONE_FIGURE,
                _name(device.name, conditions),
                f"{what} better",
                device,
                improve(device, what),
            )
            for device in devices
            for what in Improvement
        ]
        pairs += [
            (Check.CARD, _name("all cards", conditions), f"{worse.name} → {better.name}", worse, better)
            for worse, better in dominating_pairs(cards)
        ]
        # A device and its better self have one name, and specs have no hash of their peaks: told apart as objects.
        every = {id(device): device for pair in pairs for device in pair[3:]}
        answers = _predict(predictor, graph, Variant.BASE, [*every.values()], conditions, FEW_BATCHES)
        of_device = dict(zip(every, answers, strict=True))
        for check, setting, step, worse, better in pairs:
            tallies.add(
                check,
                Figure.TIME,
                setting,
                model=model,
                conditions=conditions,
                step=step,
                before=of_device[id(worse)][Figure.TIME],
                after=of_device[id(better)][Figure.TIME],
            )


def explain_fall(predictor: PhysicsPredictor, fall: Fall, graphs: Mapping[Variant, Graph]) -> str:
    """What moved most in the wrong direction: the kind of operator, or the part of the memory.

    Args:
        predictor: Whose answers.
        fall: The comparison.
        graphs: The model's graphs.
    """
    sums: list[dict[str, float]] = []
    for side in (fall.before, fall.after):
        explained = predictor.explain(
            graphs[side.variant], batch=side.batch, device=side.device, conditions=fall.conditions
        )
        parts: dict[str, float] = defaultdict(float)
        if fall.figure is Figure.TIME:
            for node, time_ms in zip(explained.graph.nodes, explained.time_ms.tolist(), strict=True):
                parts[node.kind.value] += time_ms
        else:
            parts.update(explained.prediction.memory_parts_mb)
        sums.append(parts)
    before, after = sums
    wrong = 1.0 if fall.change > 0.0 else -1.0
    name = max({*before, *after}, key=lambda part: wrong * (after.get(part, 0.0) - before.get(part, 0.0)))
    unit = "ms" if fall.figure is Figure.TIME else "MiB"
    return f"{name} {after.get(name, 0.0) - before.get(name, 0.0):+.3g} {unit}"


_OF_DEVICES = frozenset({Check.ALL_FIGURES, Check.ONE_FIGURE, Check.CARD})
_CHECK_OF = {Variant.LARGER: Check.IMAGE, Variant.DEEPER: Check.DEPTH}


def _name(device: str, conditions: Conditions) -> str:
    return f"{device}, {conditions.precision}, {conditions.mode}"


def _by_conditions(settings: Iterable[Setting]) -> list[tuple[Conditions, list[DeviceSpec]]]:
    """Devices that are asked for under the same conditions, so that a graph is laid out once for them."""
    groups: dict[Conditions, list[DeviceSpec]] = defaultdict(list)
    for setting in settings:
        groups[setting.conditions].append(setting.device)
    return [*groups.items()]


def _predict(
    predictor: PhysicsPredictor,
    graph: Graph,
    variant: Variant,
    devices: Sequence[DeviceSpec],
    conditions: Conditions,
    batches: Sequence[int],
) -> list[dict[Figure, list[tuple[Side, float]]]]:
    """Figures at each batch, one mapping per device."""
    predictions = predictor.predict(graph, batches=batches, devices=devices, conditions=conditions)
    result = []
    for place, device in enumerate(devices):
        own = predictions[place * len(batches) : (place + 1) * len(batches)]
        sides = [Side(variant=variant, batch=each.batch, device=device) for each in own]
        result.append({figure: [*zip(sides, map(_READ[figure], own), strict=True)] for figure in Figure})
    return result


def _live_mb(prediction: Prediction) -> float:
    return sum(mb for name, mb in prediction.memory_parts_mb.items() if name not in ("context", "slack"))


_READ: Mapping[Figure, Callable[[Prediction], float]] = {
    Figure.TIME: lambda prediction: prediction.latency_ms,
    Figure.MEMORY: lambda prediction: sum(prediction.memory_parts_mb.values()),
    Figure.LIVE: _live_mb,
}
