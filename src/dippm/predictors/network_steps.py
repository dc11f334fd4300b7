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

__all__ = ["Neighbours", "begin", "listen", "multiply"]

FloatArray = npt.NDArray[np.float32]

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


def multiply(values: FloatArray, weights: FloatArray, bias: FloatArray) -> FloatArray:
    """A dense layer of each member of an ensemble.

    Args:
        values: What the layer reads, the same for all members or of each.
        weights: Weights of each member.
        bias: Their biases.

    Shapes:
        values: [B, N, K] or [B, M, N, K]; weights: [M, K, J]; bias: [M, J]; result: [B, M, N, J].
    """
    members, _, columns = weights.shape
    batches, count = len(values), values.shape[-2]
    if not _IS_COMPILED:
        return _product(values if values.ndim == 4 else values[:, None], weights) + bias[:, None]
    result = np.empty((batches, members, count, columns), dtype=np.float32)
    _network.multiply(_flat(values), np.ascontiguousarray(weights), np.ascontiguousarray(bias), _flat(result))
    return result


def begin(
    values: FloatArray, weights: FloatArray, bias: FloatArray, known: FloatArray, number: IndexArray
) -> FloatArray:
    """A first layer, of which a part is known already, and what is positive of it.

    Args:
        values: What the rest of the layer reads, the same for all members.
        weights: Weights of the rest, of each member.
        bias: Biases of the layer.
        known: What the known part comes to, for each different row of what it reads.
        number: Which of these rows each operator has.

    Shapes:
        values: [B, N, K]; weights: [M, K, J]; bias: [M, J]; known: [M, U, J]; number: [N]; result: [B, M, N, J].
    """
    members, _, columns = weights.shape
    if not _IS_COMPILED:
        first = multiply(values, weights, bias)
        first += known.take(number, axis=1)
        return np.maximum(first, 0.0, out=first)
    result = np.empty((len(values), members, len(number), columns), dtype=np.float32)
    _network.begin(
        np.ascontiguousarray(values),
        np.ascontiguousarray(weights),
        np.ascontiguousarray(bias),
        np.ascontiguousarray(known),
        np.ascontiguousarray(number, dtype=np.int64),
        _flat(result),
    )
    return result


def listen(
    values: FloatArray, producers: Neighbours, consumers: Neighbours, weights: FloatArray, bias: FloatArray
) -> FloatArray:
    """A round of messages: a layer on what an operator hears and is itself, added to the latter.

    Args:
        values: The operators' embeddings by each member.
        producers: Whom each operator reads from.
        consumers: Who reads from it.
        weights: Weights of each member: for the mean of the producers, that of the consumers, and its own.
        bias: Their biases.

    Shapes:
        values and result: [B, M, N, W]; weights: [M, 3 * W, W]; bias: [M, W].
    """
    if not _IS_COMPILED:
        told = np.concatenate([_heard(values, producers), _heard(values, consumers), values], axis=-1)
        heard = _product(told, weights) + bias[:, None]
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
        np.ascontiguousarray(weights),
        np.ascontiguousarray(bias),
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
