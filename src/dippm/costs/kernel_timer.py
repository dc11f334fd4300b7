"""How long single kernels keep devices busy, family by family, for all batch sizes and devices at once.

Kernels in FP32 come from the learned kernel times; those on tensor cores, which no table covers, from tiles and
bandwidth; what memory binds from the learned element-wise kernel at the same traffic.

The learned times are those of one eager call on an idle device; what they say of the kernel alone is
:meth:`~dippm.costs.kernels.model.KernelModel.busy_ms`, taken for at least what the cache allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions
from dippm.costs.contraction import WIDEST_HELD_STATE
from dippm.costs.depthwise import is_depthwise, runs_natively
from dippm.costs.device_sheets import DeviceSheets
from dippm.costs.flash_attention import SPLIT_TILE, split_rows
from dippm.costs.kernel_plan import ROW_TABLES, STREAM_RATES, Distinct, KernelPlan
from dippm.costs.kernels.growing import grow_with_rows, level_few_rows
from dippm.costs.kernels.mapping import conv2d_busy_ms
from dippm.costs.kernels.model import KernelModel
from dippm.costs.kernels.problems import (
    ELEMENTWISE_OPERATORS,
    ElementwiseProblem,
    Family,
    GemmProblem,
    Problem,
    RowProblem,
)
from dippm.costs.memory_format import MemoryFormats
from dippm.costs.plain_convolutions import shape_of
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import Arithmetic
from dippm.costs.rates import Rates
from dippm.costs.tensor_cores import FEW_ROWS, narrow_gemm_seconds, tensor_gemm_seconds
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["KernelTimer"]

IndexArray = npt.NDArray[np.int64]

_MS = 1e3
_ARITHMETICS = tuple(Arithmetic)
_COPY = tuple(ELEMENTWISE_OPERATORS).index("relu")
# Tensors that each element-wise operator moves.
_MOVED_TENSORS = np.array(list(ELEMENTWISE_OPERATORS.values())) + 1.0
_FP16 = _ARITHMETICS.index(Arithmetic.FP16)
_TF32 = _ARITHMETICS.index(Arithmetic.TF32)
# cuDNN has kernels of their own for depthwise filters up to this one, for one output of each input.
_WIDEST_FILTER = 7.0
# Groups thinner than this leave tensor-core tiles empty: the library takes a direct kernel.
_THIN_GROUP = 8
# Rows of queries, keys, and width of values.
_ATTENTION_TILE = (128.0, 64.0, 32.0, 32.0)
# How long a block of a product of a matrix by a vector runs at least, and blocks that a multiprocessor holds: 16 of 128
# threads; both assumed.
_VECTOR_BLOCK_S = 2e-6
_VECTOR_BLOCKS = 16.0
# Rows of a step of a recurrent layer in FP32 that are worked out together; assumed.
_STEP_ROWS = 8.0
# What a multiprocessor holds of the weights of a recurrent layer from step to step, in its registers.
_HELD_BYTES = 256 * 1024.0
# Formats in which fused attention is FlashAttention.
_HALVES = tuple(_ARITHMETICS.index(value) for value in (Arithmetic.FP16, Arithmetic.BF16))
# Formats in which it multiplies numbers of 32 bits, and what its backward pass reaches of the forward pass's rate
# there: 0.48 on an A100 (xformers' pull request 467), 0.65 on an RTX 5060 Ti.
_SINGLES = tuple(_ARITHMETICS.index(value) for value in (Arithmetic.FP32, Arithmetic.TF32))
_SPLIT_GRADIENT = 0.55
# By how much Winograd's algorithm saves products of a convolution of three by three pixels.
_WINOGRAD = 2.25


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelTimer:
    """Times kernels of one graph, or of several that are laid out together, on devices whose formats run alike.

    Each family takes its distinct kernels and returns their seconds, [D, B, U].

    Args:
        plan: The distinct kernels.
        at: The plan's workload at the batch sizes.
        sheets: Figures of the devices.
        conditions: Precision and layout.
        rates: Sustained rates of each device.
        kernels: Learned kernel times.
    """

    plan: KernelPlan
    at: WorkloadAt
    sheets: DeviceSheets
    conditions: Conditions
    rates: tuple[Rates, ...]
    kernels: KernelModel

    def gemm(self, part: Distinct) -> FloatArray:
        """Matrix products, batched or not: tiles on tensor cores, tables in FP32."""
        sizes = self.at.gemm
        columns = part.index
        b, m, n, k = (np.maximum(size.take(columns, axis=1), 1.0) for size in (sizes.b, sizes.m, sizes.n, sizes.k))
        node = part.node[columns]
        peak, is_tensor = self._peaks(node)
        result = self._empty(len(columns))
        if is_tensor.any():
            shape = [size[:, is_tensor] for size in (b, m, n, k)]
            own_peak = peak[..., is_tensor] * self._rate("tensor_gemm")
            product = self._tensor_product(*shape, peak=own_peak)
            has_narrow = sizes.is_packed[columns][is_tensor] | (shape[1] <= FEW_ROWS)
            narrow = narrow_gemm_seconds(*shape, peak_flops=own_peak)
            result[..., is_tensor] = np.where(has_narrow, np.minimum(product, narrow), product)
        # One matrix by one matrix is what a linear layer runs, whatever the operator is called.
        is_single = sizes.is_linear[columns] | (b == 1.0)
        # With a bias PyTorch hands such a layer to cuBLASLt, which has tiles, or did so until lately.
        is_tiled = is_single & sizes.has_bias[columns]
        may_stay = is_tensor & self._may_stay_fp32(node)

        def learned_of(family: Family, chosen: npt.NDArray[np.bool_]) -> FloatArray:
            problem = GemmProblem.of(b=b[chosen], m=m[chosen], n=n[chosen], k=k[chosen])
            return self._read_once(self._learned_product(family, problem), problem, is_tiled[chosen])

        for family, of_family in ((Family.LINEAR, is_single), (Family.BMM, ~is_single)):
            plain, close = of_family & ~is_tensor, of_family & may_stay
            if plain.any():
                learned = learned_of(family, plain)[:, None]
                own_peak = np.broadcast_to(peak, result.shape)[:, None, plain]
                learned = np.maximum(learned, self._slower_than_fp32(learned, own_peak))[:, 0]
                result[:, plain] = np.maximum(learned, 2.0 * (b * m * n * k)[plain] / self.sheets.sustained_fp32[:, 0])
            if close.any():
                in_fp32 = learned_of(family, close)
                result[:, close] = self._faster_where_close(result[:, close], in_fp32)
        return np.maximum(result, self._traffic_seconds(node))

    def convolution(self, part: Distinct) -> FloatArray:
        """Convolutions, their transposes and gradients: as products, by thin groups, or by tables in FP32."""
        sizes, columns = self.at.convolution, part.index
        node = part.node[columns]
        batch, cin, cout, height, width = (
            np.maximum(size.take(columns, axis=1), 1.0)
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
        result = self._empty(len(columns))

        on_tensor = is_tensor & ~is_thin
        if on_tensor.any():
            shape = pixels[:, on_tensor].shape
            result[..., on_tensor] = self._tensor_product(
                np.broadcast_to(groups[on_tensor], shape),
                pixels[:, on_tensor],
                n[:, on_tensor],
                np.maximum(k[:, on_tensor], 8.0),
                peak=peak[..., on_tensor] * self._rate("tensor_conv"),
            )
        if is_thin.any():
            flops = 2.0 * (groups * pixels * n * k)[:, is_thin]
            result[..., is_thin] = flops / self._direct_rates(columns[is_thin], node[is_thin])
        plain = ~on_tensor & ~is_thin
        if plain.any():
            learned = self._plain_convolution(columns[plain])
            learned = np.maximum(learned, self._slower_than_fp32(learned, peak[..., plain]))
            flops = 2.0 * (groups * pixels * n * k)[:, plain] / np.where(kernel[plain] > 1.0, _WINOGRAD, 1.0)
            result[..., plain] = np.maximum(learned, flops / self.sheets.sustained_fp32)
        slower = np.where(is_thin, self._rate("direct_weight_gradient"), self._rate("weight_gradient"))
        slower = np.where(sizes.is_weight_gradient[columns], slower, 1.0)
        result *= slower
        traffic = self._traffic_seconds(node)
        result = np.asarray(np.maximum(result, traffic))
        is_last = self._formats.is_last[node]
        result += np.where(on_tensor & ~is_last, self._rate("nchw_shuffle") * traffic, 0.0)
        may_stay = on_tensor & self._may_stay_fp32(node)
        if may_stay.any():
            in_fp32 = np.maximum(
                self._plain_convolution(columns[may_stay]) * slower[..., may_stay], traffic[..., may_stay]
            )
            result[..., may_stay] = self._faster_where_close(result[..., may_stay], in_fp32)
        return result

    def _direct_rates(self, columns: IndexArray, node: IndexArray) -> FloatArray:
        """Rate of convolutions with thin groups, FLOP/s, [D, B, U]."""
        sizes = self.at.convolution.take(columns)
        is_last, is_gradient = self._formats.is_last[node], self.plan.is_backward[node] & sizes.is_transposed
        is_half = self.plan.arithmetic[node] == _FP16
        of_one = is_depthwise(sizes, is_gradient=is_gradient)
        has_wide_filter = of_one & (np.maximum(sizes.kernel_height, sizes.kernel_width) > _WIDEST_FILTER)
        is_wide = has_wide_filter | (of_one & (sizes.in_channels[0] != sizes.out_channels[0]))
        in_nhwc = np.where(is_wide, self._rate("wide_depthwise_nhwc"), self._rate("direct_conv_nhwc"))
        of_library = np.where(is_last, in_nhwc, self._rate("direct_conv"))
        is_own = runs_natively(sizes, is_half=is_half, is_last=is_last, is_gradient=is_gradient)
        # Of wide filters in NCHW, which only lines in FP16 have there, cuDNN too computes each output by itself.
        is_own = is_own | (has_wide_filter & ~is_last)
        return np.where(is_own, self._rate("own_depthwise") * self.sheets.issued, of_library * self.sheets.fp32)

    def _plain_convolution(self, columns: IndexArray) -> FloatArray:
        """Time of convolutions in FP32 without TF32, seconds, [D, B, U]."""
        shape = shape_of(self.at.convolution, columns)
        busy_ms = conv2d_busy_ms(self.kernels, shape, self.sheets.devices)
        return self._within_cache(busy_ms, shape.bytes).reshape(len(busy_ms), -1, len(columns))

    def attention(self, part: Distinct) -> FloatArray:
        """Fused attention: whole tiles of queries and keys at a share of the peak."""
        sizes, columns = self.at.attention, part.index
        node = part.node[columns]
        batch, heads, key_heads, queries = (
            size.take(columns, axis=1) for size in (sizes.batch, sizes.heads, sizes.key_heads, sizes.queries)
        )
        # FlashAttention takes no mask. Of a single query the heads that share keys are the rows of one block.
        is_flash = np.isin(self.plan.arithmetic[node], _HALVES) & ~sizes.has_mask[columns]
        is_folded = is_flash & (queries == 1.0) & self.sheets.has_flash
        blocks = batch * np.where(is_folded, key_heads, heads)
        queries = np.where(is_folded, heads / np.maximum(key_heads, 1.0), queries)
        keys, width, value_width = (
            np.ceil(size.take(columns, axis=1) / tile) * tile
            for size, tile in zip((sizes.keys, sizes.width, sizes.value_width), _ATTENTION_TILE[1:], strict=True)
        )
        peak, is_tensor = self._peaks(node)
        peak = np.where(self.plan.arithmetic[node] == _TF32, np.maximum(peak, self.sheets.fp32), peak)
        waves = np.ceil(blocks * np.ceil(queries / _ATTENTION_TILE[0]) / self.sheets.sms)
        rows = waves * self.sheets.sms * _ATTENTION_TILE[0]
        if is_flash.any():
            split = split_rows(blocks * np.ceil(queries / SPLIT_TILE), sizes.keys[:, columns], width, self.sheets.sms)
            rows = np.where(is_flash & self.sheets.has_flash, np.minimum(rows, split), rows)
        flops = 2.0 * rows * keys * (width + value_width)
        flops = np.where(sizes.is_causal[columns], flops / 2.0, flops) * sizes.products[columns]
        split = self.sheets.split_attention * np.where(sizes.products[columns] > 1.0, _SPLIT_GRADIENT, 1.0)
        is_split = np.isin(self.plan.arithmetic[node], _SINGLES) & (split > 0.0)
        rate = peak * self._rate("attention")
        rate = np.where(is_tensor, rate, np.minimum(rate, self.sheets.sustained_fp32))
        rate = np.where(is_split, split, rate)
        return np.maximum(flops / rate, self._traffic_seconds(node))

    def recurrent(self, part: Distinct) -> FloatArray:
        """Recurrent layers: the products of all inputs at once, then one step after the other."""
        sizes, columns = self.at.recurrent, part.index
        node = part.node[columns]
        steps, batch, width = (size.take(columns, axis=1) for size in (sizes.steps, sizes.batch, sizes.input_size))
        hidden, handed, layers, directions, gates = (
            size[columns]
            for size in (sizes.hidden_size, sizes.projection_size, sizes.layers, sizes.directions, sizes.gates)
        )
        outputs = np.broadcast_to(gates * hidden, steps.shape)
        first, deeper, step = (
            self._products_of_layers(node, rows, outputs, np.broadcast_to(depth, steps.shape), is_step=is_step)
            for rows, depth, is_step in (
                (steps * batch, width, False),
                (steps * batch, directions * handed, False),
                (batch, handed, True),
            )
        )
        is_held = (hidden <= WIDEST_HELD_STATE) & (handed == hidden)
        step = np.maximum(step, np.where(is_held, self._rate("held_step_us"), self._rate("step_us")) / 1e6)
        weight_bytes = outputs * handed * self.plan.work.first_element_bytes(node)
        step = np.maximum(step, self._reading_seconds(np.maximum(weight_bytes - self.sheets.sms * _HELD_BYTES, 0.0)))
        total = sizes.products[columns] * directions * (first + (layers - 1.0) * deeper + layers * steps * step)
        return np.maximum(total, self._traffic_seconds(node))

    def _products_of_layers(
        self, node: IndexArray, rows: FloatArray, columns: FloatArray, depth: FloatArray, *, is_step: bool
    ) -> FloatArray:
        """Time of one matrix by one matrix in each recurrent layer, seconds, [B, U] to [D, B, U].

        That of all inputs is what a linear layer runs. Those of single steps run in kernels that stay on the device
        from step to step, which no table covers.
        """
        peak, is_tensor = self._peaks(node)
        one = np.ones_like(rows)
        tensor_gemm = self._rate("tensor_gemm")
        peak = peak * np.where(is_tensor, tensor_gemm, 1.0)
        result = self._tensor_product(one, rows, columns, depth, peak=peak)
        plain, close = ~is_tensor, is_tensor & self._may_stay_fp32(node)
        if is_step:
            # Such a kernel has all multiprocessors hold a part of the weights, and no tiles of many rows.
            flops = 2.0 * np.ceil(rows / _STEP_ROWS) * _STEP_ROWS * columns * depth
            in_fp32 = flops / (self.sheets.fp32 * tensor_gemm)
            result = np.minimum(result, in_fp32)
        elif (plain | close).any():
            m, n, k = (np.maximum(size, 1.0).ravel() for size in (rows, columns, depth))
            in_fp32 = self._learned_product(Family.LINEAR, GemmProblem.of(m=m, n=n, k=k))
            in_fp32 = in_fp32.reshape(len(in_fp32), *rows.shape)
        else:
            return result
        result[..., plain] = np.maximum(in_fp32, self._slower_than_fp32(in_fp32, peak))[..., plain]
        result[..., close] = self._faster_where_close(result[..., close], in_fp32[..., close])
        return result

    def row(self, part: Distinct) -> FloatArray:
        """Softmax and layer norms in FP32, of which there are tables."""
        sizes = self.at.row
        position = np.searchsorted(sizes.node, part.node[part.index])
        rows, width = (np.maximum(size[:, position], 1.0) for size in (sizes.rows, sizes.width))
        nodes = self.plan.work.sizes.nodes
        tables = np.array([ROW_TABLES[nodes[i].kind].value for i in part.node[part.index]])
        result = self._empty(rows.shape[1])
        for family in (Family.SOFTMAX, Family.LAYER_NORM):
            chosen = tables == family.value
            if chosen.any():
                problem = RowProblem.of(rows=rows[:, chosen].ravel(), width=width[:, chosen].ravel())
                result[..., chosen] = self._learned(family, problem, batches=len(rows))
        return result

    def stream(self, part: Distinct, casts: Distinct) -> tuple[FloatArray, FloatArray]:
        """What memory binds: an element-wise kernel of the same traffic, faster or slower by what it does.

        Args:
            part: The kernels.
            casts: Casts of autocast, which are such kernels.

        Returns:
            The seconds of both.
        """
        node = part.node[part.index]
        read = self.at.bytes_read.take(node, axis=1)
        is_group_norm = self.plan.work.sizes.is_kind(OpKind.GROUP_NORM)[node]
        reads = self._rate("group_norm_reads") if is_group_norm.any() else 1.0
        moved = np.where(is_group_norm, reads, 1.0) * read + self.at.bytes_written.take(node, axis=1)
        rates = np.array([[getattr(own, name) for name in STREAM_RATES] for own in self.rates])
        shares = rates[:, None, self.plan.stream_group[part.index]]
        of_casts = (self.at.casts.bytes_read + self.at.casts.bytes_written).take(casts.index, axis=1)
        if moved.ndim > of_casts.ndim:
            of_casts = np.broadcast_to(of_casts, (len(moved), *of_casts.shape))
        operators = np.concatenate([self.plan.stream_operator[part.index], np.full(len(casts.index), _COPY)])
        seconds = self._stream_seconds(np.concatenate([moved, of_casts], axis=-1), operators=operators)
        return seconds[..., : len(node)] / shares, seconds[..., len(node) :]

    def copy(self, moved: FloatArray) -> FloatArray:
        """Seconds of copies that move as many bytes, [B, n] to [D, B, n]."""
        operators = np.full(moved.shape[1], _COPY)
        return np.asarray(self._stream_seconds(moved, operators=operators) / self._rate("move"))

    # What the families share.

    def _rate(self, name: str) -> FloatArray | float:
        """A rate that is the same on all devices, or that of each, [D, 1, 1]."""
        first, *others = (getattr(own, name) for own in self.rates)
        if all(other == first for other in others):
            return float(first)
        return np.array([first, *others])[:, None, None]

    @property
    def _formats(self) -> MemoryFormats:
        return self.plan.formats[self.conditions.layout]

    def _empty(self, kernels: int) -> FloatArray:
        return np.empty((len(self.sheets.devices), len(self.at.flops), kernels))

    def _peaks(self, node: IndexArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Peak rate of each node, FLOP/s, [D, 1, U], and whether it is a tensor-core rate, [U]."""
        codes = self.plan.arithmetic[node]
        return self.sheets.peaks[:, None, codes], self.sheets.is_tensor[codes]

    def _slower_than_fp32(self, seconds: FloatArray, peak: FloatArray) -> FloatArray:
        """FP32 times stretched to a format that the device computes more slowly, such as FP64."""
        return seconds * np.maximum(self.sheets.fp32 / peak, 1.0)

    def _may_stay_fp32(self, node: IndexArray) -> npt.NDArray[np.bool_]:
        """Which kernels may run in FP32 though TF32 is allowed, and would not be far behind on some device, [U]."""
        result: npt.NDArray[np.bool_] = (self.plan.arithmetic[node] == _TF32) & bool(self.sheets.is_tf32_close.any())
        return result

    def _faster_where_close(self, in_tf32: FloatArray, in_fp32: FloatArray) -> FloatArray:
        """The faster of both where the rates are close, TF32 elsewhere; [D, ...]."""
        is_close = self.sheets.is_tf32_close.reshape(-1, *(1,) * (in_tf32.ndim - 1))
        result: FloatArray = np.where(is_close, np.minimum(in_tf32, in_fp32), in_tf32)
        return result

    def _tensor_product(
        self, b: FloatArray, m: FloatArray, n: FloatArray, k: FloatArray, *, peak: FloatArray
    ) -> FloatArray:
        return tensor_gemm_seconds(b, m, n, k, peak_flops=peak, sm_count=self.sheets.sms)

    def _traffic_seconds(self, node: IndexArray) -> FloatArray:
        """Time of the least traffic of each node."""
        return self._moving_seconds(self.at.bytes_read.take(node, axis=1) + self.at.bytes_written.take(node, axis=1))

    def _moving_seconds(self, moved: FloatArray) -> FloatArray:
        """Time to move bytes, part of them from the cache: [B, U] to [D, B, U]."""
        return np.asarray(self._reading_seconds(moved) / self._rate("stream"))

    def _reading_seconds(self, moved: FloatArray) -> FloatArray:
        """The same at the full bandwidth of both."""
        warm = np.minimum(moved, self.sheets.warm_bytes)
        return np.asarray(warm / self._cache_bandwidth() + (moved - warm) / self.sheets.bandwidth)

    def _cache_bandwidth(self) -> FloatArray:
        """Bytes that the L2 cache delivers per second, [D, 1, 1]."""
        gain, per_cycle, of_memory = (
            self._rate("cache_gain"),
            self._rate("cache_bytes_per_cycle"),
            self.sheets.bandwidth,
        )
        by_cycles = np.maximum(self.sheets.sm_cycles * per_cycle, of_memory)
        return np.where(np.greater(per_cycle, 0.0), by_cycles, of_memory * gain)

    def _stream_seconds(self, moved: FloatArray, *, operators: IndexArray) -> FloatArray:
        """Time of an element-wise kernel that moves as many bytes.

        Learned where the device or a relative was measured. Other devices take the bandwidth share that whole models on
        such devices were fitted with, because five devices teach too little of a sixth.

        Shapes:
            moved: [B, U], or [D, B, U] where devices differ in it; operators: [U]; result: [D, B, U].
        """
        seconds = self._moving_seconds(moved)
        devices = self.sheets.devices
        weight = np.array([self.kernels.support(Family.ELEMENTWISE, device).weight for device in devices])
        known = np.flatnonzero(weight > 0.0)
        # Where devices differ in what kernels move, each is asked for by itself.
        differs = moved.ndim > operators.ndim + 1
        for own, chosen in zip(moved[known], known[:, None], strict=True) if differs else [(moved, known)]:
            if not len(chosen):
                continue
            elements = np.maximum(own / (4.0 * _MOVED_TENSORS[operators]), 1.0)
            problem = ElementwiseProblem(elements=elements.ravel(), operator=np.tile(operators, len(own)))
            learned = self._learned(Family.ELEMENTWISE, problem, batches=len(own), chosen=chosen)
            share = weight[chosen, None, None]
            seconds[chosen] = share * learned + (1.0 - share) * seconds[chosen]
        return seconds

    def _learned_product(self, family: Family, problem: GemmProblem) -> FloatArray:
        """Learned time of matrix products, seconds, that of linear layers growing with their rows, [D, n]."""

        def learned(asked: GemmProblem) -> FloatArray:
            return self._learned(family, asked, batches=1)[:, 0]

        return grow_with_rows(learned, problem) if family is Family.LINEAR else level_few_rows(learned, problem)

    def _read_once(self, seconds: FloatArray, problem: GemmProblem, is_tiled: npt.NDArray[np.bool_]) -> FloatArray:
        """Learned times of products in FP32, of matrices by vectors at most that of reading the matrix once, [D, n].

        For these cuBLAS has kernels without tiles (``gemv2T``, ``gemvNSP``, ``gemvx`` in traces of decoders, stacks of
        products included), of which none was measured. From two rows on it has tiles: on an A100 stacks with two
        columns were measured to take seven times as long as their bytes.

        Args:
            seconds: The learned times.
            problem: The products.
            is_tiled: Those that are run with tiles all the same, [n].
        """
        by_vector = np.flatnonzero(((problem.m == 1.0) | (problem.n == 1.0)) & ~is_tiled)
        devices = np.flatnonzero(~self.sheets.has_learned_fp32)
        if not (len(by_vector) and len(devices)):
            return seconds
        moved = problem.bytes[None, by_vector]
        by_bytes = self._stream_seconds(moved, operators=np.full(len(by_vector), _COPY))[:, 0]
        by_blocks = problem.b[by_vector] * _VECTOR_BLOCK_S / (self.sheets.sms[:, 0] * _VECTOR_BLOCKS)
        by_flops = problem.flops[by_vector] / self.sheets.fp32[:, 0]
        once = np.maximum(by_bytes, np.maximum(by_blocks, by_flops))
        result, at = seconds.copy(), np.ix_(devices, by_vector)
        result[at] = np.minimum(result[at], once[devices])
        return result

    def _learned(
        self, family: Family, problem: Problem, *, batches: int, chosen: IndexArray | None = None
    ) -> FloatArray:
        """Learned time of the kernels, seconds, at least what the cache allows; [D, B, U].

        Args:
            family: The kernel family.
            problem: Its problems, all of one batch size first.
            batches: Number of batch sizes.
            chosen: Positions of the devices to ask for; None for all.
        """
        positions = range(len(self.sheets.devices)) if chosen is None else chosen
        devices = [self.sheets.devices[i] for i in positions]
        busy_ms = self.kernels.busy_ms(family, problem, devices)
        return self._within_cache(busy_ms, problem.bytes, chosen=chosen).reshape(len(devices), batches, -1)

    def _within_cache(self, busy_ms: FloatArray, moved: FloatArray, *, chosen: IndexArray | None = None) -> FloatArray:
        """Seconds, at least what the operands take from the cache.

        Shapes:
            busy_ms and result: [D, n]; moved: [n].
        """
        bandwidth = self._cache_bandwidth()[slice(None) if chosen is None else chosen, :, 0]
        return np.maximum(busy_ms / _MS, moved / bandwidth)
