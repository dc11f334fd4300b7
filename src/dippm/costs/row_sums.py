"""What the gradient of an embedding does beside filling its table with zeros: it sums the rows that belong together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.sizes import GraphSizes
from dippm.costs.workload import WorkloadAt
from dippm.graph import OpKind

__all__ = ["ROW_SUM", "row_sum_cycles", "sums_rows"]

ROW_SUM = "add"
"""Function of the node that is the gradient of an embedding's table."""

# Places up to which no sort is needed: ``embedding_dense_backward_cuda`` of PyTorch's ``Embedding.cu``.
_MOST_UNSORTED = 3072
# From 101 gradients in traces of training steps on an H100 and an H200 (data/labels), at 1,980 MHz. Where a block walks
# over all places each takes 25 to 66 ns, by how many are the same. Sorting and counting take some 30 kernels, whatever
# there is to sort; with the sums they are met within 11 % (4,096 to 32,768 places).
_CYCLES_PER_PLACE = 80.0
_SORT_CYCLES = 155e3
_CYCLES_PER_NUMBER = 1.9
# Places and offsets of the bags to which they belong.
_BAG_INPUTS = 3


def sums_rows(sizes: GraphSizes, is_backward: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which nodes are the gradient of an embedding's table, with a place for every row.

    Shapes:
        is_backward and result: [n_nodes].
    """
    result: npt.NDArray[np.bool_] = sizes.is_kind(OpKind.SCATTER) & sizes.has_function(ROW_SUM) & is_backward
    return result


def row_sum_cycles(
    sizes: GraphSizes, at: WorkloadAt, is_backward: npt.NDArray[np.bool_], *, sms: Sequence[int]
) -> tuple[IndexArray, FloatArray]:
    """Gradients of tables, and the clock cycles that summing their rows takes in eager PyTorch.

    Args:
        sizes: Sizes of the graph.
        at: Its work.
        is_backward: Which nodes autograd launches.
        sms: Multiprocessors of each device.

    Shapes:
        is_backward: [n_nodes]. Result: [n] and [D, B, n].
    """
    node = np.flatnonzero(sums_rows(sizes, is_backward))
    numbers, places = (evaluate(sizes.elements_of(sizes.inputs(node, at_place)), at.batches) for at_place in (0, 1))
    has_bags = np.diff(sizes.edges.input_start)[node] >= _BAG_INPUTS
    # What a bag is handed is added once for each of its places: ``compute_grad_weight_bags`` of PyTorch's
    # ``EmbeddingBackwardKernel.cu``.
    width = evaluate(sizes.dimension(sizes.inputs(node, 0), -1), at.batches)
    numbers = np.where(has_bags, places * width, numbers)
    is_sorted = has_bags | (places > _MOST_UNSORTED)
    sorted_cycles = _SORT_CYCLES + _CYCLES_PER_NUMBER * numbers / np.array(sms)[:, None, None]
    return node, np.where(is_sorted, sorted_cycles, _CYCLES_PER_PLACE * places)
