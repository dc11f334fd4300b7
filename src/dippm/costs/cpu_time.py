"""Time of every operator on a CPU, from what the machine measures of itself in two seconds and a few shares of that.

An operator takes its arithmetic, its memory traffic and the time to call it, one after the other, as one thread does:

    time = FLOPs / (compute x gflops) + bytes / (stream x cache bandwidth) + launches x dispatch x time of a tiny call
           + bytes that the system gives afresh / rate of that

``compute``, ``stream`` and ``dispatch`` are coefficients of the operator's family, fitted on measured models. Two
libraries do the arithmetic, and a processor may be twice as fast in one of them as in the other: a BLAS runs matrix
products, oneDNN runs convolutions, and each has its own rate and its own tiny call. PyTorch gives 1x1 convolutions to
the BLAS where one thread runs them on few samples. A matrix product that is narrow or short fills neither vectors nor
tiles: its FLOPs count as if it were a little wider and longer. Every term grows with the operator and shrinks with the
rates, so that a slower machine is never predicted to be faster, and more work neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dippm.costs.convolution import ConvolutionSizes
from dippm.costs.edges import IndexArray
from dippm.costs.families import WorkFamily
from dippm.costs.polynomial import FloatArray
from dippm.costs.workload import Workload
from dippm.errors import DippmError, UsageError
from dippm.graph import OpKind

__all__ = ["CpuFamily", "CpuRates", "CpuShares", "CpuWork", "cpu_seconds", "node_seconds"]

# What one core's own caches hold: traffic of an operator beyond it goes at the bandwidth of the memory at best.
_CACHE_BYTES = 2.0 * 2**20
# What is added to the width, to the length of the sum and to the rows of a matrix product: tiles that are not full.
_GEMM_EDGE = 16.0
_ROWS_EDGE = 4.0
# Convolutions run in blocks of channels.
_CONVOLUTION_EDGE = 8.0
# Larger blocks the allocator of the C library gives back when they are freed, and gets anew, page by page.
_KEPT_BYTES = 2.0**25
_BYTES = 4.0
# From so many samples on PyTorch gives 1x1 convolutions to oneDNN, with one thread too.
_ONEDNN_BATCH = 16
_US = 1e-6


class CpuFamily(StrEnum):
    """Operators that share their coefficients.

    ``POINTWISE`` are the 1x1 convolutions that run as matrix products; ``CONVOLUTION`` and ``GROUPED`` run in oneDNN.
    ``RECURRENT`` are RNN and GRU, which run step by step; an LSTM runs a layer in one call. ``VIEW`` costs its call
    alone.
    """

    GEMM = "gemm"
    POINTWISE = "pointwise"
    CONVOLUTION = "convolution"
    GROUPED = "grouped"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    LSTM = "lstm"
    ROW = "row"
    ELEMENTWISE = "elementwise"
    POOL = "pool"
    MOVE = "move"
    VIEW = "view"


_FAMILY_OF_WORK = {
    WorkFamily.GEMM: CpuFamily.GEMM,
    WorkFamily.CONVOLUTION: CpuFamily.CONVOLUTION,
    WorkFamily.ATTENTION: CpuFamily.ATTENTION,
    WorkFamily.RECURRENT: CpuFamily.RECURRENT,
    WorkFamily.ELEMENTWISE: CpuFamily.ELEMENTWISE,
    WorkFamily.ROW: CpuFamily.ROW,
    WorkFamily.REDUCTION: CpuFamily.POOL,
    WorkFamily.POOL: CpuFamily.POOL,
    WorkFamily.MOVE: CpuFamily.MOVE,
    WorkFamily.OTHER: CpuFamily.MOVE,
    WorkFamily.FREE: CpuFamily.VIEW,
}
_POSITION = {family: position for position, family in enumerate(CpuFamily)}
_IS_ONEDNN = np.array([family in (CpuFamily.CONVOLUTION, CpuFamily.GROUPED) for family in CpuFamily])


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuRates:
    """What a CPU reaches, with so many threads.

    Args:
        gflops: Large matrix products in FP32, 10^9 FLOPs per second.
        convolution_gflops: Large 3x3 convolutions in FP32, 10^9 FLOPs per second.
        bandwidth_gb_s: Copying more than the caches hold, bytes read and written, 10^9 per second.
        cache_gb_s: Copying what a core's own caches hold, likewise.
        fresh_gb_s: Writing to memory that the process has not touched yet, 10^9 bytes per second.
        dispatch_us: One tiny operator, from call to return, microseconds.
        convolution_us: One tiny convolution, from call to return, microseconds.
        threads: Threads that PyTorch uses for one operator.

    Raises:
        UsageError: ``rates.invalid`` where one is not positive and finite.
    """

    gflops: float
    convolution_gflops: float
    bandwidth_gb_s: float
    cache_gb_s: float
    fresh_gb_s: float
    dispatch_us: float
    convolution_us: float
    threads: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise UsageError(f"The CPU's rate {field.name} must be positive. Got {value}.", code="rates.invalid")

    def distance_to(self, other: CpuRates) -> float:
        """How unlike two machines are: the largest logarithm of a ratio of their rates, the threads left out."""
        names = [field.name for field in fields(self) if field.name != "threads"]
        return max(abs(math.log(getattr(self, name) / getattr(other, name))) for name in names)


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuShares:
    """Coefficients of one family.

    Args:
        compute: Share of ``gflops``, or of ``convolution_gflops``, that its arithmetic reaches.
        stream: Share of ``cache_gb_s`` that its traffic reaches, beyond the caches no more than ``bandwidth_gb_s``.
        dispatch: Time of one call over that of a tiny operator, or of a tiny convolution.

    Raises:
        DippmError: ``artefact.invalid`` where one is not positive and finite.
    """

    compute: float
    stream: float
    dispatch: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise DippmError(f"The coefficient {field.name} is {value}, which cannot be.", code="artefact.invalid")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CpuWork:
    """What a model asks of a CPU, apart from its speed.

    Args:
        family: Family of each column at each batch, its position in :class:`CpuFamily`.
        flops: Floating-point operations, those of matrix products and convolutions with their edges.
        near_bytes: Bytes read and written that the caches may hold.
        far_bytes: Those beyond.
        fresh_bytes: Bytes in blocks so large that every call gets them from the system afresh.
        launches: Calls: one; in an LSTM one for each layer and direction, in other recurrent layers for each step too.

    Shapes:
        All: [B, n]. A column is a node, or a whole family once they are summed.
    """

    family: IndexArray
    flops: FloatArray
    near_bytes: FloatArray
    far_bytes: FloatArray
    fresh_bytes: FloatArray
    launches: FloatArray

    @classmethod
    def of(cls, workload: Workload, batches: npt.ArrayLike, *, threads: int = 1) -> CpuWork:
        """Work of every node at each batch.

        Args:
            workload: The model.
            batches: Samples per call.
            threads: Threads of an operator: one and several are given to different libraries.

        Raises:
            UsageError: ``batch.invalid``.
        """
        at = workload.at(batches)
        convolution, recurrent = at.convolution, at.recurrent
        nodes = workload.sizes.graph.nodes
        of_node = np.array([_POSITION[_FAMILY_OF_WORK[name]] for name in workload.family], dtype=np.int64)
        of_node[[node.kind is OpKind.BATCH_NORM for node in nodes]] = _POSITION[CpuFamily.ROW]
        is_lstm = np.array([nodes[i].kind is OpKind.LSTM for i in recurrent.node], dtype=np.bool_)
        of_node[recurrent.node[is_lstm]] = _POSITION[CpuFamily.LSTM]
        of_node[convolution.node[convolution.groups > 1]] = _POSITION[CpuFamily.GROUPED]
        family = np.tile(of_node, (len(at.batches), 1))
        is_pointwise = _runs_as_product(convolution, threads)
        of_convolution = family[:, convolution.node]
        family[:, convolution.node] = np.where(is_pointwise, _POSITION[CpuFamily.POINTWISE], of_convolution)

        flops, gemm = at.flops.copy(), at.gemm
        flops[:, gemm.node] *= _product_edges(rows=gemm.m, width=gemm.n, length=gemm.k)
        area = convolution.out_height * convolution.out_width
        length = convolution.in_channels * convolution.kernel_height * convolution.kernel_width
        channels = convolution.out_channels
        edges = _edge(channels, _CONVOLUTION_EDGE) * _edge(length, _CONVOLUTION_EDGE)
        edges = np.where(is_pointwise, _product_edges(rows=channels, width=area, length=length), edges)
        flops[:, convolution.node] *= np.where(convolution.groups > 1, 1.0, edges)
        moved = at.bytes_read + at.bytes_written
        # oneDNN brings input, weight and output into a layout of its own.
        made = at.bytes_written.copy()
        inputs = convolution.batch * convolution.in_channels * convolution.in_height * convolution.in_width
        outputs = convolution.batch * channels * area
        copied = _BYTES * (inputs + outputs + channels * length / convolution.groups)
        made[:, convolution.node] += np.where(is_pointwise, 0.0, copied)
        made[family == _POSITION[CpuFamily.VIEW]] = 0.0
        launches = np.ones_like(moved)
        # A step of a GRU, with three gates, makes about twice the calls of a plain RNN's.
        calls = np.where(is_lstm, 1.0, recurrent.steps * (1.0 + recurrent.gates) / 2.0)
        launches[:, recurrent.node] = calls * recurrent.layers * recurrent.directions
        return cls(
            family=family,
            flops=flops,
            near_bytes=np.minimum(moved, _CACHE_BYTES),
            far_bytes=np.maximum(moved - _CACHE_BYTES, 0.0),
            fresh_bytes=np.where(made > _KEPT_BYTES, made, 0.0),
            launches=launches,
        )

    def by_family(self) -> CpuWork:
        """The same work with a column for each family: its time in all is the same."""
        member = (self.family[..., np.newaxis] == np.arange(len(CpuFamily))).astype(np.float64)

        def total(column: FloatArray) -> FloatArray:
            result: FloatArray = np.einsum("bn,bnf->bf", column, member)
            return result

        return CpuWork(
            family=np.tile(np.arange(len(CpuFamily), dtype=np.int64), (len(self.family), 1)),
            flops=total(self.flops),
            near_bytes=total(self.near_bytes),
            far_bytes=total(self.far_bytes),
            fresh_bytes=total(self.fresh_bytes),
            launches=total(self.launches),
        )


def _runs_as_product(convolution: ConvolutionSizes, threads: int) -> npt.NDArray[np.bool_]:
    """Whether PyTorch runs a convolution as a plain matrix product, [B, n_convolution]."""
    is_plain = (
        (convolution.kernel_height == 1)
        & (convolution.kernel_width == 1)
        & (convolution.stride_height == 1)
        & (convolution.stride_width == 1)
        & (convolution.groups == 1)
        & ~convolution.is_transposed
        & (threads == 1)
    )
    result: npt.NDArray[np.bool_] = is_plain & (convolution.batch < _ONEDNN_BATCH)
    return result


def _product_edges(*, rows: FloatArray, width: FloatArray, length: FloatArray) -> FloatArray:
    result: FloatArray = _edge(rows, _ROWS_EDGE) * _edge(width, _GEMM_EDGE) * _edge(length, _GEMM_EDGE)
    return result


def _edge(size: FloatArray, edge: float) -> FloatArray:
    result: FloatArray = 1.0 + edge / np.maximum(size, 1.0)
    return result


def cpu_seconds(work: CpuWork, rates: CpuRates, shares: Mapping[CpuFamily, CpuShares]) -> FloatArray:
    """Time of every column of the work at each batch, s.

    Args:
        work: What is to be done.
        rates: The machine.
        shares: Coefficients of every family.

    Shapes:
        Result: [B, n].
    """
    compute, stream, dispatch = (
        np.array([getattr(shares[family], name) for family in CpuFamily]) for name in ("compute", "stream", "dispatch")
    )
    compute_s = 1e-9 / (compute * np.where(_IS_ONEDNN, rates.convolution_gflops, rates.gflops))
    near_s = 1e-9 / (stream * rates.cache_gb_s)
    far_s = np.maximum(near_s, 1e-9 / rates.bandwidth_gb_s)
    launch_s = _US * dispatch * np.where(_IS_ONEDNN, rates.convolution_us, rates.dispatch_us)
    result: FloatArray = (
        work.flops * compute_s[work.family]
        + work.near_bytes * near_s[work.family]
        + work.far_bytes * far_s[work.family]
        + work.fresh_bytes * (1e-9 / rates.fresh_gb_s)
        + work.launches * launch_s[work.family]
    )
    return result


def node_seconds(
    workload: Workload, batches: npt.ArrayLike, rates: CpuRates, shares: Mapping[CpuFamily, CpuShares]
) -> FloatArray:
    """Time of every node at each batch, s: no node is faster with more samples.

    Where PyTorch changes to another library, the larger batch may really be faster; it is taken to be as slow as the
    last before it.

    Args:
        workload: The model.
        batches: Samples per call.
        rates: The machine.
        shares: Coefficients of every family.

    Shapes:
        Result: [B, n_nodes].

    Raises:
        UsageError: ``batch.invalid``.
    """
    seconds = cpu_seconds(CpuWork.of(workload, batches, threads=rates.threads), rates, shares)
    before = cpu_seconds(CpuWork.of(workload, [_ONEDNN_BATCH - 1], threads=rates.threads), rates, shares)
    is_after = np.atleast_1d(np.asarray(batches)) >= _ONEDNN_BATCH
    result: FloatArray = np.where(is_after[:, np.newaxis], np.maximum(seconds, before), seconds)
    return result
