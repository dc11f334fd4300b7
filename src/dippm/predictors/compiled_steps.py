"""Time of compiled training steps, of which no table was published: the eager step's, and what compiling saves of it.

What compiling saves is the difference of two sums of physics, of fused kernels and of the eager runtime's. Where
networks know the eager step under the same conditions, by what they change its sum is taken for the compiled step's as
well, so that the answers of both runtimes can be compared; of steps in pure 16 bits, which they know by autocast, where
it makes them faster. Products of matrices, fused attention among them, are what a compiler leaves as they are: they
have a factor of their own, all other operators another one. Convolutions share that of the others, of which networks
that learned from sums of images' steps cannot tell them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Layout, Runtime
from dippm.costs.device_time import busy_ms
from dippm.costs.kernels.model import KernelModel
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.rates import Rates
from dippm.devices import DeviceSpec
from dippm.graph import OpKind
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.prepared_graph import PreparedGraphs

__all__ = ["eager_conditions", "time_compiled_steps"]

FloatArray = npt.NDArray[np.float64]

_LEAST_MS = 1e-9
# Kernels of libraries that run alike in both runtimes. Settled on GPT-2 on twenty cards (data/published), 9 % off with
# factors of their own and 20 % without; were convolutions among them, image models would gain 17 % too much.
_PRODUCTS = frozenset({OpKind.LINEAR, OpKind.MATMUL, OpKind.ATTENTION, OpKind.ATTENTION_GRAD})


def eager_conditions(conditions: Conditions, *, is_turned: bool) -> Conditions:
    """Conditions of the eager run whose convolutions find their images as those of the compiled one do."""
    layout = Layout.NHWC if is_turned else conditions.layout
    return replace(conditions, runtime=Runtime.EAGER, layout=layout)


def time_compiled_steps(
    prepared: PreparedGraphs,
    devices: Sequence[DeviceSpec],
    *,
    rates: Rates,
    kernels: KernelModel,
    networks: AdditivePredictor,
) -> list[list[LatencyBreakdown]]:
    """Of each device the time of each graph.

    Args:
        prepared: Compiled training steps.
        devices: The devices.
        rates: Rates of the plain sum of a training step, the host's among them.
        kernels: Learned kernel times.
        networks: What corrects eager steps where it was trained on such. Those of single architectures are not asked:
            a compiler splits what eager kernels give one block, such as the channels of a batch norm.
    """
    compiled, conditions = prepared.compiled, prepared.conditions
    busy = busy_ms(compiled.plan, prepared.at, devices=devices, conditions=conditions, rates=rates, kernels=kernels)
    ways = [
        eager_conditions(replace(conditions, precision=member.runs_in), is_turned=bool(is_turned))
        for member, is_turned in zip(compiled.members, compiled.plan.is_turned, strict=True)
    ]
    for own, device in zip(busy, devices, strict=True):
        for eager in dict.fromkeys(ways):
            is_covered = networks.covers(device, eager)
            if not is_covered and not networks.is_near(device, eager):
                continue
            # Of eager steps in pure 16 bits the faster of both is taken (pure_half.py).
            correction = _correction(
                prepared, device, eager, rates=rates, kernels=kernels, networks=networks, is_faster_taken=not is_covered
            )
            for member, way in zip(compiled.members, ways, strict=True):
                if way == eager:
                    own[:, member.nodes] *= correction[:, member.nodes]
    return [
        LatencyBreakdown.of_each(
            own, compiled.plan, conditions=conditions, host=rates.host_on(device), times=compiled.times
        )
        for own, device in zip(busy, devices, strict=True)
    ]


def _correction(
    prepared: PreparedGraphs,
    device: DeviceSpec,
    conditions: Conditions,
    *,
    rates: Rates,
    kernels: KernelModel,
    networks: AdditivePredictor,
    is_faster_taken: bool,
) -> FloatArray:
    """By what the networks change the device's time of both parts of the eager step of each graph, [B, n_nodes].

    Conditions are those of the eager step. Where the faster of both is taken, only steps are changed that are faster by
    the networks than by the plain sum.
    """
    compiled = prepared.compiled
    plan = compiled.eager or compiled.plan
    at = plan.work.at(list(prepared.batches))
    # What the networks correct is the sum of other cards' rates. The blocks of a batch norm are no part of it here, so
    # that compiling saves nothing of them: published steps of images gain no more (docs/reports/compiled_steps.md).
    rates = replace(rates, measured={}, batch_norm_cycles=0.0)
    (summed,) = busy_ms(plan, at, devices=[device], conditions=conditions, rates=rates, kernels=kernels)
    corrected = networks.time_nodes(compiled.physical, at, device, conditions)
    is_product = plan.work.sizes.is_kind(*_PRODUCTS)
    result: FloatArray = np.ones_like(summed)
    both = summed * compiled.times, corrected * compiled.times
    for member in compiled.members:
        whole, whole_own = (each[:, member.nodes].sum(axis=1) for each in both)
        is_changed = whole_own < whole if is_faster_taken else True
        for part in (is_product[member.nodes], ~is_product[member.nodes]):
            nodes = member.nodes.start + np.flatnonzero(part)
            total, own = (each[:, nodes].sum(axis=1) for each in both)
            factor = np.divide(own, total, out=np.ones_like(total), where=is_changed & (total > _LEAST_MS))
            result[:, nodes] = factor[:, None]
    return result
