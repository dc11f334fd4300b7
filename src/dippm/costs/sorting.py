"""What sorting moves beyond its input and output: a radix sort goes over all keys for each of their digits."""

from __future__ import annotations

import numpy as np

from dippm.costs.edges import IndexArray
from dippm.costs.kept_answers import keep_answers
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.sorted_rows import SEARCHES, SHORT_ROW, row_lengths
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["digit_passes"]

# Values of a digit, which is a byte, in sorting and in looking for the largest.
_VALUES = 256.0
# Of each key its place is moved along, a whole number of 64 bits.
_PLACE_BYTES = 8.0
_SORTS = ("sort", "argsort", "msort", "unique", "unique_dim", "_unique2")


def digit_passes(plan: KernelPlan, at: WorkloadAt) -> tuple[IndexArray, FloatArray, FloatArray]:
    """Sorts of long rows and searches for their largest keys, how often they go over the keys, and the bytes of that.

    A sort reads and writes keys and places for each digit of the keys; where there are several rows, all of them are
    sorted as one, and once more by their rows. The largest ones of a row are found by reading it once for each digit,
    before it is read to take them out.

    Source: ``aten/src/ATen/native/cuda/Sort.cpp`` and ``TensorTopK.cu`` in PyTorch, and the one-sweep radix sort of
    CUB; how much of the bandwidth they reach was not measured.

    Args:
        plan: The kernels.
        at: Their work.

    Shapes:
        Results: [n], [B, n] and [B, n].
    """
    sizes, node = plan.work.sizes, _sorts(plan)
    if not len(node):
        nothing = np.zeros((len(at.batches), 0))
        return node, nothing, nothing
    source = sizes.inputs(node, 0)
    elements = evaluate(sizes.elements_of(source), at.batches)
    row = evaluate(row_lengths(sizes, node), at.batches)
    is_found = sizes.has_function(*SEARCHES)[node]
    key_bytes = plan.work.first_element_bytes(node)
    rows = np.maximum(elements / np.maximum(row, 1.0), 1.0)
    digits = key_bytes + np.where(is_found, 0.0, np.ceil(np.log(rows) / np.log(_VALUES)))
    passes = digits * (row > SHORT_ROW)
    return node, passes, passes * elements * np.where(is_found, key_bytes, 2.0 * (key_bytes + _PLACE_BYTES))


@keep_answers
def _sorts(plan: KernelPlan) -> IndexArray:
    sizes = plan.work.sizes
    return np.flatnonzero(sizes.is_kind(OpKind.SORT) & sizes.has_function(*_SORTS, *SEARCHES))
