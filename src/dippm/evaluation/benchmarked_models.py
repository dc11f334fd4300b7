"""What is known of the published inference runs of timm models beside their tables.

The benchmark takes every error for a lack of memory and goes on with a smaller batch. Two kernels of the releases that
it ran with (PyTorch 1.13 to 2.4) refuse a batch long before memory ends:

- fused attention is launched with the batch, windows among it, as a dimension of its grid, which ends at 65,535
  (github.com/pytorch/pytorch, issue 146704);
- PyTorch's own depthwise convolution (:mod:`dippm.costs.depthwise`) counts elements in 32 bits (issues 80020 and
  155225).
"""

from __future__ import annotations

import math

import numpy as np

from dippm.costs.conditions import Layout
from dippm.costs.convolution import ConvolutionTable
from dippm.costs.depthwise import runs_natively
from dippm.costs.memory_format import MemoryFormats
from dippm.costs.sizes import GraphSizes
from dippm.graph import Graph, Node, OpKind

__all__ = ["refuses_batch"]

_LARGEST_GRID = 65_535
_MOST_ELEMENTS = 2**31 - 1


def refuses_batch(graph: Graph, batch: int, layout: Layout) -> bool:
    """Whether a kernel of the model refuses a batch in a run with 16-bit arithmetic, however much memory there is.

    Args:
        graph: The model's graph, with the attention that the run had.
        batch: The batch.
        layout: Memory order of images.
    """
    return any(
        node.kind is OpKind.ATTENTION and _grid(node, graph, batch) > _LARGEST_GRID for node in graph.nodes
    ) or _counts_too_far(graph, batch, layout)


def _grid(node: Node, graph: Graph, batch: int) -> int:
    """Everything before heads, positions and channels."""
    return math.prod(dim.at(batch) for dim in graph.tensors[node.inputs[0]].shape[:-3])


def _counts_too_far(graph: Graph, batch: int, layout: Layout) -> bool:
    """Whether PyTorch's own depthwise kernel would have to count more elements than it can."""
    sizes = GraphSizes.from_graph(graph)
    node = np.flatnonzero(sizes.is_kind(OpKind.CONV))
    if not len(node):
        return False
    at = ConvolutionTable.build(sizes, node).at(np.array([float(batch)]))
    is_own = runs_natively(
        at,
        is_half=np.ones(len(node), dtype=np.bool_),
        is_last=MemoryFormats.of_layouts(sizes)[layout].is_last[node],
        is_gradient=np.zeros(len(node), dtype=np.bool_),
    )
    elements = np.maximum(
        at.batch * at.in_channels * at.in_height * at.in_width,
        at.batch * at.out_channels * at.out_height * at.out_width,
    )
    return bool((is_own & (elements > _MOST_ELEMENTS)).any())
