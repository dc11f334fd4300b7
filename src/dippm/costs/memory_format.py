"""In which order kernels find images in memory: pixels side by side, as NCHW says, or channels (channels last).

A model is called with one layout, and PyTorch's kernels keep the order of what they read where they can. A permuted
list of tokens is an image with its channels last in either layout; a group norm writes NCHW whatever it reads; a
convolution takes channels last where its image or its weight has it, and copies the other one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Layout
from dippm.costs.edges import IndexArray
from dippm.costs.numbering import is_first, number_values
from dippm.costs.sizes import GraphSizes
from dippm.graph import ACTIVATION_KINDS, ARITHMETIC_KINDS, OpKind, TensorRole
from dippm.graph.codes import mark

__all__ = ["MemoryFormats"]

BoolArray = npt.NDArray[np.bool_]

_CONVOLUTIONS = (OpKind.CONV, OpKind.CONV_TRANSPOSE)
_ELEMENTWISE = (
    ACTIVATION_KINDS
    | ARITHMETIC_KINDS
    | {OpKind.UNARY, OpKind.BINARY, OpKind.CAST, OpKind.QUANTIZE, OpKind.DEQUANTIZE, OpKind.DROPOUT}
)
# Gradients come in the order of the image that the operator itself had, their second input where they read it.
_GRADIENTS = frozenset({OpKind.ELEMENTWISE_GRAD, OpKind.POOL_GRAD, OpKind.NORM_GRAD, OpKind.CONV_WEIGHT_GRAD})
# What leaves the order of an input as it is.
_KEEPING = _ELEMENTWISE | _GRADIENTS | {
    *_CONVOLUTIONS, OpKind.BATCH_NORM, OpKind.MAX_POOL, OpKind.AVG_POOL, OpKind.GLOBAL_POOL, OpKind.RESIZE, OpKind.PAD,
    OpKind.CONCAT, OpKind.VIEW,
}  # fmt: skip
_TURNING_VIEWS = frozenset({"permute", "transpose"})
_IMAGE_RANK = 4
_SHORTEST_TOKENS = 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryFormats:
    """Which kernels work on channels that lie side by side, in one layout.

    Args:
        is_read_last: Whether the image that each node reads has its channels last.
        is_last: Whether each node works in that order; of a convolution that is settled by image and weight together.

    Shapes:
        All [n_nodes].
    """

    is_read_last: BoolArray
    is_last: BoolArray

    @classmethod
    def of_layouts(cls, sizes: GraphSizes) -> dict[Layout, MemoryFormats]:
        """Follow the order of every tensor from where it was settled, in each layout.

        A layout is the order of the images that the models are called with, and of the weights of convolutions.
        """
        chains = _Chains.of(sizes)
        return {layout: cls._of(sizes, chains, is_called_last=layout is Layout.NHWC) for layout in Layout}

    @classmethod
    def _of(cls, sizes: GraphSizes, chains: _Chains, *, is_called_last: bool) -> MemoryFormats:
        is_settled = chains.has_own_weight & is_called_last
        is_input = mark(TensorRole, [TensorRole.INPUT])[sizes.arrays.role] & (sizes.arrays.rank == _IMAGE_RANK)
        is_read_last = chains.follow(is_settled, is_last=is_input & is_called_last)[chains.image]
        return cls(is_read_last=is_read_last, is_last=is_settled | (is_read_last & chains.is_kept))

    def where(self, is_own: BoolArray, other: MemoryFormats) -> MemoryFormats:
        """These for some nodes, others for the rest."""
        return MemoryFormats(
            is_read_last=np.where(is_own, self.is_read_last, other.is_read_last),
            is_last=np.where(is_own, self.is_last, other.is_last),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Chains:
    """From which tensor each node takes its order.

    Args:
        image: That tensor, -1 for none.
        is_kept: Whether the node keeps the order.
        has_own_weight: Convolutions whose weight, a parameter, is in the order of the layout; what they write is too.
        write_node: Node of each first write of a tensor.
        write_tensor: The tensor.
        is_turned: Whether that write turns the order.

    Shapes:
        image, is_kept, has_own_weight: [n_nodes]; the others: [W].
    """

    image: IndexArray
    is_kept: BoolArray
    has_own_weight: BoolArray
    write_node: IndexArray
    write_tensor: IndexArray
    is_turned: BoolArray

    @classmethod
    def of(cls, sizes: GraphSizes) -> _Chains:
        arrays, edges = sizes.arrays, sizes.edges
        every = np.arange(len(arrays.kind), dtype=np.int64)
        is_weight_gradient = sizes.is_kind(OpKind.CONV_WEIGHT_GRAD)
        second = sizes.inputs(every, 1)
        # A weight that the model computes lies as NCHW says; a cast of autocast keeps the order of what it casts.
        is_computed = np.zeros(len(arrays.rank) + 1, dtype=np.bool_)
        is_computed[edges.write_tensor] = True
        cast = np.flatnonzero(sizes.is_kind(OpKind.CAST))
        is_computed[sizes.outputs(cast)] = is_computed[sizes.inputs(cast, 0)]
        # The last place is that of an absent tensor.
        is_computed[-1] = False
        image = _followed_input(sizes, every)
        # Of several writes of a tensor the first one stays.
        first = is_first(number_values(edges.write_tensor))
        tensor, node = edges.write_tensor[first], edges.write_node[first]
        is_view = sizes.is_kind(OpKind.VIEW)
        is_turning = is_view & sizes.has_function(*_TURNING_VIEWS) & (arrays.rank[image] >= _SHORTEST_TOKENS)
        is_kept = sizes.is_kind(*_KEEPING)
        is_kept &= ~sizes.is_kind(OpKind.NORM_GRAD) | sizes.has_function(OpKind.BATCH_NORM.value)
        return cls(
            image=image,
            is_kept=is_kept & (image >= 0),
            has_own_weight=(sizes.is_kind(*_CONVOLUTIONS) & ~is_computed[second]) | is_weight_gradient,
            write_node=node,
            write_tensor=tensor,
            is_turned=is_turning[node],
        )

    def follow(self, is_settled: BoolArray, *, is_last: BoolArray) -> BoolArray:
        """Whether each tensor has its channels last, [T + 1]; the last one stands for an absent one.

        Args:
            is_settled: Nodes whose result has them last whatever they read.
            is_last: What the tensors have that no node writes, [T].
        """
        node, tensor = self.write_node, self.write_tensor
        every = np.arange(len(is_last) + 1)
        source, is_turned = every.copy(), np.zeros(len(every), dtype=np.bool_)
        is_kept = (self.is_kept & ~is_settled)[node]
        source[tensor] = np.where(is_kept, self.image[node], tensor)
        is_turned[tensor] = is_kept & self.is_turned & (source[tensor] != tensor)
        begins = np.append(is_last, False)
        begins[tensor] = is_settled[node]
        # Each round looks twice as far back; a tensor that is written in place may lead back to itself.
        led = np.flatnonzero(source != every)
        for _ in range(len(every).bit_length()):
            via = source[led]
            further = source[via]
            is_further = further != via
            led, via, further = led[is_further], via[is_further], further[is_further]
            if not len(led):
                break
            is_turned[led] ^= is_turned[via]
            source[led] = further
        result: BoolArray = begins[source] ^ is_turned
        return result


def _followed_input(sizes: GraphSizes, node: IndexArray) -> IndexArray:
    """The input whose order a node keeps, -1 for none: of an element-wise one that which is as large as its output."""
    first, second = sizes.inputs(node, 0), sizes.inputs(node, 1)
    is_second = sizes.is_kind(*_ELEMENTWISE) & (second >= 0)
    chosen = np.flatnonzero(is_second)
    elements = sizes.elements_of(sizes.outputs(node[chosen]))
    is_whole, is_other = (np.all(sizes.elements_of(each[chosen]) == elements, axis=1) for each in (first, second))
    is_second[chosen] = ~is_whole & is_other
    is_second |= sizes.is_kind(*_GRADIENTS) & (second >= 0)
    result: IndexArray = np.where(is_second, second, first)
    return result
