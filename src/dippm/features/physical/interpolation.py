"""Interpolating resizes, whose time is that of one thread rather than of what they move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.sizes import GraphSizes
from dippm.costs.training_step.training_graph import Phase
from dippm.costs.workload import WorkloadAt
from dippm.devices import DeviceSpec
from dippm.features.physical.links import Links
from dippm.graph import OpKind

__all__ = ["interpolation_ms", "serial_resizes"]

# Of an interpolating kernel: threads that run at a time, and cycles in which one works out a pixel. The latter from
# EfficientFormerV2 (timm's tables), most of whose time is that of its two to six resizes: 502 to 522 on an RTX 3090,
# 634 to 654 on an RTX 4090, in either layout and at four sizes of the model.
_THREADS_PER_SM = 1536
_CYCLES_PER_IMAGE = 570


def interpolation_ms(sizes: GraphSizes, chosen: IndexArray, at: WorkloadAt, device: DeviceSpec) -> FloatArray:
    """Time that interpolating resizes take beyond their traffic, [B, n_nodes].

    PyTorch's kernels run one thread per pixel of the result, which walks over all samples and channels. Small
    images of many channels leave most of the device idle: all that counts is how long one thread takes. Where the
    channels lie side by side, because the image is a transposed list of tokens, another kernel does better.

    Args:
        sizes: Sizes of the graph.
        chosen: Nodes that interpolate so, see :func:`serial_resizes`.
        at: The work at the batch sizes.
        device: The device.
    """
    result = np.zeros_like(at.flops)
    if len(chosen):
        out = sizes.outputs(chosen)
        pixels = evaluate(sizes.dimension(out, -1), at.batches) * evaluate(sizes.dimension(out, -2), at.batches)
        images = evaluate(sizes.elements_of(out), at.batches) / np.maximum(pixels, 1.0)
        turns = np.ceil(pixels / (device.sm_count * _THREADS_PER_SM))
        result[:, chosen] = images * turns * _CYCLES_PER_IMAGE / (device.boost_clock_mhz * 1e3)
    return result


def serial_resizes(sizes: GraphSizes, links: Links, phase: npt.NDArray[np.int8] | None) -> IndexArray:
    """Interpolating resizes of images whose rows lie side by side; their gradients have a thread for each element."""
    is_chosen = sizes.is_kind(OpKind.RESIZE)
    if phase is not None:
        is_chosen &= phase != Phase.BACKWARD
    # A cast keeps the order of what it reads.
    is_cast = sizes.is_kind(OpKind.CAST)[links.producer]
    is_reordered = links.reads_reordered.copy()
    is_reordered[links.consumer[is_cast & links.reads_reordered[links.producer]]] = True
    chosen = np.flatnonzero(is_chosen & ~is_reordered)
    is_nearest = [sizes.nodes[position].attributes.get("mode") == "nearest" for position in chosen.tolist()]
    return chosen[~np.array(is_nearest, dtype=np.bool_)]
