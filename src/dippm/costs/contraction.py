"""Matrix products, attention and recurrent layers: their sizes and multiply-accumulates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, multiply
from dippm.costs.sizes import GraphSizes, SizeTable
from dippm.graph import Attribute, DType, OpKind
from dippm.graph.codes import mark

__all__ = [
    "PROJECTION",
    "WIDEST_HELD_STATE",
    "AttentionSizes",
    "AttentionTable",
    "GemmSizes",
    "GemmTable",
    "RecurrentSizes",
    "RecurrentTable",
]

PROJECTION = "projection_size"
"""Attribute of the gradient of an LSTM that projects its state: the width of what the layer hands on."""

WIDEST_HELD_STATE = 96.0
"""The widest hidden state of a recurrent layer whose weights one block of cuDNN's kernel holds from step to step."""

_GATES = {OpKind.LSTM.value: 4, OpKind.GRU.value: 3, OpKind.RNN.value: 1}
# The backward pass of fused attention computes the scores again: five products where the forward pass has two.
_ATTENTION_GRADIENT_PRODUCTS = 2.5
# That of a recurrent layer has one product for each input and one for each weight.
_RECURRENT_GRADIENT_PRODUCTS = 2.0
_UNPACKED_BITS = 16
_IS_COMPLEX = mark(DType, [dtype for dtype in DType if dtype.is_complex])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmSizes:
    """Matrix products: ``b`` independent ones of (m x k) by (k x n).

    A product of complex numbers is sized as the four real products that it is: twice the columns, twice the sum.

    Args:
        node: Node of each column.
        b: Independent products.
        m: Rows of the output.
        n: Columns of the output.
        k: Length of the sum.
        has_bias: Whether a bias is added in the same kernel.
        is_linear: Whether the node is a layer with weights (``LINEAR``), not a product of two activations.
        is_packed: Whether the right operand is stored in fewer than 16 bits and read so, as quantised weights are.

    Shapes:
        node, has_bias, is_linear, is_packed: [n_gemm]; the others: [B, n_gemm].
    """

    node: IndexArray
    b: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray
    has_bias: npt.NDArray[np.bool_]
    is_linear: npt.NDArray[np.bool_]
    is_packed: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GemmTable:
    """Matrix products with the batch left open.

    ``macs`` counts a multiplication of two complex numbers as one, as the field does; ``products`` says how many
    real ones each is: 4, or 1 where the numbers are real.
    """

    table: SizeTable
    macs: FloatArray
    products: FloatArray
    has_bias: npt.NDArray[np.bool_]
    is_linear: npt.NDArray[np.bool_]
    is_packed: npt.NDArray[np.bool_]

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> GemmTable:
        """Find rows, columns and depth of every product.

        A product with a matrix on its right is one product, however many dimensions its left operand has.
        """
        left, right, out = sizes.inputs(node, 0), sizes.inputs(node, 1), sizes.outputs(node)
        is_linear = sizes.is_kind(OpKind.LINEAR)[node]
        contracted = sizes.read_attributes(node, _integers("contracted"), numbers=1)[:, 0]
        k = sizes.dimension(left, -1)
        k[contracted > 0] = 0.0
        k[:, 0] = np.where(contracted > 0, contracted, k[:, 0])
        left_rank, right_rank, out_rank = sizes.rank(left), sizes.rank(right), sizes.rank(out)
        is_row = ~is_linear & (left_rank == 1)
        is_column = ~is_linear & (right_rank == 1)
        n = _where(is_column, 1.0, sizes.dimension(out, -1))
        is_batched = ~is_linear & (right_rank > 2)
        m = _where(is_row, 1.0, sizes.dimension(out, np.where(is_column, -1, -2)))
        places = range(max(int(out_rank.max(initial=0)), 1))
        # Everything in front of the columns is rows of one product where the right operand is a single matrix.
        leading = multiply(*(_leading(sizes, out, at, out_rank - ~is_column) for at in places))
        batch = multiply(*(_leading(sizes, out, at, out_rank - 2 + is_column + is_row) for at in places))
        m = _where_rows(is_batched, m, leading)
        batch = _where(~is_batched, 1.0, batch)
        is_complex = (out >= 0) & _IS_COMPLEX[sizes.arrays.dtype[out]]
        parts = np.where(is_complex, 2.0, 1.0)
        return cls(
            table=SizeTable.of(node, [batch, m, n * parts[:, None], k * parts[:, None]]),
            macs=multiply(sizes.elements_of(out), k),
            products=parts**2,
            has_bias=sizes.inputs(node, 2) >= 0,
            is_linear=is_linear,
            is_packed=(right >= 0) & (sizes.arrays.bits[right] < _UNPACKED_BITS),
        )

    def at(self, batches: FloatArray) -> GemmSizes:
        """Sizes at each batch."""
        b, m, n, k = self.table.at(batches)
        return GemmSizes(
            node=self.table.node,
            b=b,
            m=m,
            n=n,
            k=k,
            has_bias=self.has_bias,
            is_linear=self.is_linear,
            is_packed=self.is_packed,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionSizes:
    """Scaled dot-product attention.

    Args:
        node: Node of each column.
        batch: Samples, and all else that stands in front of the heads.
        heads: Heads of the queries, or of the keys where one query serves them all.
        key_heads: Heads of keys and values, fewer in grouped-query attention.
        queries: Length of the query sequence.
        keys: Length of the key sequence.
        width: Width of a head's queries and keys.
        value_width: Width of a head's values.
        is_causal: Whether a kernel may skip the upper triangle; the MACs count it whole all the same.
        has_mask: Whether a mask or bias is added to the scores.
        products: Products of queries and keys that are computed, over those of a forward pass.

    Shapes:
        node, is_causal, has_mask, products: [n_attention]; the others: [B, n_attention].
    """

    node: IndexArray
    batch: FloatArray
    heads: FloatArray
    key_heads: FloatArray
    queries: FloatArray
    keys: FloatArray
    width: FloatArray
    value_width: FloatArray
    is_causal: npt.NDArray[np.bool_]
    has_mask: npt.NDArray[np.bool_]
    products: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionTable:
    """Attention with the batch left open; ``rows`` counts the rows of all score matrices."""

    table: SizeTable
    macs: FloatArray
    rows: FloatArray
    is_causal: npt.NDArray[np.bool_]
    has_mask: npt.NDArray[np.bool_]
    products: FloatArray

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> AttentionTable:
        """Read the shapes of queries, keys and values; a missing head dimension counts one head.

        The dimensions in front of the last two go together as numpy's do: queries that are the same for every sample
        meet the keys of each.
        """
        query, key, value = (sizes.inputs(node, position) for position in range(3))
        rank = np.maximum(sizes.rank(query), sizes.rank(key))
        has_heads = rank >= 4
        keys, width, value_width = sizes.dimension(key, -2), sizes.dimension(query, -1), sizes.dimension(value, -1)
        queries = sizes.dimension(query, -2)
        places = range(-max(int(rank.max(initial=0)), 4), -3)
        batch = multiply(*(_together(sizes, query, key, at) for at in places))
        batch = _where_rows(has_heads, batch, _together(sizes, query, key, -3))
        heads = _where(~has_heads, 1.0, _together(sizes, query, key, -3))
        key_heads = _where(~has_heads, 1.0, sizes.dimension(key, -3))
        both = width + value_width
        products = np.where(sizes.is_kind(OpKind.ATTENTION_GRAD)[node], _ATTENTION_GRADIENT_PRODUCTS, 1.0)
        return cls(
            table=SizeTable.of(node, [batch, heads, key_heads, queries, keys, width, value_width]),
            macs=multiply(batch, heads, queries, keys, both) * products[:, None],
            rows=multiply(batch, heads, queries),
            is_causal=sizes.read_attributes(node, lambda attributes: bool(attributes.get("is_causal"))) > 0,
            has_mask=sizes.inputs(node, 3) >= 0,
            products=products,
        )

    def at(self, batches: FloatArray) -> AttentionSizes:
        """Sizes at each batch."""
        batch, heads, key_heads, queries, keys, width, value_width = self.table.at(batches)
        return AttentionSizes(
            node=self.table.node,
            batch=batch,
            heads=heads,
            key_heads=key_heads,
            queries=queries,
            keys=keys,
            width=width,
            value_width=value_width,
            is_causal=self.is_causal,
            has_mask=self.has_mask,
            products=self.products,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecurrentSizes:
    """Recurrent layers.

    Args:
        node: Node of each column.
        steps: Length of the sequence.
        batch: Samples.
        input_size: Width of the input.
        hidden_size: Width of the hidden state.
        projection_size: Width of what a layer hands on: the hidden size unless the state is projected.
        layers: Stacked layers.
        directions: 1, or 2 where the sequence is read both ways.
        gates: 4 for LSTM, 3 for GRU, 1 for RNN.
        products: Products that are computed, over those of a forward pass.

    Shapes:
        node, hidden_size, projection_size, layers, directions, gates, products: [n_recurrent]; the others:
        [B, n_recurrent].
    """

    node: IndexArray
    steps: FloatArray
    batch: FloatArray
    input_size: FloatArray
    hidden_size: FloatArray
    projection_size: FloatArray
    layers: FloatArray
    directions: FloatArray
    gates: FloatArray
    products: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecurrentTable:
    """Recurrent layers with the batch left open; ``positions`` counts the steps of all samples."""

    table: SizeTable
    macs: FloatArray
    positions: FloatArray
    constants: FloatArray

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> RecurrentTable:
        """Read sequence, batch and width from the input, the rest from the attributes."""
        source, out = sizes.inputs(node, 0), sizes.outputs(node)
        has_batch = sizes.rank(source) >= 3
        is_batch_first = sizes.read_attributes(node, lambda attributes: bool(attributes.get("batch_first"))) > 0
        steps = sizes.dimension(source, np.where(has_batch & is_batch_first, 1, 0))
        batch = _where(~has_batch, 1.0, sizes.dimension(source, np.where(is_batch_first, 0, 1)))
        input_size = sizes.dimension(source, -1)
        read = _integers("hidden_size", "num_layers", "num_directions")
        given = sizes.read_attributes(node, read, numbers=3)
        hidden, layers, directions = np.maximum(given, 1.0).T
        is_gradient = sizes.is_kind(OpKind.RECURRENT_GRAD)[node]
        nodes = [sizes.nodes[i] for i in node.tolist()]
        names = [str(n.attributes.get("function")) if n.kind is OpKind.RECURRENT_GRAD else n.kind.value for n in nodes]
        gates = np.array([_GATES.get(name, 1) for name in names], dtype=np.float64)
        # Only an LSTM can project its state, and only its output tells: [..., directions * projection], in ONNX's
        # layout [..., directions, batch, projection]. Its gradient, which writes no such output, is told.
        is_lstm = gates == _GATES[OpKind.LSTM.value]
        handed_on = sizes.dimension(out, -1)[:, 0] / np.where(sizes.rank(out) >= 4, 1.0, directions)
        told = sizes.read_attributes(node, _integers(PROJECTION), numbers=1)[:, 0]
        handed_on = np.where(is_gradient, told, handed_on)
        is_projected = is_lstm & (handed_on >= 1) & (handed_on < hidden)
        projection = np.where(is_projected, handed_on, hidden)
        recurrent = gates * hidden * projection + np.where(is_projected, hidden * projection, 0.0)
        products = np.where(is_gradient, _RECURRENT_GRADIENT_PRODUCTS, 1.0)
        first = gates[:, None] * hidden[:, None] * input_size
        first[:, 0] += recurrent
        deeper = (layers - 1) * (gates * hidden * directions * projection + recurrent)
        first[:, 0] += deeper
        return cls(
            table=SizeTable.of(node, [steps, batch, input_size]),
            macs=multiply(steps, batch, first * directions[:, None]) * products[:, None],
            positions=multiply(steps, batch),
            constants=np.stack([hidden, projection, layers, directions, gates, products]),
        )

    @property
    def hidden_size(self) -> FloatArray:
        """Width of each hidden state, [n_recurrent]."""
        hidden: FloatArray = self.constants[0]
        return hidden

    def at(self, batches: FloatArray) -> RecurrentSizes:
        """Sizes at each batch."""
        steps, batch, input_size = self.table.at(batches)
        hidden, projection, layers, directions, gates, products = self.constants
        return RecurrentSizes(
            node=self.table.node,
            steps=steps,
            batch=batch,
            input_size=input_size,
            hidden_size=hidden,
            projection_size=projection,
            layers=layers,
            directions=directions,
            gates=gates,
            products=products,
        )


def _integers(*names: str) -> Callable[[Mapping[str, Attribute]], list[int]]:
    """Reads whole numbers among the attributes, 0 for each that is missing."""

    def read(attributes: Mapping[str, Attribute]) -> list[int]:
        values = [attributes.get(name) for name in names]
        return [int(value) if isinstance(value, int | float) else 0 for value in values]

    return read


def _where(condition: npt.NDArray[np.bool_], constant: float, polynomials: FloatArray) -> FloatArray:
    """A constant on the rows where the condition holds."""
    result = polynomials.copy()
    result[condition] = 0.0
    result[condition, 0] = constant
    return result


def _where_rows(condition: npt.NDArray[np.bool_], first: FloatArray, second: FloatArray) -> FloatArray:
    width = max(first.shape[1], second.shape[1])
    result = np.zeros((len(condition), width))
    result[:, : second.shape[1]] = second
    result[condition] = 0.0
    result[condition, : first.shape[1]] = first[condition]
    return result


def _together(sizes: GraphSizes, first: IndexArray, second: IndexArray, position: int) -> FloatArray:
    """One dimension of two tensors that are broadcast: that of the second where the first has none or 1."""
    own = sizes.dimension(first, position)
    is_one = (own[:, 0] == 1.0) & ~own[:, 1:].any(axis=1)
    return _where_rows(is_one, sizes.dimension(second, position), own)


def _leading(sizes: GraphSizes, tensors: IndexArray, position: int, stop: IndexArray) -> FloatArray:
    """One dimension, or 1 from the place where the leading dimensions stop."""
    return _where(position >= stop, 1.0, sizes.dimension(tensors, position))
