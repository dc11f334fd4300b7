"""The labels of one device that the shipped networks can be adapted to, and what of their time is the host's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.latency import launched_ms
from dippm.costs.rates import Rates
from dippm.costs.software import Software
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.datasets.disturbances import even_out_pace
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import load_label_graph
from dippm.datasets.selection import merge_repeats
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph
from dippm.measuring.configuration import Engine
from dippm.measuring.measurement import Outcome
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import Regime

__all__ = ["DeviceLabels", "choose_device", "choose_labels", "host_ms"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLabels:
    """Labels of one device.

    Args:
        by_regime: Labels that the networks of each regime cover, repeats merged.
        left_out: Why others are left out, and how many of them.
    """

    by_regime: dict[Regime, list[Label]]
    left_out: dict[str, int]

    @property
    def count_left_out(self) -> int:
        """How many are left out."""
        return sum(self.left_out.values())


def choose_device(labels: Iterable[Label], device: str | DeviceSpec | None) -> tuple[list[Label], DeviceSpec]:
    """The labels of one device, and its spec sheet.

    Args:
        labels: Labels of any devices.
        device: Its name or a part of it; None where all labels are of one; a :class:`~dippm.devices.DeviceSpec` where
            the catalogue does not know it.

    Raises:
        UsageError: ``labels.none`` where there are none of it or none at all, or ``labels.ambiguous`` where they are
            of several devices.
        UnsupportedError: ``device.unknown`` where the catalogue lacks it.
    """
    every = list(labels)
    if not every:
        raise UsageError(
            "There are no labels: the file or store holds no row.",
            code="labels.none",
            cure="Measure some with `dippm dataset measure`, or name another file.",
        )
    present = sorted({label.measurement.device for label in every})
    if isinstance(device, DeviceSpec):
        known = {name.casefold() for name in (device.name, *device.aliases)}
        names = [name for name in present if name.casefold() in known]
        wanted, cure = (
            device.name,
            "Write the name that the labels give as the name of the device file, or as an alias.",
        )
    else:
        wanted, cure = device or "", "Name the device."
        names = [name for name in present if name.casefold() == wanted.casefold()]
        names = names or [name for name in present if wanted.casefold() in name.casefold()]
    if not names:
        raise UsageError(
            f"No label is of {wanted}. The labels are of {', '.join(present)}.",
            code="labels.none",
            cure=cure,
        )
    if len(names) > 1 and not isinstance(device, DeviceSpec):
        raise UsageError(
            f"The labels are of {len(names)} devices: {', '.join(names)}. A predictor is adapted to one.",
            code="labels.ambiguous",
            cure="Name the device with --device.",
        )
    spec = device if isinstance(device, DeviceSpec) else _find_card(names[0])
    return [label for label in every if label.measurement.device in names], spec


def _find_card(name: str) -> DeviceSpec:
    try:
        return find_device(name)
    except UnsupportedError as exc:
        raise UnsupportedError(
            f"The labels are of '{name}', which is no GPU that the catalogue knows.",
            code="device.unknown",
            cure="Describe a GPU with --device-file; the shipped networks cannot be adapted to a CPU.",
        ) from exc


def choose_labels(labels: Iterable[Label], device: DeviceSpec, shipped: AdditivePredictor) -> DeviceLabels:
    """The labels of a device that the shipped networks cover.

    Args:
        labels: Its labels.
        device: The device.
        shipped: The shipped networks.
    """
    left_out: Counter[str] = Counter()
    groups: dict[tuple[Regime, Conditions, str], list[Label]] = defaultdict(list)
    for label in labels:
        conditions = label.configuration.conditions
        networks = shipped.on(device, conditions, software_of(label.measurement.software.framework))
        reason = _why_not(label, device, networks)
        if reason:
            left_out[reason] += 1
        else:
            groups[networks.artefact(conditions).regime, conditions, label.source].append(label)
    by_regime: dict[Regime, list[Label]] = defaultdict(list)
    for (regime, _, _), members in groups.items():
        by_regime[regime] += merge_repeats(even_out_pace(members))
    return DeviceLabels(by_regime=dict(by_regime), left_out=dict(left_out))


def host_ms(labels: Sequence[Label], cache: GraphCache, rates: Rates) -> FloatArray:
    """Time by which the host has launched all of each label's operators, ms; 0 where the graph is missing.

    Args:
        labels: Labels.
        cache: Their graphs.
        rates: Rates of the host.

    Shapes:
        result: [len(labels)].
    """
    result = np.zeros(len(labels))
    plans: dict[tuple[str, str, Conditions, str], KernelPlan] = {}
    for place, label in enumerate(labels):
        cached = load_label_graph(label, cache)
        if cached is None:
            continue
        conditions, framework = label.configuration.conditions, label.measurement.software.framework
        key = (label.recipe.model_key, cached.fingerprint, conditions, framework)
        if key not in plans:
            plans[key] = _kernel_plan(as_measured(cached.graph, label), conditions, software_of(framework))
        result[place] = launched_ms(plans[key], conditions, rates)[-1]
    return result


def _why_not(label: Label, device: DeviceSpec, networks: AdditivePredictor) -> str:
    """Why a label teaches the networks that answer for it nothing, ``""`` where it does."""
    conditions, context_mb = label.configuration.conditions, label.measurement.context_mb
    if label.measurement.outcome is not Outcome.OK or not label.measurement.is_timed:
        return "did not end well"
    if label.configuration.engine is not Engine.TORCH:
        return f"run by {label.configuration.engine.value}"
    is_learned = conditions.runtime is not Runtime.CUDA_GRAPH or networks.knows_captured(conditions)
    if not is_learned or not networks.covers(device, conditions):
        return f"no network for {conditions.mode}, {conditions.precision}, {conditions.layout}, {conditions.runtime}"
    if context_mb is not None and not 0.0 <= context_mb < device.memory_mb:
        return "its context is larger than the device's memory, or no number"
    return ""


def _kernel_plan(graph: Graph, conditions: Conditions, software: Software) -> KernelPlan:
    if conditions.mode is Mode.INFERENCE:
        work = Workload.from_graph(graph, conditions.precision, keeps_casts=software.keeps_casts)
        return KernelPlan.from_workload(work, software=software)
    settings = TrainingSettings(optimizer=conditions.optimizer or Optimizer.MOMENTUM, precision=conditions.precision)
    step = make_training_graph(graph, settings)
    return KernelPlan.from_workload(
        Workload.from_graph(step.graph, step.precision),
        is_backward=step.phase == Phase.BACKWARD,
        software=software,
    )
