"""The time of graphs by what knows it best: the sum of kernel times, networks that correct it, or a mean of both.

No operator takes less than the device's data sheet allows, and weights in few bits are unpacked on top of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from dippm.costs.calls import sum_by_call
from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel
from dippm.costs.latency import LatencyBreakdown, break_down_each, launched_ms
from dippm.costs.precision import Arithmetic, Precision, autocast_type, whole_model_type
from dippm.costs.rates import Rates
from dippm.devices import DeviceSpec
from dippm.features.physical import PhysicalPlan, PhysicalSamples
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.calibration import Calibration
from dippm.predictors.compiled_steps import time_compiled_steps
from dippm.predictors.least_times import (
    SMALL_MS,
    least_ms,
    likely_least_ms,
    most_small_ms,
    one_by_one_ms,
    small_kernels_ms,
)
from dippm.predictors.other_arithmetic import exchange_others
from dippm.predictors.prepared_graph import PreparedGraphs
from dippm.predictors.pure_half import mix_by_novelty

__all__ = ["BestTimes"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BestTimes:
    """What times are made of.

    Args:
        calibrations: Coefficients and errors of the sum, by mode.
        kernels: Learned kernel times.
        additive: Networks that correct the time of each operator where they were trained.
    """

    calibrations: Mapping[Mode, Calibration]
    kernels: KernelModel
    additive: AdditivePredictor

    def break_down(self, prepared: PreparedGraphs, devices: Sequence[DeviceSpec]) -> list[LatencyBreakdown]:
        """On each device the time of all graphs side by side, for no operator less than the data sheet allows.

        Args:
            prepared: The graphs.
            devices: The devices.
        """
        better = _BetterCards()
        cards = [_Card(known=self, prepared=prepared, device=device, better=better) for device in devices]
        return [
            card.with_packed_weights(card.held_to_device(times))
            for card, times in zip(cards, self._time(prepared, cards), strict=True)
        ]

    def _time(self, prepared: PreparedGraphs, cards: Sequence[_Card]) -> list[list[LatencyBreakdown]]:
        """On each card the time of each graph, by what knows it best."""
        if prepared.compiled.eager is not None:
            return time_compiled_steps(
                prepared,
                [card.device for card in cards],
                rates=self.calibrations[prepared.conditions.mode].rates,
                kernels=self.kernels,
                networks=self.additive,
            )
        of_ways = {precision: self._time_way(prepared, cards, way) for precision, way in prepared.as_run.items()}
        return [
            [of_ways[member.runs_in][number][place] for place, member in enumerate(prepared.compiled.members)]
            for number in range(len(cards))
        ]

    def _time_way(
        self, prepared: PreparedGraphs, cards: Sequence[_Card], conditions: Conditions
    ) -> list[list[LatencyBreakdown]]:
        """The same where all graphs are run in the precision of some conditions."""
        is_covered = [card.networks(conditions).covers(card.device, conditions) for card in cards]
        summed = break_down_each(
            prepared.compiled.plan,
            prepared.at,
            devices=[card.device for card, covered in zip(cards, is_covered, strict=True) if not covered],
            conditions=conditions,
            rates=self.calibrations[conditions.mode].rates,
            kernels=self.kernels,
            times=prepared.compiled.times,
        )
        others = iter(summed)
        return [
            card.corrected(conditions) if covered else card.corrected_where_alike(conditions, next(others))
            for card, covered in zip(cards, is_covered, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _BetterCards:
    """What is known of graphs on cards that are better than others, for all devices that are held to them.

    Args:
        read: What networks will read, worked out beside what they read of a device.
        node_ms: What each node takes when it runs once.
    """

    read: dict[tuple[DeviceSpec, Conditions], PhysicalSamples] = field(default_factory=dict)
    node_ms: dict[tuple[DeviceSpec, Conditions], FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Card:
    """Graphs on one device.

    Args:
        known: What times are made of.
        prepared: The graphs.
        device: The device.
        better: What is known of better cards.
    """

    known: BestTimes
    prepared: PreparedGraphs
    device: DeviceSpec
    better: _BetterCards

    def networks(self, conditions: Conditions) -> AdditivePredictor:
        """The networks that answer for the device."""
        return self.known.additive.on(self.device, conditions, self.prepared.compiled.plan)

    @cached_property
    def host(self) -> Rates:
        """Rates of the host of such a device."""
        return self.known.calibrations[self.prepared.conditions.mode].rates.host_on(self.device)

    @cached_property
    def limits(self) -> _Limits:
        """What no node of the graphs is faster than."""
        prepared, device = self.prepared, self.device
        if prepared.compiled.eager is not None:
            # The corrections of a compiled step are of many kernels alike, and leave single ones too short.
            least = prepared.weights.least_ms(device)
            return _Limits(likely=least, least=least, most=None)
        least = least_ms(prepared, device)
        likely = np.maximum(least, likely_least_ms(prepared, device, self.host))
        likely = np.maximum(likely, prepared.weights.likely_ms(device))
        most = None
        if self.prepared.conditions.runtime is not Runtime.COMPILE:
            if not self._knows_kernels:
                likely = np.maximum(likely, one_by_one_ms(prepared, device, self.host, least=least))
            most = self._hold_to_better_card(likely)
        return _Limits(likely=likely, least=least, most=most)

    @property
    def _knows_kernels(self) -> bool:
        """Whether networks learned of kernels on a card of such an architecture."""
        conditions = self.prepared.conditions
        return self.networks(conditions).knows_architecture(self.device, conditions)

    def _is_held(self, conditions: Conditions) -> bool:
        """Whether a better card with networks of its own knows more of kernels in a precision than what answers."""
        here = self.networks(conditions)
        if conditions.runtime is Runtime.CUDA_GRAPH:
            return not here.knows_captured(conditions)
        is_near = here.covers(self.device, conditions) or here.is_near(self.device, conditions)
        return is_near and not self._knows_kernels

    def _held_to(self, conditions: Conditions) -> tuple[AdditivePredictor, DeviceSpec] | None:
        """The better card that tells what nodes take at least, and its networks; None where none does."""
        compiled = self.prepared.compiled
        if compiled.eager is not None or conditions.runtime is Runtime.COMPILE:
            return None
        if conditions not in self.prepared.as_run.values():
            return None
        better = self.known.additive.of_better_card(self.device, conditions, compiled.plan)
        return better if better is not None and self._is_held(conditions) else None

    def _node_ms(self, networks: AdditivePredictor, card: DeviceSpec, conditions: Conditions) -> FloatArray:
        """What each node takes on a better card when it runs once, ms, [B, n_nodes]."""
        key, of_cards = (card, conditions), self.better
        if key not in of_cards.node_ms:
            physical, at = self.prepared.compiled.physical, self.prepared.at
            read = of_cards.read.pop(key, None)
            of_cards.node_ms[key] = networks.time_nodes(physical, at, card, conditions, read=read)
        return of_cards.node_ms[key]

    def _hold_to_better_card(self, likely: FloatArray) -> FloatArray | None:
        """Let no node be said to be faster than on a card that is better in every figure and has networks of its own.

        In eager calls that is asked where the networks that answer never saw a card of the architecture. Of captured
        ones only the better card's networks know: there it holds for everything that says less of them, and of cards
        whose kernels are known from eager calls for small kernels, which hide behind the host in these.

        It does not hold for matrix products that read more weights than anything else: networks of one architecture saw
        few layers of as many weights as VGG has, and data sheets tell what they take.

        Args:
            likely: What each node is likely to take at least when it runs once, ms; changed in place.

        Returns:
            What small kernels take at most in a captured graph, see
            :func:`~dippm.predictors.least_times.most_small_ms`; None in eager calls.

        Shapes:
            likely and result: [B, n_nodes].
        """
        prepared, device = self.prepared, self.device
        compiled, product = prepared.compiled, prepared.compiled.plan.work.gemm.table.node
        reads_weights = prepared.weights.bytes_of_nodes[:, product] > 0.5 * prepared.node_bytes[:, product]
        of_products = likely[:, product]
        most = np.full_like(likely, np.inf) if prepared.conditions.runtime is Runtime.CUDA_GRAPH else None
        for precision, conditions in prepared.as_run.items():
            better = self._held_to(conditions)
            if better is None:
                continue
            networks, card = better
            known = self._node_ms(networks, card, conditions)
            least = np.minimum(known, SMALL_MS) if self._knows_kernels else known
            is_run_so = compiled.times > 0.0
            for member in compiled.members:
                if member.runs_in is not precision:
                    is_run_so[member.nodes] = False
            np.maximum(likely, np.where(is_run_so, least, 0.0), out=likely)
            if most is not None:
                most = np.where(is_run_so, most_small_ms(prepared, known, card, device), most)
        likely[:, product] = np.where(reads_weights, of_products, likely[:, product])
        return most

    def launched_ms(self, conditions: Conditions | None = None, more_us: FloatArray | float = 0.0) -> FloatArray:
        """When the host has launched each node of each graph, ms.

        Args:
            conditions: Other conditions than those of the run.
            more_us: What each node takes beside its usual launch, microseconds.
        """
        prepared = self.prepared
        return launched_ms(prepared.compiled.plan, conditions or prepared.conditions, self.host, more_us=more_us)

    def held_to_device(self, breakdowns: Sequence[LatencyBreakdown]) -> LatencyBreakdown:
        """The time of all graphs where no operator is faster than it is likely to be, nor any interval than it can."""
        times = self.prepared.compiled.times
        result = LatencyBreakdown.joined(breakdowns, times, self.launched_ms)
        if self.prepared.conditions.runtime is Runtime.CUDA_GRAPH:
            result = self._with_small_kernels(result)
            if self.limits.most is not None:
                result = result.at_most(self.limits.most, times, self.launched_ms)
        for bound in self.limits.in_turn:
            result = result.at_least(bound, times, self.launched_ms)
        return result

    def _with_small_kernels(self, breakdown: LatencyBreakdown) -> LatencyBreakdown:
        """Captured graphs whose kernels take no less than small ones do, and together no longer than in eager calls."""
        prepared, times, start = self.prepared, self.prepared.compiled.times, breakdown.start
        once = breakdown.once_ms(times)
        more = np.maximum(small_kernels_ms(prepared) - once, 0.0)
        added = sum_by_call(more * times, start)
        launch = partial(self.launched_ms, replace(prepared.conditions, runtime=Runtime.EAGER))
        waited = LatencyBreakdown.of(once, launch, times, start=start).latency_ms
        room = np.maximum(waited - breakdown.latency_ms, 0.0)
        share = np.minimum(np.divide(room, added, out=np.ones_like(added), where=added > 0.0), 1.0)
        return breakdown.with_busy(once + breakdown.for_nodes(share) * more, times, self.launched_ms)

    def _at_least(self, bound: FloatArray, breakdowns: Sequence[LatencyBreakdown]) -> list[LatencyBreakdown]:
        """The time of each graph where no node takes less than so long when it runs once; bound: [B, n_nodes]."""
        compiled = self.prepared.compiled
        return [
            breakdown.at_least(
                bound[:, member.nodes],
                compiled.times[member.nodes],
                partial(launched_ms, compiled.plan, self.prepared.conditions, self.host, nodes=member.nodes),
            )
            for member, breakdown in zip(compiled.members, breakdowns, strict=True)
        ]

    def with_packed_weights(self, breakdown: LatencyBreakdown) -> LatencyBreakdown:
        """The time with what unpacking weights and launching by Python code of a library's own take beside."""
        packed, times = self.prepared.packed, self.prepared.compiled.times
        if packed is None:
            return breakdown
        launch = partial(self.launched_ms, more_us=packed.more_host_us())
        return breakdown.with_busy(packed.slowed_ms(breakdown.once_ms(times), self.device), times, launch)

    def corrected(self, conditions: Conditions, physical: PhysicalPlan | None = None) -> list[LatencyBreakdown]:
        """The networks' time of the graphs, by their own kernels unless others are named."""
        networks, at, device, read = self.networks(conditions), self.prepared.at, self.device, None
        if physical is None:
            physical, better = self.prepared.compiled.physical, self._held_to(conditions)
            key = None if better is None else (better[1], conditions)
            if key in self.better.read or key in self.better.node_ms:
                better = key = None
            read, *others = networks.read_kernels(physical, at, device, conditions, better=better)
            if key is not None:
                (self.better.read[key],) = others
        return networks.break_down_kernels(physical, at, device, conditions, host=self.host, read=read)

    def corrected_where_alike(self, conditions: Conditions, summed: list[LatencyBreakdown]) -> list[LatencyBreakdown]:
        """The networks' time of graphs whose kernels they know by other conditions, and the sum's of others, [G]."""
        compiled = self.prepared.compiled
        is_near = self.networks(conditions).is_near(self.device, conditions)
        result = summed
        if compiled.in_fp32 is not None and conditions.precision is self.prepared.conditions.precision:
            result = self._from_fp32(compiled.in_fp32, conditions, summed, is_near=is_near)
        elif is_near:
            result = self._mixed(conditions, summed)
        elif conditions.layout is not Layout.NCHW and compiled.plan.is_turned.any():
            result = self._turned(conditions, summed)
        return self._with_own_autocast(conditions, result)

    def _turned(self, conditions: Conditions, summed: list[LatencyBreakdown]) -> list[LatencyBreakdown]:
        """The networks' time in NCHW of graphs that a compiler runs with channels last however they are called."""
        alike = replace(conditions, layout=Layout.NCHW)
        if self.networks(alike).covers(self.device, alike):
            by_networks = self.corrected(alike)
        elif self.networks(alike).is_near(self.device, alike):
            by_networks = self._mixed(alike, summed)
        else:
            return summed
        return [
            by_network if turned else by_sum
            for by_network, turned, by_sum in zip(
                by_networks, self.prepared.compiled.plan.is_turned, summed, strict=True
            )
        ]

    def _with_own_autocast(self, conditions: Conditions, result: list[LatencyBreakdown]) -> list[LatencyBreakdown]:
        """What runs in 16 bits because a model has autocast for it, by networks that know that; the rest as it is."""
        compiled, calibration = self.prepared.compiled, self.known.calibrations[conditions.mode]
        of_run = autocast_type(conditions.precision) or whole_model_type(conditions.precision)
        for precision, arithmetic in ((Precision.AMP, Arithmetic.FP16), (Precision.AMP_BF16, Arithmetic.BF16)):
            alike, lower = replace(conditions, precision=precision), autocast_type(precision)
            has_own = [lower in member.own_formats and lower is not of_run for member in compiled.members]
            if not any(has_own) or not self.networks(alike).covers(self.device, alike):
                continue
            joined = exchange_others(
                result,
                self.corrected(alike),
                compiled.plan,
                is_other=~compiled.plan.work.types.is_computed_in(arithmetic),
                is_faster=None,
                conditions=conditions,
                host=self.host,
                times=compiled.times,
                summed_half_width=calibration.latency_spread_elsewhere,
            )
            result = [own if is_own else kept for own, kept, is_own in zip(joined, result, has_own, strict=True)]
        return result

    def _mixed(self, conditions: Conditions, summed: list[LatencyBreakdown]) -> list[LatencyBreakdown]:
        """The mean of the networks' time and the sum's, by how unlike what they know each graph is."""
        calibration, compiled = self.known.calibrations[conditions.mode], self.prepared.compiled
        # What networks say is held to what is likely before the faster one is taken, and the sum is so anyhow.
        return mix_by_novelty(
            summed,
            self._at_least(self.limits.likely, self.corrected(conditions)),
            compiled.plan,
            conditions=conditions,
            host=self.host,
            times=compiled.times,
            known_half_width=self.networks(conditions).artefact(conditions).half_widths[-1],
            summed_half_width=calibration.latency_spread_elsewhere,
        )

    def _from_fp32(
        self, in_fp32: KernelPlan, conditions: Conditions, summed: list[LatencyBreakdown], *, is_near: bool
    ) -> list[LatencyBreakdown]:
        """What FP32 takes by what knows it best, but for nodes that run another kernel then."""
        calibration, compiled = self.known.calibrations[conditions.mode], self.prepared.compiled
        if is_near:
            in_full = self.corrected(conditions, compiled.physical_in_fp32)
        else:
            (in_full,) = break_down_each(
                in_fp32,
                self.prepared.at,
                devices=[self.device],
                conditions=conditions,
                rates=calibration.rates,
                kernels=self.known.kernels,
                times=compiled.times,
            )
        return exchange_others(
            summed,
            in_full,
            compiled.plan,
            is_other=in_fp32.arithmetic != compiled.plan.arithmetic,
            is_faster=conditions.precision is Precision.TF32,
            conditions=conditions,
            host=self.host,
            times=compiled.times,
            summed_half_width=calibration.latency_spread_elsewhere,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Limits:
    """What no node of some graphs is faster than on a device when it runs once, ms.

    Args:
        likely: What each is likely to take at least.
        least: What it can take at least, which holds intervals too.
        most: What it takes at most where that is known.

    Shapes:
        All: [B, n_nodes].
    """

    likely: FloatArray
    least: FloatArray
    most: FloatArray | None

    @property
    def in_turn(self) -> tuple[FloatArray, ...]:
        """Each of them once, what is likely first."""
        return (self.least,) if self.likely is self.least else (self.likely, self.least)
