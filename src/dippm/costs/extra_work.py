"""What some nodes do beside moving bytes: a block for each row or group, windows, sums, images in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.edges import IndexArray
from dippm.costs.head_convolutions import plain_head_terms
from dippm.costs.kept_answers import keep_answers
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.resizing import count_planes, resizes_in_turn
from dippm.costs.row_sums import row_sum_cycles
from dippm.costs.split_convolutions import run_by_group, share_side_by_side, split_depthwise
from dippm.costs.traffic import reads_twice
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec
from dippm.graph import ARITHMETIC_KINDS, DType, OpKind
from dippm.graph.codes import mark
from dippm.units import BYTES_PER_MIB, MEGA, MILLI

__all__ = [
    "BF16_CHANNEL",
    "GRADIENT_CHANNEL",
    "NATIVE_NORM_US",
    "add_extra_work",
    "add_turns",
    "add_windows_and_groups",
    "channel_blocks",
    "joined_one_by_one",
    "joins_ms",
    "native_batch_norms",
    "placed_elements",
    "placed_ms",
    "reordered_images",
    "rows_with_blocks",
    "windows_ms",
]

GRADIENT_CHANNEL = 2.0
"""How many images the gradient of a batch norm goes over."""

BF16_CHANNEL = 2.0
"""How much longer an element of a batch norm takes in BF16, which PyTorch's own kernels run, than by cuDNN."""

NATIVE_NORM_US = 3.3
"""What PyTorch's own batch norm of inference runs before it takes, microseconds: two small kernels, for the mean and
the deviation of each channel, and what lies between (1,252 on an H200, data/labels/h200/shared-traces.parquet)."""

# A read that is added up beside one whose place is kept where it is the largest so far, 0.085 and 0.2 cycles on an H100
# and an H200 (data/labels).
_MEAN_TAP = 0.4
_IMAGE_RANK = 4
# Blocks of a group norm's statistics that a multiprocessor runs at the same time.
_BLOCKS_PER_SM = 2
# Threads that a multiprocessor holds.
_THREADS_PER_SM = 2048
# So many taps of a filter take as long as the start of a kernel for a group that is small.
_TAPS_OF_A_START = 50.0
_IS_BF16 = mark(DType, [DType.BFLOAT16])
_WITH_NATIVE_NORMS = frozenset({Precision.AMP_BF16, Precision.BF16, Precision.FP16})
_HALF_BYTES = 2.0
_VECTOR_BYTES = 16
# Threads of a block of a concatenation, and blocks at most for each operand and multiprocessor.
_THREADS_OF_A_JOIN, _BLOCKS_OF_AN_OPERAND = 128.0, 32.0


def add_extra_work(
    busy_ms: FloatArray,
    plan: KernelPlan,
    at: WorkloadAt,
    *,
    devices: Sequence[DeviceSpec],
    conditions: Conditions,
    rates: Sequence[Rates],
) -> None:
    """Add what the nodes of a model that is not compiled do beside moving bytes, but for copies to another order.

    Args:
        busy_ms: Time for which each node keeps each device busy by its kernel; changed in place.
        plan: The kernels.
        at: Their work.
        devices: The devices.
        conditions: Precision, layout, mode and runtime.
        rates: Sustained rates of each device, those of its architecture.

    Shapes:
        busy_ms: [D, B, n_nodes].
    """
    sms = [device.sm_count for device in devices]
    of_rows: tuple[IndexArray, FloatArray] | None = None
    of_channels: tuple[IndexArray, FloatArray] | None = None
    if conditions.mode is Mode.TRAINING:
        of_rows = row_sum_cycles(plan.work.sizes, at, plan.is_backward, sms=sms)
        if any(own.batch_norm_cycles for own in rates):
            of_channels = channel_blocks(plan, at, layout=conditions.layout, sms=sms)
    for place, (busy, device, own) in enumerate(zip(busy_ms, devices, rates, strict=True)):
        _add_to_kernels(busy, plan, at, device=device, conditions=conditions, rates=own)
        if of_rows is not None:
            node, cycles = of_rows
            busy[:, node] += cycles[place] / _cycles_per_ms(device)
        if of_channels is not None and own.batch_norm_cycles:
            node, in_turn = of_channels
            blocks_ms = own.batch_norm_cycles * in_turn[place] / _cycles_per_ms(device)
            busy[:, node] = np.maximum(busy[:, node], own.gap_us * MILLI + blocks_ms)


def _add_to_kernels(
    busy_ms: FloatArray, plan: KernelPlan, at: WorkloadAt, *, device: DeviceSpec, conditions: Conditions, rates: Rates
) -> None:
    """What :func:`add_extra_work` adds on a device in training and inference alike; busy_ms: [B, n_nodes]."""
    gap_ms = rates.gap_us * MILLI
    if rates.row_cycles:
        node, rows = rows_with_blocks(plan, at)
        row_ms = rates.row_cycles / (device.sm_count * _cycles_per_ms(device))
        busy_ms[:, node] = np.maximum(busy_ms[:, node], gap_ms + row_ms * rows)
    if rates.element_cycles:
        node, placed = placed_ms(plan, at, device=device, mode=conditions.mode, rates=rates)
        busy_ms[:, node] += placed
    if rates.join_cycles or rates.join_block_cycles:
        node, join_ms = joins_ms(plan, at, device=device, layout=conditions.layout, rates=rates)
        busy_ms[:, node] = np.maximum(busy_ms[:, node], gap_ms + join_ms)
    if rates.pool_element_cycles or rates.pool_tap_cycles or rates.group_norm_cycles:
        add_windows_and_groups(busy_ms, plan, at, device=device, rates=rates)
    busy_ms[:, native_batch_norms(plan, conditions.precision)] += NATIVE_NORM_US * MILLI
    if rates.plane_cycles or rates.group_kernel_us:
        add_turns(busy_ms, plan, at, layout=conditions.layout, device=device, rates=rates)
    if rates.side_by_side and conditions.runtime is Runtime.CUDA_GRAPH:
        node, groups = run_by_group(plan, at.convolution, layout=conditions.layout)
        busy_ms[:, node] *= share_side_by_side(busy_ms[:, node], groups, most=rates.side_by_side)
    if rates.head_cycles:
        node, terms = plain_head_terms(plan, at, layout=conditions.layout, sm_count=device.sm_count)
        head_ms = rates.head_cycles * terms / _cycles_per_ms(device)
        busy_ms[:, node] = np.maximum(busy_ms[:, node], gap_ms + head_ms)


def rows_with_blocks(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray]:
    """Nodes that run a block for each row, as layer norm and its gradient do, and their rows, [n] and [B, n]."""
    sizes, node = plan.work.sizes, at.row.node
    is_norm = sizes.is_kind(OpKind.LAYER_NORM)[node]
    is_norm |= (sizes.is_kind(OpKind.NORM_GRAD) & sizes.has_function(OpKind.LAYER_NORM.value))[node]
    is_norm &= at.row.is_last
    return node[is_norm], at.row.rows[:, is_norm]


def placed_elements(plan: KernelPlan, at: WorkloadAt, *, is_training: bool) -> tuple[IndexArray, FloatArray]:
    """Kernels that find the place of every element by itself, and how many elements they write, [n] and [B, n].

    Batch norms of inference do, and arithmetic whose operands are spread over the result, or have another format than
    it: PyTorch has kernels that read several elements at once for operands alike alone.

    Args:
        plan: The kernels.
        at: Their work.
        is_training: Whether they are those of a training step.
    """
    return _placed_at(at, plan, is_training=is_training)


@keep_answers
def _placed_at(at: WorkloadAt, plan: KernelPlan, *, is_training: bool) -> tuple[IndexArray, FloatArray]:
    """What :func:`placed_elements` gives."""
    node, elements = _placed(plan, is_training=is_training)
    return node, evaluate(elements, at.batches)


@keep_answers
def _placed(plan: KernelPlan, *, is_training: bool) -> tuple[IndexArray, FloatArray]:
    """The same with the batch left open, [n] and [n, D]."""
    sizes, types, edges = plan.work.sizes, plan.work.types, plan.work.sizes.edges
    is_arithmetic = sizes.is_kind(*ARITHMETIC_KINDS)
    read = np.flatnonzero(is_arithmetic[edges.read_node] & (sizes.rank(edges.read_tensor) > 0))
    reader, operand = edges.read_node[read], edges.read_tensor[read]
    result = sizes.outputs(reader)
    own, whole = (evaluate(sizes.elements_of(tensors), np.ones(1))[0] for tensors in (operand, result))
    is_unlike = ((own > 1.0) & (own < whole)) | (types.read_bytes[read] != types.tensor_bytes[result])
    is_placed = sizes.is_kind(OpKind.BATCH_NORM) & ~reads_twice(sizes) & (not is_training)
    is_placed[reader[is_unlike]] = True
    node = np.flatnonzero(is_placed)
    return node, sizes.elements_of(sizes.outputs(node))


def placed_ms(
    plan: KernelPlan, at: WorkloadAt, *, device: DeviceSpec, mode: Mode, rates: Rates
) -> tuple[IndexArray, FloatArray]:
    """Kernels that find the place of every element by itself, and what that takes, ms, [n] and [B, n]."""
    node, elements = placed_elements(plan, at, is_training=mode is Mode.TRAINING)
    return node, rates.element_cycles * elements / (device.sm_count * _cycles_per_ms(device))


def joins_ms(
    plan: KernelPlan, at: WorkloadAt, *, device: DeviceSpec, layout: Layout, rates: Rates
) -> tuple[IndexArray, FloatArray]:
    """Concatenations, and what their elements or their blocks take, ms, [n] and [B, n].

    Those that copy element by element take cycles for each. All of them give every operand as many blocks of threads
    as the largest one has work for, but no more than 32 for a multiprocessor: where there are many operands, as in a
    DenseNet, most blocks find nothing to do, and have to be started all the same.

    Source: ``getCatGridContig`` and ``CatArrayBatchedCopy`` in PyTorch's ``ATen/native/cuda/Shape.cu``.
    """
    node, operands, elements, most_blocks = _joins_at(at, plan, layout)
    sm_cycles_per_ms = device.sm_count * _cycles_per_ms(device)
    elements_ms = rates.join_cycles / sm_cycles_per_ms * elements
    if not len(node) or not rates.join_block_cycles:
        return node, elements_ms
    blocks = operands * np.minimum(most_blocks, _BLOCKS_OF_AN_OPERAND * device.sm_count)
    return node, np.maximum(elements_ms, rates.join_block_cycles / sm_cycles_per_ms * blocks)


@keep_answers
def _joins_at(
    at: WorkloadAt, plan: KernelPlan, layout: Layout
) -> tuple[IndexArray, IndexArray, FloatArray, FloatArray]:
    """Concatenations.

    Returns:
        The nodes, how many operands each has, how many elements it copies one by one, and for how many blocks the
        largest of its operands has work.

    Shapes:
        [n], [n], [B, n], [B, n].
    """
    node, is_one_by_one, operands, per_block, elements, of_operands = _joins(plan, layout)
    one_by_one = np.where(is_one_by_one, evaluate(elements, at.batches), 0.0)
    if not len(node):
        return node, operands, one_by_one, one_by_one
    first = np.cumsum(operands) - operands
    largest = np.maximum.reduceat(evaluate(of_operands, at.batches), first, axis=1)
    return node, operands, one_by_one, np.ceil(largest / per_block)


@keep_answers
def _joins(
    plan: KernelPlan, layout: Layout
) -> tuple[IndexArray, npt.NDArray[np.bool_], IndexArray, FloatArray, FloatArray, FloatArray]:
    """The same with the batch left open.

    Returns:
        The nodes, whether each copies one by one, how many operands it has, how many elements a block copies, and the
        elements of the results and of all operands.

    Shapes:
        [n] each, but for the last two: [n, D] and [operands of all, D].
    """
    sizes, types, edges = plan.work.sizes, plan.work.types, plan.work.sizes.edges
    read = np.flatnonzero(sizes.is_kind(OpKind.CONCAT)[edges.read_node])
    reader, operand = edges.read_node[read], edges.read_tensor[read]
    node, operands = np.unique(reader, return_counts=True)
    result = sizes.outputs(node)
    is_one_by_one = np.isin(node, joined_one_by_one(plan, layout))
    element_bytes = np.maximum(types.tensor_bytes[result], 1.0)
    # Numbers of 16 bits are copied four at a time where rows are no whole vectors.
    at_once_bytes = np.where(is_one_by_one & (element_bytes <= _HALF_BYTES), _VECTOR_BYTES / 2, _VECTOR_BYTES)
    per_block = _THREADS_OF_A_JOIN * np.maximum(at_once_bytes / element_bytes, 1.0)
    return node, is_one_by_one, operands, per_block, sizes.elements_of(result), sizes.elements_of(operand)


@keep_answers
def joined_one_by_one(plan: KernelPlan, layout: Layout) -> IndexArray:
    """Concatenations that copy element by element, and not several at once.

    PyTorch's kernel for the latter asks that rows are whole vectors of 16 bytes: what lies side by side in an operand,
    from the dimension on along which they are joined. It knows no other order of dimensions than their own. A row that
    holds the batch is taken for one of a single sample.

    Args:
        plan: The kernels.
        layout: Layout of the images.
    """
    sizes, types, edges = plan.work.sizes, plan.work.types, plan.work.sizes.edges
    is_join = sizes.is_kind(OpKind.CONCAT)
    if plan.joins_in_vectors:
        read = np.flatnonzero(is_join[edges.read_node])
        reader, operand = edges.read_node[read], edges.read_tensor[read]
        result = sizes.outputs(reader)
        # The dimension along which they are joined is the one in which they differ from the result, or which it has in
        # addition; of a single operand all lies side by side.
        one = np.ones(1)
        elements, of_result = (evaluate(sizes.elements_of(tensors), one)[0] for tensors in (operand, result))
        is_row = elements == of_result
        row_bytes = types.tensor_bytes[operand].copy()
        for place in range(int(sizes.rank(operand).max(initial=0))):
            own, whole = (sizes.dimension(tensors, place) for tensors in (operand, result))
            is_row |= (own != whole).any(axis=1)
            row_bytes *= np.where(is_row & (place < sizes.rank(operand)), evaluate(own, one)[0], 1.0)
        is_whole = np.ones(len(is_join), dtype=np.bool_)
        is_whole[reader[row_bytes % _VECTOR_BYTES > 0]] = False
        is_turned = plan.formats[layout].is_last & (sizes.rank(sizes.outputs(np.arange(len(is_join)))) == _IMAGE_RANK)
        is_join &= ~is_whole | is_turned
    return np.flatnonzero(is_join)


def add_windows_and_groups(
    busy_ms: FloatArray, plan: KernelPlan, at: WorkloadAt, *, device: DeviceSpec, rates: Rates
) -> None:
    """Let pooling take what it writes and reads one by one, and group norms the one block that each group has.

    Args:
        busy_ms: Time for which each node keeps the device busy by its bytes alone; changed in place.
        plan: The kernels.
        at: Their work.
        device: The device.
        rates: Cycles of an element and a read of a pool, and of an element of a group.

    Shapes:
        busy_ms: [B, n_nodes].
    """
    sizes = plan.work.sizes
    windows, taps_ms = windows_ms(plan, at, device=device, rates=rates)
    busy_ms[:, windows] = np.maximum(busy_ms[:, windows], rates.gap_us * MILLI + taps_ms)
    is_norm = sizes.is_kind(OpKind.GROUP_NORM)[at.row.node]
    elements = np.broadcast_to(at.row.width, at.row.rows.shape)[:, is_norm]
    waves = np.ceil(at.row.rows[:, is_norm] / (_BLOCKS_PER_SM * device.sm_count))
    busy_ms[:, at.row.node[is_norm]] += rates.group_norm_cycles * waves * elements / _cycles_per_ms(device)


def windows_ms(plan: KernelPlan, at: WorkloadAt, *, device: DeviceSpec, rates: Rates) -> tuple[IndexArray, FloatArray]:
    """Pooling by windows, and what its elements and all that they read take, ms, [n] and [B, n]."""
    node, tap, window, elements = _windows_at(at, plan)
    cycles = rates.pool_element_cycles + rates.pool_tap_cycles * tap * window
    return node, cycles * elements / (device.sm_count * _cycles_per_ms(device))


@keep_answers
def _windows_at(at: WorkloadAt, plan: KernelPlan) -> tuple[IndexArray, FloatArray, FloatArray, FloatArray]:
    """Pooling by windows: the nodes, what a read counts, how many there are for an element, and the elements.

    Shapes:
        [n], [n], [B, n], [B, n].
    """
    sizes, pool = plan.work.sizes, at.pool
    has_window = ~sizes.is_kind(OpKind.GLOBAL_POOL)[pool.node]
    node, elements = pool.node[has_window], pool.out_elements[:, has_window]
    tap = np.where(sizes.is_kind(OpKind.MAX_POOL)[node], 1.0, _MEAN_TAP)
    return node, tap, np.broadcast_to(pool.window, pool.out_elements.shape)[:, has_window], elements


def add_turns(
    busy_ms: FloatArray, plan: KernelPlan, at: WorkloadAt, *, layout: Layout, device: DeviceSpec, rates: Rates
) -> None:
    """Let what a kernel or a library does one after the other take its turns: planes of resized images, groups.

    Args:
        busy_ms: Time for which each node keeps the device busy; changed in place.
        plan: The kernels.
        at: Their work.
        layout: Layout of the images.
        device: The device.
        rates: Cycles of a plane and time of a group.

    Shapes:
        busy_ms: [B, n_nodes].
    """
    convolution = at.convolution
    is_split = split_depthwise(plan, at.convolution, layout=layout)
    if is_split.any():
        taps = (convolution.kernel_height * convolution.kernel_width)[is_split]
        turns = convolution.groups[is_split] * (1.0 + taps / _TAPS_OF_A_START)
        busy_ms[:, convolution.node[is_split]] += rates.group_kernel_us * MILLI * turns
    resized = resizes_in_turn(plan, layout)
    if not len(resized):
        return
    planes, pixels = count_planes(plan.work.sizes, resized, at)
    waves = np.ceil(pixels / (_THREADS_PER_SM * device.sm_count))
    moved = (at.bytes_read + at.bytes_written)[:, resized]
    late = 1.0 + np.minimum(moved / (device.l2_mb * BYTES_PER_MIB), 1.0)
    planes_ms = rates.plane_cycles * late * planes * waves / _cycles_per_ms(device)
    busy_ms[:, resized] = np.maximum(busy_ms[:, resized], rates.gap_us * MILLI + planes_ms)


def channel_blocks(
    plan: KernelPlan, at: WorkloadAt, *, layout: Layout, sms: Sequence[int]
) -> tuple[IndexArray, FloatArray]:
    """Batch norms that take statistics of images in NCHW, and how many elements one multiprocessor goes over, in turn.

    Both cuDNN and PyTorch give each channel one block, so that few channels leave most of a device idle.

    Args:
        plan: The kernels.
        at: Their work.
        layout: Layout of the images.
        sms: Multiprocessors of each device.

    Shapes:
        Result: [n] and [D, B, n].
    """
    sizes = plan.work.sizes
    is_gradient = sizes.is_kind(OpKind.NORM_GRAD) & sizes.has_function(OpKind.BATCH_NORM.value)
    takes_statistics = reads_twice(sizes) & (sizes.is_kind(OpKind.BATCH_NORM) | is_gradient)
    node = np.flatnonzero(takes_statistics & ~plan.formats[layout].is_last)
    image = sizes.inputs(node, 0)
    channels = np.maximum(sizes.dimension(image, 1)[:, 0], 1.0)
    elements = evaluate(sizes.elements_of(image), at.batches) / channels
    elements *= np.where(is_gradient[node], GRADIENT_CHANNEL, 1.0)
    elements *= np.where(_IS_BF16[sizes.arrays.dtype[image]], BF16_CHANNEL, 1.0)
    waves = np.ceil(channels / np.array(sms)[:, None])
    return node, waves[:, None] * elements


@keep_answers
def native_batch_norms(plan: KernelPlan, precision: Precision) -> IndexArray:
    """Batch norms of inference that cuDNN does not run, [n]: of BF16 images, and of FP16 ones with weights in FP16.

    Source: ``_select_batch_norm_backend`` in PyTorch's ``ATen/native/Normalization.cpp``.
    """
    if precision not in _WITH_NATIVE_NORMS:
        return np.zeros(0, dtype=np.int64)
    sizes = plan.work.sizes
    node = np.flatnonzero(sizes.is_kind(OpKind.BATCH_NORM) & ~reads_twice(sizes))
    result: IndexArray = node[plan.work.first_element_bytes(node) == _HALF_BYTES]
    return result


def reordered_images(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray]:
    """Nodes that first copy their image to another order, and what that moves, bytes, [n] and [B, n].

    A group norm works on NCHW alone, and so does what follows it; a convolution whose weight has its channels last
    brings the image back.
    """
    sizes, formats = plan.work.sizes, plan.formats[Layout.NHWC]
    is_chosen = sizes.is_kind(OpKind.GROUP_NORM) & formats.is_read_last
    is_chosen |= sizes.is_kind(OpKind.CONV) & ~formats.is_read_last & formats.is_last
    node = np.flatnonzero(is_chosen)
    image = sizes.inputs(node, 0)
    # An image of one pixel or of one channel has both orders.
    channels, height, width = (sizes.dimension(image, axis)[:, 0] != 1.0 for axis in (1, -2, -1))
    has_orders = (sizes.rank(image) == _IMAGE_RANK) & channels & (height | width)
    node, image = node[has_orders], image[has_orders]
    return node, 2.0 * plan.work.first_element_bytes(node) * evaluate(sizes.elements_of(image), at.batches)


def _cycles_per_ms(device: DeviceSpec) -> float:
    return device.boost_clock_mhz * MEGA * MILLI
