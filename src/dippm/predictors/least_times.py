"""What no operator can be faster than on a device, whatever rates and networks say.

That is its data sheet. Of 10,930 operators in 600 calls that were traced on an H200 and move more than its cache holds,
one is faster than what is said here, by 2 %; of 10,017 matrix products none, nor does any reach two thirds of it.

Kernels that are too small for a chip take what they take to start and to end. In a captured graph nothing hides that:
what each is likely to take there was read off traces on an H100 and an H200, and is taken for what it is on other
cards, none of which was traced. Networks that learned from eager calls, in which the host hides it, know nothing of it.

Products on tensor cores at the full rate of their architecture do not come near the sheet. What they are likely to
take at least is what the sum of kernel times says that such cores reach at the boost clock: networks that never saw a
product as large, or a card as fast, are held to it. Intervals are not, since a product may be faster.

So it is with concatenations, pooling and batch norms that go element by element, on architectures of which networks saw
no card: multiprocessors bind them there as well as memory, and cards whose memory is slow for their multiprocessors do
not tell that. Their cycles are those of traces on an H100 and an H200.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dippm.costs.captured_time import captured_us
from dippm.costs.device_sheets import reached_tflops
from dippm.costs.edges import IndexArray
from dippm.costs.extra_work import joins_ms, placed_ms, windows_ms
from dippm.costs.precision import Arithmetic
from dippm.costs.rates import Rates
from dippm.costs.tensor_rates import of_every_format, tensor_tflops
from dippm.devices import DeviceSpec
from dippm.graph import OpKind
from dippm.graph.codes import tabulate
from dippm.predictors.prepared_graph import PreparedGraphs
from dippm.units import BYTES_PER_MIB, GIGA, MILLI, TERA

__all__ = ["SMALL_MS", "least_ms", "likely_least_ms", "most_small_ms", "one_by_one_ms", "small_kernels_ms"]

FloatArray = npt.NDArray[np.float64]

SMALL_MS = 0.015
"""Nodes that take so long on a better card are said to take twice as many cycles at most, and those that take twice as
long five times as many, which no data sheet asks for. Some convolutions are three small kernels. Assumed."""

# The architecture whose kernels were traced.
_TRACED = "9.0"
# Boards clock higher than the boost of their data sheets: an RTX 4090 runs at 2.7 GHz for 2.52, an H200 at 1.98 for the
# 1.83 that its peak is of.
_ABOVE_BOOST = 1.1
# What a kernel takes that moves less than 0.2 MiB, microseconds: about the median of its kind on the faster of both
# cards, 29,600 in all; of linear layers in 16 bits and of attention, that of those below 2 MiB.
_LEAST_KERNEL_US = {
    OpKind.ATTENTION: 5.0, OpKind.LINEAR: 3.2, OpKind.LAYER_NORM: 3.0, OpKind.AVG_POOL: 3.0, OpKind.CONV: 2.9,
    OpKind.GATHER: 2.9, OpKind.GLOBAL_POOL: 2.8, OpKind.REDUCE: 2.6, OpKind.MATMUL: 2.3, OpKind.BATCH_NORM: 2.0,
    OpKind.MAX_POOL: 1.9, OpKind.SIGMOID: 1.6, OpKind.COPY: 1.5, OpKind.SOFTMAX: 1.5, OpKind.CAST: 1.4,
    OpKind.FILL: 0.7, OpKind.VIEW: 0.0,
}  # fmt: skip
_LEAST_OTHER_US = 1.1
# What nodes take at most beside what most_small_ms says of their cycles, over their time by the data sheet; assumed.
_SLOW = 3.0
_LEAST_US_OF_KIND = tabulate(OpKind, lambda kind: _LEAST_KERNEL_US.get(kind, _LEAST_OTHER_US))
# Formats that other units than tensor cores multiply at the rate of FP32, or at one that sheets name.
_PLAIN = frozenset({Arithmetic.FP32, Arithmetic.TF32, Arithmetic.FP16, Arithmetic.BF16})


def least_ms(prepared: PreparedGraphs, device: DeviceSpec) -> FloatArray:
    """What each node takes at least when it runs once, ms.

    That is what it moves at the bandwidth of the data sheet, and of a product or a decomposition of matrices, of a
    recurrent layer and of a convolution of three dimensions its arithmetic at the peak; other convolutions have
    algorithms that do with less. Of what is moved the L2 cache may hold as much as fits when the node starts; of
    weights it keeps a share from call to call. A group norm reads its input twice.

    Args:
        prepared: The graphs.
        device: The device.

    Shapes:
        Result: [B, n_nodes].
    """
    sizes, cache_bytes = prepared.compiled.plan.work.sizes, device.l2_mb * BYTES_PER_MIB
    uncached = np.maximum(prepared.node_bytes - cache_bytes, 0.0)
    # Its statistics are taken by a kernel of their own, which reads all that is normalised then.
    norm = np.flatnonzero(sizes.is_kind(OpKind.GROUP_NORM))
    uncached[:, norm] += np.maximum(prepared.at.bytes_read[:, norm] - cache_bytes, 0.0)
    result = np.maximum(prepared.weights.least_ms(device), uncached / (device.bandwidth_gb_s * GIGA) * 1e3)
    node = _products(prepared)
    result[:, node] = np.maximum(result[:, node], _arithmetic_ms(prepared, node, _peaks_tflops(device)))
    node = np.flatnonzero(prepared.compiled.is_unsupported)
    fp32 = device.peak_tflops["fp32"] * TERA * _ABOVE_BOOST
    result[:, node] = np.maximum(result[:, node], 1e3 * prepared.at.flops[:, node] / fp32)
    return result


def likely_least_ms(prepared: PreparedGraphs, device: DeviceSpec, rates: Rates) -> FloatArray:
    """What each product on tensor cores is likely to take at least when it runs once, ms; 0 of all else.

    Args:
        prepared: The graphs.
        device: The device.
        rates: Rates of the sum of kernel times.

    Shapes:
        Result: [B, n_nodes].
    """
    plan, result = prepared.compiled.plan, np.zeros_like(prepared.node_bytes)
    node = _products(prepared)
    reached = _reached_tflops(device, rates.on(device).tensor_feed, feeds_slowly=plan.feeds_slowly)
    result[:, node] = _arithmetic_ms(prepared, node, reached)
    return result


def one_by_one_ms(prepared: PreparedGraphs, device: DeviceSpec, rates: Rates, *, least: FloatArray) -> FloatArray:
    """What kernels that go element by element are likely to take at least, ms; 0 of all else.

    Concatenations and pooling wait for their multiprocessors. Batch norms of inference take what :func:`least_ms` says
    and the cycles that finding the place of each element takes.

    Args:
        prepared: The graphs, which are not compiled.
        device: The device.
        rates: Rates of the sum of kernel times, among them those of the architecture that was traced.
        least: What :func:`least_ms` says of them.

    Shapes:
        least: [B, n_nodes]; result: as that.
    """
    plan, at, conditions = prepared.compiled.plan, prepared.at, prepared.conditions
    traced = rates.of(_TRACED)
    result = np.zeros_like(least)
    for node, elements_ms in (
        joins_ms(plan, at, device=device, layout=conditions.layout, rates=traced),
        windows_ms(plan, at, device=device, rates=traced),
    ):
        result[:, node] = elements_ms
    # Cycles of pooling are those of its forward kernels.
    result[:, plan.work.sizes.is_kind(OpKind.POOL_GRAD)] = 0.0
    node, placed = placed_ms(plan, at, device=device, mode=conditions.mode, rates=traced)
    is_norm = plan.work.sizes.is_kind(OpKind.BATCH_NORM)[node]
    result[:, node[is_norm]] = least[:, node[is_norm]] + placed[:, is_norm]
    return result


def small_kernels_ms(prepared: PreparedGraphs) -> FloatArray:
    """What the kernel of each node is likely to take in a captured graph, however small it is, ms; 0 of views.

    Args:
        prepared: The graphs.

    Shapes:
        Result: [B, n_nodes].
    """
    least_us = captured_us(_LEAST_US_OF_KIND)[prepared.compiled.plan.work.sizes.arrays.kind]
    result: FloatArray = np.where(prepared.node_bytes > 0.0, least_us * MILLI, 0.0)
    return result


def most_small_ms(prepared: PreparedGraphs, known: FloatArray, card: DeviceSpec, device: DeviceSpec) -> FloatArray:
    """What nodes take at most whose kernels are small on a card that is better in every figure and was measured, ms.

    Such kernels take what they take to start, to wait for memory and to end. That is a number of cycles, which neither
    bandwidth nor multiprocessors change much. Of nodes that take longer on the better card, or that the data sheet says
    to take long, less and less is said.

    Args:
        prepared: The graphs.
        known: What each node takes on the better card, ms.
        card: That card.
        device: The device.

    Shapes:
        known: [B, n_nodes]; result: as that.
    """
    peaks = _peaks_tflops(device) * TERA
    of_sheet = np.maximum(
        prepared.node_bytes / (device.bandwidth_gb_s * GIGA) * 1e3,
        2e3 * prepared.at.macs / peaks[prepared.compiled.plan.arithmetic],
    )
    clocks = card.boost_clock_mhz / device.boost_clock_mhz
    result: FloatArray = clocks * known * (1.0 + np.square(known / SMALL_MS)) + _SLOW * of_sheet
    return result


def _products(prepared: PreparedGraphs) -> IndexArray:
    """Nodes that multiply matrices by an algorithm that does all of the arithmetic."""
    work, is_deep = prepared.compiled.plan.work, prepared.at.convolution.kernel_depth > 1.0
    return np.concatenate([work.gemm.table.node, work.recurrent.table.node, work.convolution.table.node[is_deep]])


def _arithmetic_ms(prepared: PreparedGraphs, node: IndexArray, tflops: FloatArray) -> FloatArray:
    """Time of the arithmetic of nodes at a rate for each format, a tenth above it, [B, n]."""
    rates = tflops[prepared.compiled.plan.arithmetic[node]] * TERA * _ABOVE_BOOST
    result: FloatArray = 2e3 * prepared.at.macs[:, node] / rates
    return result


def _reached_in(device: DeviceSpec, arithmetic: Arithmetic, tensor_feed: float, *, feeds_slowly: bool) -> float:
    """What tensor cores reach in a format, TFLOP/s; without end where they are no faster than other units."""
    if tensor_tflops(device, arithmetic) <= device.peak_tflops["fp32"]:
        return math.inf
    return reached_tflops(device, arithmetic, tensor_feed, feeds_slowly=feeds_slowly)


def _peak_tflops(device: DeviceSpec, arithmetic: Arithmetic) -> float:
    """What the fastest unit of a device does in a format, TFLOP/s; without end where sheets do not tell."""
    peaks, tensor = device.peak_tflops, tensor_tflops(device, arithmetic)
    if arithmetic in _PLAIN:
        return max(peaks["fp32"], peaks.get(arithmetic.value, 0.0), tensor)
    return tensor or math.inf


_reached_tflops, _peaks_tflops = of_every_format(_reached_in), of_every_format(_peak_tflops)
