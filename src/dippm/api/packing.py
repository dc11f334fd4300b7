"""Which GPUs and MIG slices do these models need together?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Unpack

from dippm.api.arguments import Devices, parse_batches, parse_conditions, parse_devices, parse_software
from dippm.api.batched_reading import with_way_told
from dippm.api.loading import precision_to_read, read_format
from dippm.api.models_to_pack import ModelToPack, complete, name_models, question_of, source_of
from dippm.api.needed_memory import needed_of
from dippm.api.question import Options, Question, spelled_out
from dippm.costs.conditions import Conditions
from dippm.costs.software import Software
from dippm.devices import DeviceSpec, slice_device
from dippm.errors import UnsupportedError, UsageError, quote
from dippm.graph import Graph
from dippm.placement.packing import Demand, GpuKind, PackedGpu, PackedSlice, Packing, Place
from dippm.placement.packing import pack as place_demands
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction, format_figure, round_figures

__all__ = ["ModelPacking", "PackedModel", "device_of", "pack"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedModel:
    """One model of a packing.

    Args:
        name: What it is called.
        replicas: How many run at once.
        latency_ms: The bound on its time, or None.
        on_cards: Its prediction for each kind of whole card: the upper end of its memory is what a slice must hold.
        on_slices: Its predictions for what it was placed on, by the name of the device.
    """

    name: str
    replicas: int
    latency_ms: float | None
    on_cards: Mapping[str, Prediction]
    on_slices: Mapping[str, Prediction]

    @property
    def on_chosen_cards(self) -> list[Prediction]:
        """Its predictions for those whole cards that it, or a slice of it, was placed on."""
        return [
            prediction
            for card, prediction in self.on_cards.items()
            if any(name == card or name.endswith(f"@{card}") for name in self.on_slices)
        ]

    def to_dict(self) -> dict[str, object]:
        """The model for JSON."""
        first = next(iter(self.on_cards.values()))
        return {
            "name": self.name,
            "source": first.model.source,
            "batch": first.batch,
            "mode": first.conditions.mode.value,
            "precision": first.conditions.precision.value,
            "replicas": self.replicas,
            "latency_bound_ms": self.latency_ms,
            "needed_mb": {
                device: [round(end, 1) for end in needed_of(prediction)] for device, prediction in self.on_cards.items()
            },
            "latency_ms": {
                device: round_figures(prediction.latency_ms) for device, prediction in self.on_slices.items()
            },
            "warnings": list(dict.fromkeys(text for each in self.on_chosen_cards for text in each.warnings)),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPacking:
    """Where every replica of every model runs.

    Args:
        kinds: The GPUs that there were to choose from.
        models: The models in the order in which they were given.
        packing: The GPUs in use, with a proof that there is no better packing, or how much better one could be.
    """

    kinds: tuple[GpuKind, ...]
    models: tuple[PackedModel, ...]
    packing: Packing

    @property
    def gpus(self) -> tuple[PackedGpu, ...]:
        """The GPUs in use."""
        return self.packing.gpus

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no packing takes fewer GPUs, or as many and fewer compute slices."""
        return self.packing.is_optimal

    def device_of(self, gpu: PackedGpu, placed: PackedSlice) -> DeviceSpec:
        """The device that something was placed on: a slice, or the whole card."""
        return device_of(self.kinds, gpu.kind, placed.profile)

    def find(self, name: str) -> PackedModel:
        """The model that is called so."""
        return next(model for model in self.models if model.name == name)

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON."""
        return {
            "devices": [{"device": kind.device.name, "gpus": kind.count} for kind in self.kinds],
            "gpu_count": len(self.gpus),
            "gpu_count_at_least": self.packing.gpus_at_least,
            "compute_slices": self.packing.compute_slices,
            "compute_slices_at_least": self.packing.compute_slices_at_least,
            "optimal": self.is_optimal,
            "gpus": [self._gpu_entry(gpu) for gpu in self.gpus],
            "models": [model.to_dict() for model in self.models],
        }

    def _gpu_entry(self, gpu: PackedGpu) -> dict[str, object]:
        return {
            "device": gpu.device,
            "memory_slices": gpu.memory_slices,
            "free_compute_slices": gpu.free_compute_slices,
            "slices": [
                {
                    "profile": each.profile,
                    "start": each.start,
                    "memory_slices": each.memory_slices,
                    "compute_slices": each.compute_slices,
                    "capacity_mb": round(self.device_of(gpu, each).capacity_mb, 1),
                    "model": each.name,
                }
                for each in gpu.slices
            ],
        }


def device_of(kinds: Sequence[GpuKind], kind: int, profile: str | None) -> DeviceSpec:
    """The slice of a kind of GPU as a device, or the whole card."""
    card = kinds[kind].device
    return card if profile is None else slice_device(card, profile)


@spelled_out
def pack(
    models: Sequence[object],
    *,
    device: Devices = "A100",
    gpus: int | Sequence[int] | None = None,
    replicas: Mapping[str, int] | None = None,
    batch: int = 1,
    latency_ms: float | None = None,
    **options: Unpack[Options],
) -> ModelPacking:
    """Place models on the MIG slices of GPUs: on the fewest GPUs, of those packings on one with the fewest slices.

    A model may run on a slice that holds the upper end of what it needs, as predicted for the whole card, and on which
    it is predicted to keep its bound on time. A model that no slice holds takes a whole card without MIG. Every
    replica has a slice of its own.

    Args:
        models: The models, each as :func:`dippm.predict` takes it or a :class:`ModelToPack`.
        device: A kind of card, or a list of kinds.
        gpus: How many there are, in the order of the kinds; None for as many as are needed.
        replicas: Replicas by the name of a model, 1 for those left out.
        batch: Samples per call.
        latency_ms: Bound on the predicted time of a call, in training of a step, ms; None for none.
        **options: ``framework``, ``input``, ``weights``, ``precision``, ``mode``, ``optimizer``, ``accumulation``,
            ``checkpointing``, ``lora``, ``layout``, ``runtime``, ``software`` and ``trust``, as in
            :func:`dippm.predict`, for the models that do not say otherwise.

    Returns:
        The packing; the same for the same question. It is proved to be the best one, or says how much better one could
        be.

    Raises:
        UsageError: ``pack.models``, ``pack.name``, ``pack.replicas`` or ``pack.gpus`` where one of these is wrong,
            ``latency.invalid`` where a bound is not a positive number.
        UnsupportedError: ``pack.too_large`` where models run on none of the devices within their bounds,
            ``pack.no_room`` where the GPUs are too few.
        DippmError: As :func:`dippm.predict`.
    """
    specs = parse_devices(device)
    counts = _parse_gpus(gpus, specs)
    kinds = tuple(GpuKind(device=spec, count=count) for spec, count in zip(specs, counts, strict=True))
    question = Question(**options)
    asked = name_models(
        [complete(each, question, batch=batch, latency_ms=latency_ms) for each in models], replicas or {}
    )
    read = _Reader()
    trials = [_Trial.of(each, question_of(each, trust=question.trust), kinds, read=read) for each in asked]
    refused = [trial.refusal for trial in trials if not trial.places]
    if refused:
        raise UnsupportedError(
            f"{len(refused)} of {len(trials)} models run on none of {', '.join(spec.name for spec in specs)}: "
            f"{'; '.join(refused)}.",
            code="pack.too_large",
            cure="Take smaller batches, larger devices, or a wider bound on the time.",
        )
    packing = _place(trials, kinds)
    placed: dict[str, list[DeviceSpec]] = {trial.name: [] for trial in trials}
    for gpu in packing.gpus:
        for each in gpu.slices:
            spec = device_of(kinds, gpu.kind, each.profile)
            if spec not in placed[each.name]:
                placed[each.name].append(spec)
    return ModelPacking(kinds=kinds, packing=packing, models=tuple(trial.on(placed[trial.name]) for trial in trials))


class _Reader:
    """Reads models; one that comes several times is read once."""

    def __init__(self) -> None:
        self._read: dict[tuple[str | None, ...], Graph] = {}

    def __call__(self, model: object, question: Question, *, batch: int, mode: str) -> Graph:
        read_as = read_format(precision_to_read(question.precision, question.lora))
        key = (source_of(model), question.framework, repr(question.input), mode, read_as, question.weights)
        kept = self._read.get(key)
        # A graph may hold for the batch alone that it was read for, or be proved up to there.
        if kept is not None and kept.is_proved_for(batch) and kept.goes_so_at(batch):
            return kept
        graph = question.read(model, mode=mode, batch_hint=batch)
        if isinstance(model, str | PathLike):
            self._read[key] = graph
        return with_way_told(graph, batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A model, what it needs, and where it may run."""

    name: str
    replicas: int
    latency_ms: float | None
    batch: int
    graph: Graph
    conditions: Conditions
    software: Software
    on_cards: tuple[Prediction, ...]
    places: tuple[Place, ...]
    refusal: str

    @classmethod
    def of(cls, asked: ModelToPack, question: Question, kinds: Sequence[GpuKind], *, read: _Reader) -> _Trial:
        (batch,) = parse_batches(asked.batch, is_single=True)
        conditions = parse_conditions(**question.training_conditions, **question.named_conditions)
        software = parse_software(question.software, devices=[kind.device for kind in kinds])
        graph = read(asked.model, question, batch=batch, mode=conditions.mode.value)
        predictor = PhysicsPredictor.load()

        def predict(devices: Sequence[DeviceSpec]) -> list[Prediction]:
            return predictor.predict(graph, batches=[batch], devices=devices, conditions=conditions, software=software)

        on_cards = predict([kind.device for kind in kinds])
        needs = [needed_of(prediction)[1] for prediction in on_cards]
        holding = [
            Place(kind=number, profile=profile)
            for number, kind in enumerate(kinds)
            for profile in (*(each.name for each in kind.device.mig_profiles), None)
            if needs[number] <= device_of(kinds, number, profile).capacity_mb
        ]
        bound, places, fastest = asked.latency_ms, holding, math.inf
        if bound is not None and holding:
            times = [each.latency_ms for each in predict([device_of(kinds, p.kind, p.profile) for p in holding])]
            places = [place for place, time in zip(holding, times, strict=True) if time <= bound]
            fastest = min(times)
        refusal = (
            f"{asked.name} takes {format_figure(fastest)} ms at best, of {format_figure(bound)} ms"
            if holding and bound is not None
            else f"{asked.name} needs {', '.join(f'{need:,.0f}' for need in needs)} MiB of "
            f"{', '.join(f'{kind.device.capacity_mb:,.0f}' for kind in kinds)} MiB"
        )
        return cls(
            name=asked.name or "",
            replicas=asked.replicas or 1,
            latency_ms=bound,
            batch=batch,
            graph=graph,
            conditions=conditions,
            software=software,
            on_cards=tuple(on_cards),
            places=tuple(places),
            refusal=refusal,
        )

    def on(self, devices: Sequence[DeviceSpec]) -> PackedModel:
        """The model with its predictions for what it was placed on."""
        predictions = PhysicsPredictor.load().predict(
            self.graph, batches=[self.batch], devices=devices, conditions=self.conditions, software=self.software
        )
        return PackedModel(
            name=self.name,
            replicas=self.replicas,
            latency_ms=self.latency_ms,
            on_cards={each.device: each for each in self.on_cards},
            on_slices={each.device: each for each in predictions},
        )


def _place(trials: Sequence[_Trial], kinds: Sequence[GpuKind]) -> Packing:
    """The packing; where the GPUs of one kind are too few, the error says how many it takes."""
    demands = [Demand(name=trial.name, places=trial.places, replicas=trial.replicas) for trial in trials]
    try:
        return place_demands(demands, kinds)
    except UnsupportedError as exc:
        if exc.code != "pack.no_room" or len(kinds) > 1:
            raise
        least = place_demands(demands, [replace(kinds[0], count=None)]).gpus_at_least
        raise UnsupportedError(
            f"The models need {least} or more {kinds[0].device.name}. Got {kinds[0].count} instead.",
            code=exc.code,
            cure="Give more GPUs, or fewer models.",
        ) from exc


def _parse_gpus(gpus: int | Sequence[int] | None, specs: Sequence[DeviceSpec]) -> list[int | None]:
    slices = [spec.name for spec in specs if spec.is_mig_slice]
    if slices or len({spec.name for spec in specs}) < len(specs):
        raise UsageError(
            f"Models are packed on different whole cards. Got {', '.join(spec.name for spec in specs)} instead.",
            code="device.invalid",
        )
    if gpus is None:
        return [None for _ in specs]
    counts = [gpus] if isinstance(gpus, int) else list(gpus)
    if len(counts) != len(specs) or any(
        isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in counts
    ):
        raise UsageError(
            f"Give as many whole numbers of GPUs, 1 or more, as there are kinds of them ({len(specs)}). Got "
            f"{quote(gpus)} instead.",
            code="pack.gpus",
            cure="Leave the number out for as many as are needed.",
        )
    return list(counts)
