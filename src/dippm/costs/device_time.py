"""How long each node keeps a device busy, for all batch sizes at once.

Kernels in FP32 come from the learned kernel times; those on tensor cores, which no table covers, from tiles and
bandwidth; what memory binds from the learned element-wise kernel at the same traffic. Each distinct kernel is evaluated
once, however often the model runs it.

The learned times are those of one eager call on an idle device, so they hold the host's launch as well: what an empty
problem takes on the same device is taken off, and what remains is at least the roofline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Layout
from dippm.costs.families import WorkFamily
from dippm.costs.kernels.model import KernelModel
from dippm.costs.kernels.problems import ConvProblem, ElementwiseProblem, Family, GemmProblem, Problem, RowProblem
from dippm.costs.polynomial import pad
from dippm.costs.precision import Arithmetic
from dippm.costs.rates import Rates
from dippm.costs.tensor_cores import tensor_gemm_seconds
from dippm.costs.workload import Workload, WorkloadAt
from dippm.devices import DeviceSpec
from dippm.graph import OpKind
from dippm.units import BYTES_PER_MIB, GIGA, TERA

__all__ = ["KernelPlan", "busy_ms"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_MS = 1e3
_TENSOR_PEAK = {
    Arithmetic.TF32: "tf32_tensor",
    Arithmetic.FP16: "fp16_tensor",
    Arithmetic.BF16: "bf16_tensor",
    Arithmetic.INT8: "int8_tensor",
}
# The rate of a format without tensor cores; a format that is not listed computes in FP32.
_PLAIN_PEAK = {Arithmetic.FP64: "fp64", Arithmetic.FP16: "fp16"}
_ARITHMETICS = tuple(Arithmetic)
# Groups thinner than this leave tensor-core tiles empty: the library takes a direct kernel.
_THIN_GROUP = 8
_ATTENTION_TILE = (128.0, 64.0, 32.0)
# Share of the L2 cache that a chain of kernels finds warm.
_WARM_CACHE = 0.5
# Element-wise operators with a table of their own; all others behave like the plainest of as many inputs.
_ELEMENTWISE_TABLES = {
    "relu": "relu",
    "gelu": "gelu",
    "tanh": "tanh",
    "add": "add",
    "mul": "mul",
    "div": "div",
    "pow": "pow",
}
_ROW_TABLES = {OpKind.SOFTMAX: Family.SOFTMAX, OpKind.LOG_SOFTMAX: Family.SOFTMAX, OpKind.LAYER_NORM: Family.LAYER_NORM}
# Norms over groups that are not one contiguous row read their input twice: for the moments, then to apply them.
_TWO_PASS_KINDS = frozenset({OpKind.GROUP_NORM, OpKind.INSTANCE_NORM})
_SMALLEST: dict[Family, Problem] = {
    Family.LINEAR: GemmProblem.of(m=1, n=8, k=8),
    Family.BMM: GemmProblem.of(m=8, n=8, k=8),
    Family.CONV: ConvProblem.of(batch=1, in_channels=8, out_channels=8, height=8),
    Family.SOFTMAX: RowProblem.of(rows=1, width=64),
    Family.LAYER_NORM: RowProblem.of(rows=8, width=256),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Distinct:
    """Kernels that differ, and which of them each node runs.

    Args:
        node: Nodes of the family.
        index: Column of one representative of each distinct kernel.
        inverse: Distinct kernel of each node.
    """

    node: IndexArray
    index: IndexArray
    inverse: IndexArray

    @classmethod
    def of(cls, node: IndexArray, *keys: npt.ArrayLike) -> _Distinct:
        """Group nodes whose keys, [n] or [n, D] each, are equal."""
        if not len(node):
            return cls(node=node, index=node, inverse=node)
        rows = np.concatenate([np.asarray(key, dtype=np.float64).reshape(len(node), -1) for key in keys], axis=1)
        _, index, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return cls(node=node, index=index, inverse=inverse.reshape(-1))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelPlan:
    """The distinct kernels of a workload; built once per graph and precision.

    Args:
        work: The workload.
        arithmetic: Format of each node, as a position in ``Arithmetic``.
        gemm: Distinct matrix products.
        convolution: Distinct convolutions.
        attention: Distinct fused attentions.
        recurrent: Distinct recurrent layers.
        row: Distinct softmax and norms that a table covers.
        stream: Distinct kernels that memory binds.
        stream_group: Which rate each of ``stream.node`` takes.
        stream_operator: Element-wise table of each of ``stream.node``.
        stream_passes: How often each of ``stream.node`` moves its bytes.
    """

    work: Workload
    arithmetic: IndexArray
    gemm: _Distinct
    convolution: _Distinct
    attention: _Distinct
    recurrent: _Distinct
    row: _Distinct
    stream: _Distinct
    stream_group: npt.NDArray[np.str_]
    stream_operator: npt.NDArray[np.str_]
    stream_passes: FloatArray

    @classmethod
    def from_workload(cls, work: Workload) -> KernelPlan:
        """Group the kernels of a workload."""
        arithmetic = np.array([_ARITHMETICS.index(value) for value in work.types.arithmetic], dtype=np.int64)
        traffic_width = max(work.bytes_read.shape[1], work.bytes_written.shape[1])
        traffic = np.concatenate([pad(work.bytes_read, traffic_width), pad(work.bytes_written, traffic_width)], axis=1)

        def distinct(table: npt.NDArray[np.float64], node: IndexArray, *more: npt.ArrayLike) -> _Distinct:
            if not len(node):
                return _Distinct.of(node)
            sizes = table.reshape(-1, len(node), table.shape[1])
            keys = np.moveaxis(sizes, 1, 0).reshape(len(node), -1)
            return _Distinct.of(node, keys, arithmetic[node], traffic[node], *more)

        gemm, conv, attention, recurrent = work.gemm, work.convolution, work.attention, work.recurrent
        is_tabled = _is_tabled_row(work)
        row_node = work.row.table.node[is_tabled]
        kinds = [node.kind for node in work.sizes.graph.nodes]
        table_codes = [list(_ROW_TABLES.values()).index(_ROW_TABLES[kinds[i]]) for i in row_node]
        width = work.row.table.polynomials.shape[1]
        row_sizes = work.row.table.polynomials.reshape(2, len(is_tabled), width)[:, is_tabled]
        stream_node, group, operator, passes = _stream_nodes(work, exclude=row_node)
        return cls(
            work=work,
            arithmetic=arithmetic,
            gemm=distinct(gemm.table.polynomials, gemm.table.node, gemm.is_linear),
            convolution=distinct(conv.table.polynomials, conv.table.node, conv.constants.T, conv.is_transposed),
            attention=distinct(attention.table.polynomials, attention.table.node, attention.has_mask),
            recurrent=distinct(recurrent.table.polynomials, recurrent.table.node, recurrent.constants.T),
            row=distinct(row_sizes.reshape(-1, width), row_node, table_codes),
            stream=_Distinct.of(
                stream_node,
                traffic[stream_node],
                np.unique(group, return_inverse=True)[1],
                np.unique(operator, return_inverse=True)[1],
                passes,
            ),
            stream_group=group,
            stream_operator=operator,
            stream_passes=passes,
        )


def busy_ms(
    plan: KernelPlan,
    at: WorkloadAt,
    *,
    device: DeviceSpec,
    conditions: Conditions,
    rates: Rates,
    kernels: KernelModel,
) -> FloatArray:
    """Time for which each node keeps the device busy, its casts included, ms.

    Args:
        plan: The distinct kernels.
        at: The plan's workload at the batch sizes.
        device: The device.
        conditions: Precision and layout.
        rates: Sustained rates.
        kernels: Learned kernel times.

    Shapes:
        Result: [B, n_nodes].
    """
    timer = _Timer(plan=plan, at=at, device=device, conditions=conditions, rates=rates, kernels=kernels)
    return timer.run()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Timer:
    plan: KernelPlan
    at: WorkloadAt
    device: DeviceSpec
    conditions: Conditions
    rates: Rates
    kernels: KernelModel

    def run(self) -> FloatArray:
        busy = np.zeros_like(self.at.flops)
        parts: tuple[tuple[_Distinct, Callable[[_Distinct], FloatArray]], ...] = (
            (self.plan.gemm, self._gemm),
            (self.plan.convolution, self._convolution),
            (self.plan.attention, self._attention),
            (self.plan.recurrent, self._recurrent),
            (self.plan.row, self._row),
            (self.plan.stream, self._stream),
        )
        gap_ms = self.rates.gap_us / _MS
        for part, seconds in parts:
            if len(part.node):
                busy[:, part.node] = gap_ms + _MS * seconds(part)[:, part.inverse]
        casts = self.at.casts
        if len(casts.node):
            moved = self._stream_seconds(casts.bytes_read + casts.bytes_written, operator="relu")
            np.add.at(busy.T, casts.node, (gap_ms + _MS * moved / self.rates.stream).T)
        return busy

    # Families. Each takes the distinct kernels and returns their seconds, [B, U].

    def _gemm(self, part: _Distinct) -> FloatArray:
        sizes = self.at.gemm
        columns = part.index
        b, m, n, k = (size[:, columns] for size in (sizes.b, sizes.m, sizes.n, sizes.k))
        node = part.node[columns]
        peak, is_tensor = self._peaks(node)
        result = np.empty_like(b)
        result[:, is_tensor] = self._tensor_product(
            *(size[:, is_tensor] for size in (b, m, n, k)), peak=peak[is_tensor] * self.rates.tensor_gemm
        )
        for is_linear, family in ((True, Family.LINEAR), (False, Family.BMM)):
            chosen = ~is_tensor & (sizes.is_linear[columns] == is_linear)
            if chosen.any():
                problem = GemmProblem.of(
                    **{name: size[:, chosen].ravel() for name, size in (("b", b), ("m", m), ("n", n), ("k", k))}
                )
                learned = self._learned(family, problem).reshape(len(b), -1)
                result[:, chosen] = np.maximum(learned, self._slower_than_fp32(learned, peak[chosen]))
        return np.maximum(result, self._traffic_seconds(node))

    def _convolution(self, part: _Distinct) -> FloatArray:
        sizes, columns = self.at.convolution, part.index
        node = part.node[columns]
        batch, cin, cout, height, width = (
            size[:, columns]
            for size in (sizes.batch, sizes.in_channels, sizes.out_channels, sizes.out_height, sizes.out_width)
        )
        kernel = (sizes.kernel_height * sizes.kernel_width)[columns]
        groups = sizes.groups[columns]
        pixels = batch * height * width
        # A transposed convolution is the gradient of one: the same products, counted from its input's side.
        is_transposed = sizes.is_transposed[columns]
        pixels = np.where(is_transposed, batch * sizes.in_height[:, columns] * sizes.in_width[:, columns], pixels)
        n = np.where(is_transposed, cout / groups * kernel, cout / groups)
        k = np.where(is_transposed, cin / groups, cin / groups * kernel)
        peak, is_tensor = self._peaks(node)
        is_thin = (np.minimum(cin, cout)[0] / groups < _THIN_GROUP) & (groups > 1)
        result = np.empty_like(pixels)

        on_tensor = is_tensor & ~is_thin
        if on_tensor.any():
            shape = pixels[:, on_tensor].shape
            result[:, on_tensor] = self._tensor_product(
                np.broadcast_to(groups[on_tensor], shape),
                pixels[:, on_tensor],
                n[:, on_tensor],
                np.maximum(k[:, on_tensor], 8.0),
                peak=peak[on_tensor] * self.rates.tensor_conv,
            )
        if is_thin.any():
            rate = self.rates.direct_conv_nhwc if self._is_nhwc else self.rates.direct_conv
            flops = 2.0 * (groups * pixels * n * k)[:, is_thin]
            result[:, is_thin] = flops / (rate * self.device.peak_tflops["fp32"] * TERA)
        plain = ~on_tensor & ~is_thin
        if plain.any():
            is_table = plain & (kernel == 9) & (sizes.kernel_height[columns] == 3) & ~is_transposed & (groups == 1)
            is_table &= (sizes.stride_height * sizes.stride_width)[columns] == 1
            for chosen, family in ((is_table, Family.CONV), (plain & ~is_table, Family.LINEAR)):
                if not chosen.any():
                    continue
                if family is Family.CONV:
                    problem: Problem = ConvProblem.of(
                        batch=batch[:, chosen].ravel(),
                        in_channels=cin[:, chosen].ravel(),
                        out_channels=cout[:, chosen].ravel(),
                        height=height[:, chosen].ravel(),
                        width=width[:, chosen].ravel(),
                    )
                    share = np.ones_like(pixels[:, chosen])
                else:
                    problem = GemmProblem.of(
                        m=pixels[:, chosen].ravel(), n=n[:, chosen].ravel(), k=k[:, chosen].ravel()
                    )
                    share = np.broadcast_to(groups[chosen], pixels[:, chosen].shape)
                learned = self._learned(family, problem).reshape(len(batch), -1) * share
                result[:, chosen] = np.maximum(learned, self._slower_than_fp32(learned, peak[chosen]))
        traffic = self._traffic_seconds(node)
        result = np.maximum(result, traffic)
        if not self._is_nhwc:
            result = result + np.where(on_tensor, self.rates.nchw_shuffle * traffic, 0.0)
        return result

    def _attention(self, part: _Distinct) -> FloatArray:
        sizes, columns = self.at.attention, part.index
        node = part.node[columns]
        heads = (sizes.batch * sizes.heads)[:, columns]
        queries, keys, width, value_width = (
            np.ceil(size[:, columns] / tile) * tile
            for size, tile in (
                (sizes.queries, _ATTENTION_TILE[0]),
                (sizes.keys, _ATTENTION_TILE[1]),
                (sizes.width, _ATTENTION_TILE[2]),
                (sizes.value_width, _ATTENTION_TILE[2]),
            )
        )
        peak, _ = self._peaks(node)
        blocks = heads * queries / _ATTENTION_TILE[0]
        waves = np.ceil(blocks / self.device.sm_count) * self.device.sm_count * _ATTENTION_TILE[0]
        flops = 2.0 * waves * keys * (width + value_width)
        flops = np.where(sizes.is_causal[columns], flops / 2.0, flops)
        return np.maximum(flops / (peak * self.rates.attention), self._traffic_seconds(node))

    def _recurrent(self, part: _Distinct) -> FloatArray:
        sizes, columns = self.at.recurrent, part.index
        node = part.node[columns]
        steps, batch, width = (size[:, columns] for size in (sizes.steps, sizes.batch, sizes.input_size))
        hidden, handed, layers, directions, gates = (
            size[columns]
            for size in (sizes.hidden_size, sizes.projection_size, sizes.layers, sizes.directions, sizes.gates)
        )
        peak, is_tensor = self._peaks(node)
        peak = peak * np.where(is_tensor, self.rates.tensor_gemm, 1.0)
        outputs = np.broadcast_to(gates * hidden, steps.shape)
        one = np.ones_like(steps)
        product = self._tensor_product
        first = product(one, steps * batch, outputs, width, peak=peak)
        deeper = product(one, steps * batch, outputs, np.broadcast_to(directions * handed, steps.shape), peak=peak)
        step = product(one, batch, outputs, np.broadcast_to(handed, steps.shape), peak=peak)
        step = np.maximum(step, self.rates.step_us / 1e6)
        total = directions * (first + (layers - 1.0) * deeper + layers * steps * step)
        return np.maximum(total, self._traffic_seconds(node))

    def _row(self, part: _Distinct) -> FloatArray:
        sizes = self.at.row
        position = np.searchsorted(sizes.node, part.node[part.index])
        rows, width = sizes.rows[:, position], sizes.width[:, position]
        nodes = self.plan.work.sizes.graph.nodes
        tables = np.array([_ROW_TABLES[nodes[i].kind].value for i in part.node[part.index]])
        result = np.empty_like(rows)
        for family in (Family.SOFTMAX, Family.LAYER_NORM):
            chosen = tables == family.value
            if chosen.any():
                problem = RowProblem.of(rows=rows[:, chosen].ravel(), width=width[:, chosen].ravel())
                result[:, chosen] = self._learned(family, problem).reshape(len(rows), -1)
        return result

    def _stream(self, part: _Distinct) -> FloatArray:
        node = part.node[part.index]
        moved = (self.at.bytes_read[:, node] + self.at.bytes_written[:, node]) * self.plan.stream_passes[part.index]
        groups, operators = self.plan.stream_group[part.index], self.plan.stream_operator[part.index]
        result = np.empty_like(moved)
        for operator in np.unique(operators):
            chosen = operators == operator
            result[:, chosen] = self._stream_seconds(moved[:, chosen], operator=str(operator))
        shares = np.array([getattr(self.rates, group) for group in groups])
        return np.asarray(result / shares)

    # What the families share.

    @property
    def _is_nhwc(self) -> bool:
        return self.conditions.layout is Layout.NHWC

    def _peaks(self, node: IndexArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Peak rate of each node, FLOP/s, and whether it is a tensor-core rate."""
        rates, tensor = [], []
        available = self.device.peak_tflops
        for value in _ARITHMETICS:
            name = _TENSOR_PEAK.get(value)
            is_tensor = name is not None and name in available
            plain = _PLAIN_PEAK.get(value, "fp32")
            rates.append(available[name] if is_tensor and name else available.get(plain, available["fp32"]))
            tensor.append(is_tensor)
        codes = self.plan.arithmetic[node]
        return np.array(rates)[codes] * TERA, np.array(tensor)[codes]

    def _slower_than_fp32(self, seconds: FloatArray, peak: FloatArray) -> FloatArray:
        """FP32 times stretched to a format that the device computes more slowly, such as FP64."""
        return seconds * np.maximum(self.device.peak_tflops["fp32"] * TERA / peak, 1.0)

    def _tensor_product(
        self, b: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, *, peak: FloatArray
    ) -> FloatArray:
        return tensor_gemm_seconds(b, m, n, k, peak_flops=peak, sm_count=self.device.sm_count)

    def _traffic_seconds(self, node: IndexArray) -> FloatArray:
        """Time of the least traffic of each node, part of it from the cache."""
        moved = self.at.bytes_read[:, node] + self.at.bytes_written[:, node]
        warm = np.minimum(moved, _WARM_CACHE * self.device.l2_mb * BYTES_PER_MIB)
        seconds = (warm / self.rates.cache_gain + (moved - warm)) / (self.device.bandwidth_gb_s * GIGA)
        return seconds / self.rates.stream

    def _stream_seconds(self, moved: FloatArray, *, operator: str) -> FloatArray:
        """Time of the learned element-wise kernel that moves as many bytes."""
        tensors = 2.0 if operator in ("relu", "gelu", "tanh") else 3.0
        elements = np.maximum(moved / (4.0 * tensors), 1.0)
        problem = ElementwiseProblem.of(elements=elements.ravel(), operator=operator)
        smallest = ElementwiseProblem.of(elements=1.0, operator=operator)
        return self._learned(Family.ELEMENTWISE, problem, smallest=smallest).reshape(moved.shape)

    def _learned(self, family: Family, problem: Problem, *, smallest: Problem | None = None) -> FloatArray:
        """Learned time less that of an empty problem, seconds, at least what cache and arithmetic allow."""
        floor = self.kernels.time_ms(family, _SMALLEST[family] if smallest is None else smallest, self.device)
        above = self.kernels.time_ms(family, problem, self.device) - floor
        bandwidth = self.device.bandwidth_gb_s * GIGA * self.rates.cache_gain
        return np.maximum(above / _MS, problem.bytes / bandwidth)


def _is_tabled_row(work: Workload) -> npt.NDArray[np.bool_]:
    """Which of the softmax and norm nodes a table covers: FP32 in and out, over the last dimension."""
    node = work.row.table.node
    nodes = work.sizes.graph.nodes
    is_fp32 = np.array(
        [
            nodes[i].kind in _ROW_TABLES
            and all(work.types.tensor_bytes[t] == 4.0 for t in (nodes[i].inputs[0], nodes[i].outputs[0]))
            for i in node
        ],
        dtype=np.bool_,
    )
    return is_fp32 & work.row.is_last if len(node) else np.zeros(0, dtype=np.bool_)


def _stream_nodes(
    work: Workload, *, exclude: IndexArray
) -> tuple[IndexArray, npt.NDArray[np.str_], npt.NDArray[np.str_], FloatArray]:
    """Nodes that memory binds: their rate's name, element-wise table, and how often they move their bytes."""
    groups = {
        WorkFamily.ELEMENTWISE: "stream",
        WorkFamily.ROW: "norm",
        WorkFamily.REDUCTION: "pool",
        WorkFamily.POOL: "pool",
        WorkFamily.MOVE: "move",
        WorkFamily.OTHER: "move",
    }
    tabled = set(exclude.tolist())
    chosen, group, operator, passes = [], [], [], []
    for position, (node, family) in enumerate(zip(work.sizes.graph.nodes, work.family, strict=True)):
        if family not in groups or position in tabled:
            continue
        chosen.append(position)
        group.append("norm" if node.kind is OpKind.BATCH_NORM else groups[family])
        is_binary = (
            len(set(node.inputs)) > 1 and family is WorkFamily.ELEMENTWISE and node.kind is not OpKind.BATCH_NORM
        )
        table = _ELEMENTWISE_TABLES.get(node.kind.value)
        if table is None or (table in ("add", "mul", "div", "pow")) != is_binary:
            table = "add" if is_binary else "relu"
        operator.append(table)
        passes.append(1.5 if node.kind in _TWO_PASS_KINDS else 1.0)
    return (
        np.array(chosen, dtype=np.int64),
        np.array(group, dtype=np.str_),
        np.array(operator, dtype=np.str_),
        np.array(passes, dtype=np.float64),
    )
