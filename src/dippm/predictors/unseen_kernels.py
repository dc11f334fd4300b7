"""Operators whose kernels no model of the training ran: networks leave them the plain sum's time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.autocast import UNCAST
from dippm.costs.contraction import WIDEST_HELD_STATE
from dippm.costs.depthwise import is_depthwise
from dippm.costs.precision import MATRIX_KINDS, Arithmetic
from dippm.costs.row_sums import sums_rows
from dippm.costs.training_step.moving_gradients import SORTED_SUMS
from dippm.devices import DeviceSpec
from dippm.features.physical import PhysicalPlan
from dippm.graph import DType, OpKind
from dippm.graph.codes import mark

__all__ = ["is_emulated", "is_unseen"]

# Types that no model of the training computes in.
_IS_UNSEEN_TYPE = mark(DType, [DType.FLOAT64, *(dtype for dtype in DType if dtype.is_complex)])
# Pixels of the widest depthwise filters that models of the training have (MixNet, InceptionNeXt).
_WIDEST_FILTER = 11.0


def is_unseen(physical: PhysicalPlan, *, knows_fp32: bool) -> npt.NDArray[np.bool_]:
    """Which classes run kernels that no model of the training had, whatever the device, [C].

    Args:
        physical: The classes of operators.
        knows_fp32: Whether the training had runs in FP32, and not of autocast alone.
    """
    result = _has_unseen_type(physical) | _is_wide_recurrent(physical) | _is_unsorted_scatter(physical)
    result |= _is_wide_depthwise(physical)
    # The runs of autocast alone are of image models, which have no tables.
    return result if knows_fp32 else result | _is_uncast_product(physical) | _is_table_gradient(physical)


def is_emulated(physical: PhysicalPlan, device: DeviceSpec) -> npt.NDArray[np.bool_]:
    """Which classes are products in BF16, for a part of a model asks for it, on a device without units for it, [C]."""
    if "bf16_tensor" in device.peak_tflops:
        return np.zeros(len(physical.node), dtype=np.bool_)
    work = physical.kernels.work
    result = work.sizes.is_kind(*MATRIX_KINDS) & work.types.is_computed_in(Arithmetic.BF16)
    return result[physical.node]


def _has_unseen_type(physical: PhysicalPlan) -> npt.NDArray[np.bool_]:
    """Which classes write a type that no model of the training computes in, [C]."""
    work = physical.kernels.work
    out = work.sizes.outputs(physical.node)
    result: npt.NDArray[np.bool_] = (out >= 0) & _IS_UNSEEN_TYPE[work.types.tensor_format[out]]
    return result


def _is_uncast_product(physical: PhysicalPlan) -> npt.NDArray[np.bool_]:
    """Which classes are products in FP32 that a model keeps from autocast, or their gradients, [C]."""
    work = physical.kernels.work
    arrays, edges = work.sizes.arrays, work.sizes.edges
    is_product = work.sizes.is_kind(*MATRIX_KINDS) & work.types.is_computed_in(Arithmetic.FP32, Arithmetic.TF32)
    is_marked = np.array([UNCAST in attributes for attributes in arrays.attributes], dtype=np.bool_)
    result: npt.NDArray[np.bool_] = is_product & is_marked[arrays.attribute]
    # Gradients have no marks: they read what the product reads.
    storage, is_read = arrays.storage[edges.read_tensor], np.zeros(len(arrays.storage), dtype=np.bool_)
    is_read[storage[result[edges.read_node]]] = True
    reads = np.bincount(edges.read_node, weights=is_read[storage], minlength=len(result)) > 0
    result |= is_product & physical.kernels.is_backward & reads
    return result[physical.node]


def _is_unsorted_scatter(physical: PhysicalPlan) -> npt.NDArray[np.bool_]:
    """Which classes write elements to places that they do not sort first, [C].

    The training had gradients of embeddings and of indices alone, which sort: a dozen kernels, however few places.
    """
    sizes = physical.kernels.work.sizes
    is_sorted = physical.kernels.is_backward & sizes.has_function(*SORTED_SUMS)
    result: npt.NDArray[np.bool_] = (sizes.is_kind(OpKind.SCATTER) & ~is_sorted)[physical.node]
    return result


def _is_table_gradient(physical: PhysicalPlan) -> npt.NDArray[np.bool_]:
    """Which classes are the gradient of an embedding's table, [C]; its kernels' own time follows traces."""
    kernels = physical.kernels
    return sums_rows(kernels.work.sizes, kernels.is_backward)[physical.node]


def _is_wide_recurrent(physical: PhysicalPlan) -> npt.NDArray[np.bool_]:
    """Which classes are recurrent layers of other kernels than those of the training (Sequencer) ran, [C]."""
    recurrent = physical.kernels.work.recurrent
    is_wide = np.zeros(len(physical.kernels.work.sizes.nodes), dtype=np.bool_)
    is_wide[recurrent.table.node] = recurrent.hidden_size > WIDEST_HELD_STATE
    return is_wide[physical.node]


def _is_wide_depthwise(physical: PhysicalPlan) -> npt.NDArray[np.bool_]:
    """Which classes are depthwise convolutions, or gradients of them, with wider filters than the training had, [C].

    Their kernels go over the filter pixel by pixel, so that they are far from what those of small filters reach.
    """
    kernels = physical.kernels
    table = kernels.work.convolution
    sizes, node = table.at(np.ones(1)), table.table.node
    is_wide = np.zeros(len(kernels.work.sizes.nodes), dtype=np.bool_)
    is_wide[node] = is_depthwise(sizes, is_gradient=kernels.is_backward[node] & sizes.is_transposed) & (
        np.maximum(sizes.kernel_height, sizes.kernel_width) > _WIDEST_FILTER
    )
    return is_wide[physical.node]
