"""Resizing by kernels whose threads go through all planes of an image in turn."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Layout
from dippm.costs.edges import IndexArray
from dippm.costs.kept_answers import keep_answers
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.sizes import GraphSizes
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["count_planes", "resizes_in_turn"]

_LINEAR = frozenset({"linear", "bilinear"})
_IN_TURN = _LINEAR | {"trilinear", "cubic", "bicubic"}
# Samples and channels come before the sides of an image.
_LEAST_RANK = 3
_IMAGE_RANK = 4
# Of fewer channels side by side PyTorch makes planes first.
_LEAST_CHANNELS = 16.0


@keep_answers
def resizes_in_turn(plan: KernelPlan, layout: Layout) -> IndexArray:
    """Nodes that interpolate with a thread for each pixel, which walks over all samples and channels.

    PyTorch has a kernel with a thread for each element where at least 16 channels lie side by side, as in NHWC and in
    transposed lists of tokens, and resizes them bilinearly; of nearest pixels everywhere. Gradients are nodes of
    another kind.

    Source: ``aten/src/ATen/native/cuda/UpSampleBilinear2d.cu`` in PyTorch and its siblings.

    Args:
        plan: The kernels.
        layout: Layout that the models are called with.
    """
    sizes = plan.work.sizes
    node = np.flatnonzero(sizes.is_kind(OpKind.RESIZE))
    image = sizes.outputs(node)
    is_in_turn = _has_mode(sizes, node, _IN_TURN) & (sizes.rank(image) >= _LEAST_RANK)
    is_by_element = plan.formats[layout].is_last[node] & _has_mode(sizes, node, _LINEAR)
    is_by_element &= (sizes.rank(image) == _IMAGE_RANK) & (sizes.dimension(image, 1)[:, 0] >= _LEAST_CHANNELS)
    result: IndexArray = node[is_in_turn & ~is_by_element]
    return result


def count_planes(sizes: GraphSizes, node: IndexArray, at: WorkloadAt) -> tuple[FloatArray, FloatArray]:
    """Planes of the images that resizes write, and pixels of each plane.

    Args:
        sizes: Sizes of the graph.
        node: Resizes.
        at: The work at the batch sizes.

    Shapes:
        node: [n]; result: both [B, n].
    """
    image = sizes.outputs(node)
    planes = evaluate(sizes.dimension(image, 0), at.batches) * evaluate(sizes.dimension(image, 1), at.batches)
    planes = np.maximum(planes, 1.0)
    return planes, evaluate(sizes.elements_of(image), at.batches) / planes


def _has_mode(sizes: GraphSizes, node: IndexArray, modes: frozenset[str]) -> npt.NDArray[np.bool_]:
    return sizes.read_attributes(node, lambda given: float(str(given.get("mode", "")) in modes)) > 0.0
