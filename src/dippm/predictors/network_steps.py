"""The steps that the additive networks consist of: a dense layer, the first of them, and a round of messages.

They are compiled where there was a compiler. NumPy's products would do, but spread over threads that wait for each
other where the machine is busy, and round a row by where it lies among others, so that a model would not get the same
answer alone and beside others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical import Messages

try:
    from dippm.predictors import _network
except ImportError:  # there was no compiler
    _IS_COMPILED = False
else:
    _IS_COMPILED = True

__all__ = ["Layer", "Neighbours", "begin", "listen", "multiply"]

FloatArray = npt.NDArray[np.float32]

# Columns of the weights that are worked on together, as in ``_network.c``.
_PANEL = 16
# Rows of one product of NumPy: OpenBLAS spreads larger ones over its threads.
_ROWS = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Neighbours:
    """Whom each operator hears, side by side.

    Args:
        start: First of its messages, and behind the last one's.
        source: From whom each comes.
        weight: Weight of each.

    Shapes:
        start: [N + 1]; source, weight: [E].
    """

    start: IndexArray
    source: IndexArray
    weight: FloatArray

    @classmethod
    def of(cls, messages: Messages, *, count: int) -> Neighbours:
        """Lay out the messages of so many operators."""
        return cls(
            # Places are of 32 bits on some machines.
            start=np.searchsorted(messages.target, np.arange(count + 1)).astype(np.int64, copy=False),
            source=np.ascontiguousarray(messages.source, dtype=np.int64),
            weight=np.ascontiguousarray(messages.weight),
        )

    def within(self, operators: slice) -> Neighbours:
        """The messages of operators side by side that hear each other alone, who are numbered from the first one."""
        start = self.start[operators.start : operators.stop + 1]
        first, stop = start[[0, -1]].tolist()
        return Neighbours(
            start=start - first, source=self.source[first:stop] - operators.start, weight=self.weight[first:stop]
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """A dense layer of each member of an ensemble, laid out once.

    Args:
        weights: Weights of each member.
        bias: Their biases.
        panels: The weights, some columns at a time, and zeros beyond the last one.
        starts: The biases of these.

    Shapes:
        weights: [M, K, J]; bias: [M, J]; panels: [M, P, K, 16]; starts: [M, P, 16].
    """

    weights: FloatArray
    bias: FloatArray
    panels: FloatArray
    starts: FloatArray

    @classmethod
    def of(cls, weights: FloatArray, bias: FloatArray | None = None) -> Layer:
        """Lay out a layer.

        Args:
            weights: Weights of each member.
            bias: Their biases; None for none.

        Raises:
            ValueError: Weights and biases are not of one layer.

        Shapes:
            weights: [M, K, J]; bias: [M, J].
        """
        weights = np.asarray(weights, dtype=np.float32)
        members, terms, columns = weights.shape
        bias = np.zeros((members, columns), dtype=np.float32) if bias is None else np.asarray(bias, dtype=np.float32)
        if bias.shape != (members, columns) or not members:
            raise ValueError(f"biases of shape {bias.shape} and weights of shape {weights.shape} make no layer")
        padded = np.zeros((members, terms + 1, -(-columns // _PANEL) * _PANEL), dtype=np.float32)
        padded[:, :terms, :columns], padded[:, terms, :columns] = weights, bias
        in_panels = padded.reshape(members, terms + 1, -1, _PANEL).swapaxes(1, 2)
        return cls(
            weights=weights,
            bias=bias,
            panels=np.ascontiguousarray(in_panels[:, :, :terms]),
            starts=np.ascontiguousarray(in_panels[:, :, terms]),
        )

    def __len__(self) -> int:
        """Number of members."""
        return len(self.weights)

    @property
    def columns(self) -> int:
        """How many numbers it gives of each row."""
        return int(self.weights.shape[2])


def multiply(values: FloatArray, layer: Layer) -> FloatArray:
    """A dense layer of each member of an ensemble.

    Args:
        values: What the layer reads, the same for all members or of each.
        layer: The layer.

    Shapes:
        values: [B, N, K] or [B, M, N, K]; result: [B, M, N, J].
    """
    if not _IS_COMPILED:
        return _product(values if values.ndim == 4 else values[:, None], layer.weights) + layer.bias[:, None]
    result = np.empty((len(values), len(layer), values.shape[-2], layer.columns), dtype=np.float32)
    _network.multiply(_flat(values), layer.panels, layer.starts, _flat(result))
    return result


def begin(values: FloatArray, layer: Layer, known: FloatArray, number: IndexArray) -> FloatArray:
    """A first layer, of which a part is known already, and what is positive of it.

    Args:
        values: What the rest of the layer reads, the same for all members.
        layer: The rest of the layer.
        known: What the known part comes to, for each different row of what it reads.
        number: Which of these rows each operator has.

    Shapes:
        values: [B, N, K]; known: [M, U, J]; number: [N]; result: [B, M, N, J].
    """
    if not _IS_COMPILED:
        first = multiply(values, layer)
        first += known.take(number, axis=1)
        return np.maximum(first, 0.0, out=first)
    result = np.empty((len(values), len(layer), len(number), layer.columns), dtype=np.float32)
    _network.begin(
        np.ascontiguousarray(values),
        layer.panels,
        layer.starts,
        np.ascontiguousarray(known),
        np.ascontiguousarray(number, dtype=np.int64),
        _flat(result),
    )
    return result


def listen(values: FloatArray, producers: Neighbours, consumers: Neighbours, layer: Layer) -> FloatArray:
    """A round of messages: a layer on what an operator hears and is itself, added to the latter.

    Args:
        values: The operators' embeddings by each member.
        producers: Whom each operator reads from.
        consumers: Who reads from it.
        layer: The layer: what it reads are the mean of the producers, that of the consumers, and the operator's own.

    Shapes:
        values and result: [B, M, N, W]; weights of the layer: [M, 3 * W, W].
    """
    if not _IS_COMPILED:
        told = np.concatenate([_heard(values, producers), _heard(values, consumers), values], axis=-1)
        heard = _product(told, layer.weights) + layer.bias[:, None]
        np.maximum(heard, 0.0, out=heard)
        heard += values
        return heard
    result = np.empty(values.shape, dtype=np.float32)
    _network.listen(
        _flat(values),
        producers.start,
        producers.source,
        producers.weight,
        consumers.start,
        consumers.source,
        consumers.weight,
        layer.panels,
        layer.starts,
        _flat(result),
    )
    return result


def _flat(values: FloatArray) -> FloatArray:
    return np.ascontiguousarray(values).reshape(prod(values.shape[:-2]), *values.shape[-2:])


def _heard(values: FloatArray, neighbours: Neighbours) -> FloatArray:
    """The mean of each operator's neighbours, 0 where it has none."""
    result, hears = np.zeros_like(values), np.flatnonzero(np.diff(neighbours.start))
    if len(hears):
        each = values.take(neighbours.source, axis=-2) * neighbours.weight[:, None]
        result[..., hears, :] = np.add.reduceat(each, neighbours.start[hears], axis=-2)
    return result


def _product(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Matrix products in blocks of rows.

    Shapes:
        values: [..., N, K]; weights: [..., K, J]; result: [..., N, J].
    """
    count = values.shape[-2]
    whole = count - count % _ROWS
    leading = np.broadcast_shapes(values.shape[:-2], weights.shape[:-2])
    result = np.empty((*leading, count, weights.shape[-1]), dtype=np.float32)

    def in_blocks(rows: FloatArray) -> FloatArray:
        return rows[..., :whole, :].reshape(*rows.shape[:-2], whole // _ROWS, _ROWS, rows.shape[-1])

    np.matmul(in_blocks(values), weights[..., None, :, :], out=in_blocks(result))
    np.matmul(values[..., whole:, :], weights, out=result[..., whole:, :])
    return result
