"""What a model asks of any device: FLOPs, MACs, bytes and problem sizes of every node at every batch size."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dippm.costs.autocast import Casts
from dippm.costs.contraction import (
    AttentionSizes,
    AttentionTable,
    GemmSizes,
    GemmTable,
    RecurrentSizes,
    RecurrentTable,
)
from dippm.costs.convolution import ConvolutionSizes, ConvolutionTable
from dippm.costs.edges import IndexArray
from dippm.costs.elementary import flops_per_element
from dippm.costs.families import FAMILY_NUMBER_OF_KIND, FAMILY_OF_KIND, WorkFamily
from dippm.costs.fusion import Fusion
from dippm.costs.polynomial import FloatArray, as_batches, evaluate, pad, scale
from dippm.costs.precision import Precision, TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.streaming import (
    PoolSizes,
    PoolTable,
    ReductionTable,
    RowSizes,
    RowTable,
)
from dippm.costs.temporaries import dropped_outputs, scratch
from dippm.costs.traffic import Reads, write_polynomials
from dippm.graph import Graph, OpKind
from dippm.graph.codes import mark

__all__ = ["CastWork", "Workload", "WorkloadAt"]


class _Buildable(Protocol):
    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray, /) -> Self: ...


_Table = TypeVar("_Table", bound=_Buildable)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CastWork:
    """Cast kernels that autocast adds to the model's own nodes.

    Args:
        node: Node before which each runs.
        bytes_read: Bytes read.
        bytes_written: Bytes written.

    Shapes:
        node: [C]; the others: [B, C].
    """

    node: IndexArray
    bytes_read: FloatArray
    bytes_written: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorkloadAt:
    """A model's work at given batch sizes.

    Each family's sizes name the nodes that they belong to in ``node``; a node is in one of these families at most, and
    the others have bytes and FLOPs only.

    Args:
        batches: Batch sizes.
        macs: Multiply-accumulates of convolutions, matrix products, attention and recurrent layers; one of complex
            numbers counts once.
        flops: Floating-point operations: twice the MACs, eight times those of complex numbers, and a count per element
            of everything else.
        bytes_read: Least bytes read from device memory.
        bytes_written: Least bytes written to device memory.
        gemm: Matrix products.
        convolution: Convolutions.
        attention: Fused attention.
        recurrent: Recurrent layers.
        row: Softmax and norms.
        pool: Pooling.
        casts: Cast kernels beside the nodes; not contained in the nodes' bytes.
        answers: What functions said of it, see :func:`~dippm.costs.kept_answers.keep_answers`.

    Shapes:
        batches: [B]; macs, flops, bytes_read, bytes_written: [B, n_nodes].
    """

    batches: FloatArray
    macs: FloatArray
    flops: FloatArray
    bytes_read: FloatArray
    bytes_written: FloatArray
    gemm: GemmSizes
    convolution: ConvolutionSizes
    attention: AttentionSizes
    recurrent: RecurrentSizes
    row: RowSizes
    pool: PoolSizes
    casts: CastWork
    answers: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """The work of one or several models with the batch left open, at one precision.

    What it moves is worked out when it is asked for: of the eager form of a compiled model nothing does.

    Args:
        sizes: The graphs and their arrays.
        types: Number formats at the precision.
        macs: Multiply-accumulates of each node as polynomials of the batch, [n_nodes, D].
        flops: Floating-point operations, likewise.
        dropped: Bytes of outputs that the model never sees and that are dropped at once; part of the bytes written.
        scratch: Bytes of scratch memory while a node runs.
        cast_elements: Elements of each cast kernel, [C, D].
        gemm: Matrix products.
        convolution: Convolutions.
        attention: Fused attention.
        recurrent: Recurrent layers.
        row: Softmax and norms.
        reduction: Reductions.
        pool: Pooling.
        fusion: Which nodes run as one kernel; None where each runs its own.
    """

    sizes: GraphSizes
    types: TypePlan
    macs: FloatArray
    flops: FloatArray
    dropped: FloatArray
    scratch: FloatArray
    cast_elements: FloatArray
    gemm: GemmTable
    convolution: ConvolutionTable
    attention: AttentionTable
    recurrent: RecurrentTable
    row: RowTable
    reduction: ReductionTable
    pool: PoolTable
    fusion: Fusion | None = None

    @classmethod
    def from_graph(cls, graph: Graph, precision: Precision = Precision.FP32, *, keeps_casts: bool = True) -> Workload:
        """Work out everything that does not depend on the batch size.

        Args:
            graph: The model.
            precision: Arithmetic of the run; it decides the bytes and the casts, never FLOPs and MACs.
            keeps_casts: Whether autocast keeps copies of weights, see
                :attr:`~dippm.costs.software.Software.keeps_casts`.

        Returns:
            The workload; its cost grows linearly with the graph.
        """
        return cls.from_sizes(GraphSizes.from_graph(graph), precision, keeps_casts=keeps_casts)

    @classmethod
    def from_sizes(cls, sizes: GraphSizes, precision: Precision, *, keeps_casts: bool = True) -> Workload:
        """The same for all graphs of some sizes at once."""
        types = TypePlan.from_sizes(sizes, precision, keeps_casts=keeps_casts)
        family = FAMILY_NUMBER_OF_KIND[sizes.arrays.kind]

        def table_of(kind: type[_Table], name: WorkFamily) -> _Table:
            nodes = np.flatnonzero(mark(WorkFamily, [name])[family])
            return kind.build(sizes, nodes) if len(nodes) else _empty(kind)

        gemm = table_of(GemmTable, WorkFamily.GEMM)
        convolution = table_of(ConvolutionTable, WorkFamily.CONVOLUTION)
        attention = table_of(AttentionTable, WorkFamily.ATTENTION)
        recurrent = table_of(RecurrentTable, WorkFamily.RECURRENT)
        row = table_of(RowTable, WorkFamily.ROW)
        dropped = dropped_outputs(sizes, types, row=row, attention=attention)
        tables = (gemm, convolution, attention, recurrent)
        width = max(table.macs.shape[1] for table in tables)
        macs = np.zeros((len(sizes.nodes), width))
        for table in tables:
            macs[table.table.node] = pad(table.macs, width)
        multiplied = 2.0 * macs
        multiplied[gemm.table.node] *= gemm.products[:, None]
        return cls(
            sizes=sizes,
            types=types,
            macs=_trim(macs),
            flops=_trim(multiplied + pad(_elementary_flops(sizes), width)),
            dropped=_trim(dropped),
            scratch=_trim(scratch(sizes, types, recurrent=recurrent, gemm=gemm)),
            cast_elements=_cast_elements(sizes, types.casts),
            gemm=gemm,
            convolution=convolution,
            attention=attention,
            recurrent=recurrent,
            row=row,
            reduction=table_of(ReductionTable, WorkFamily.REDUCTION),
            pool=table_of(PoolTable, WorkFamily.POOL),
        )

    def first_element_bytes(self, node: IndexArray) -> FloatArray:
        """Bytes of an element of each node's first input, [n]."""
        # Reads are in the order of the nodes that they belong to, the first input first.
        result: FloatArray = self.types.read_bytes[np.searchsorted(self.sizes.edges.read_node, node)]
        return result

    def typed(self, precision: Precision) -> Workload:
        """The same graphs in another precision that gives tensors the same types."""
        return replace(self, types=TypePlan.from_sizes(self.sizes, precision))

    def fused(self, part: IndexArray | None = None, *, software: Software = DEFAULT_SOFTWARE) -> Workload:
        """The same work as a compiled model does it: less traffic and fewer kernels.

        Args:
            part: Which nodes are compiled together, see :meth:`~dippm.costs.fusion.Fusion.of`.
            software: The release that compiles them.
        """
        sizes, fusion = self.sizes, Fusion.of(self.sizes, self.types, part, software=software)
        casts = self.types.casts.take(fusion.is_cast)
        return replace(
            self,
            types=replace(self.types, casts=casts),
            dropped=_trim(np.where(fusion.is_loop[:, None], 0.0, self.dropped)),
            scratch=np.where(fusion.is_loop[:, None], 0.0, self.scratch),
            cast_elements=_cast_elements(sizes, casts),
            fusion=fusion,
        )

    @property
    def family(self) -> tuple[WorkFamily, ...]:
        """Family of each node."""
        return tuple(FAMILY_OF_KIND[node.kind] for node in self.sizes.nodes)

    @cached_property
    def reads(self) -> Reads:
        """Bytes read."""
        return Reads.build(self.sizes, self.types, read_bytes=None if self.fusion is None else self.fusion.read_bytes)

    @cached_property
    def bytes_written(self) -> FloatArray:
        """Bytes written by each node as polynomials of the batch, [n_nodes, D]."""
        written = write_polynomials(
            self.sizes, self.types, written_bytes=None if self.fusion is None else self.fusion.written_bytes
        )
        return _trim(pad(written, self.dropped.shape[1]) + pad(self.dropped, written.shape[1]))

    @property
    def bytes_read(self) -> FloatArray:
        """Coefficients that decide each node's bytes read; see :attr:`dippm.costs.traffic.Reads.polynomials`."""
        return self.reads.polynomials

    def at(self, batches: npt.ArrayLike) -> WorkloadAt:
        """The work at one or several batch sizes.

        Args:
            batches: Whole numbers of at least 1.

        Raises:
            UsageError: ``batch.invalid`` where one is not.
        """
        sizes = as_batches(batches)
        elements = evaluate(self.cast_elements, sizes)
        casts = self.types.casts
        return WorkloadAt(
            batches=sizes,
            macs=evaluate(self.macs, sizes),
            flops=evaluate(self.flops, sizes),
            bytes_read=self.reads.at(sizes),
            bytes_written=evaluate(self.bytes_written, sizes),
            gemm=self.gemm.at(sizes),
            convolution=self.convolution.at(sizes),
            attention=self.attention.at(sizes),
            recurrent=self.recurrent.at(sizes),
            row=self.row.at(sizes),
            pool=self.pool.at(sizes),
            casts=CastWork(
                node=casts.node, bytes_read=elements * casts.from_bytes, bytes_written=elements * casts.to_bytes
            ),
        )


@cache
def _empty(kind: type[_Table]) -> _Table:
    """The table of a family that a graph has nothing of; a small graph would spend most of its time on these."""
    graph = Graph(source="", framework="", tensors=(), nodes=(), inputs=(), outputs=())
    return kind.build(GraphSizes.from_graph(graph), np.array([], dtype=np.int64))


def _elementary_flops(sizes: GraphSizes) -> FloatArray:
    """FLOPs of all nodes but contractions."""
    every = np.arange(len(sizes.arrays.kind), dtype=np.int64)
    source, out = sizes.inputs(every, 0), sizes.outputs(every)
    per_input, per_output = flops_per_element(sizes)
    return scale(sizes.elements_of(source), per_input) + scale(sizes.elements_of(out), per_output)


def _cast_elements(sizes: GraphSizes, casts: Casts) -> FloatArray:
    """Elements of each cast; operands of products are cast before they are repeated for the copies that these read.

    Shapes:
        [C, D].
    """
    tensor = casts.tensor
    of_copies = np.flatnonzero(sizes.is_kind(OpKind.COPY)[casts.node])
    if len(of_copies):
        expands = np.flatnonzero(sizes.is_kind(OpKind.VIEW) & sizes.has_function("expand"))
        before = np.arange(len(sizes.arrays.role))
        before[sizes.outputs(expands)] = sizes.inputs(expands, 0)
        tensor = tensor.copy()
        tensor[of_copies] = before[tensor[of_copies]]
    return sizes.elements_of(tensor)


def _trim(polynomials: FloatArray) -> FloatArray:
    """The same polynomials without powers that none of them has."""
    width = polynomials.shape[1]
    # Column by column: NumPy takes many times as long over rows that are as short.
    while width > 1 and not polynomials[:, width - 1].any():
        width -= 1
    return polynomials[:, :width]
