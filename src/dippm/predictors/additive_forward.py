"""The additive networks on NumPy, all members of an ensemble at once, for predictions without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.features.physical import LARGEST_CORRECTION, Messages

__all__ = ["Ensemble", "Neighbours"]

FloatArray = npt.NDArray[np.float32]
_BOUND = np.float32(LARGEST_CORRECTION)
# Nearly all operators have at most so many neighbours on one side: a gather for each of these.
_FEW = 4
# Rows of one product. OpenBLAS spreads larger ones over its threads, which wait for each other: on a machine that is
# busy elsewhere a prediction would take many times as long as on one thread.
_ROWS = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Gather:
    """Some neighbours of some operators, the same number of each.

    Args:
        operators: The operators; None for all of them.
        source: Their neighbours.
        weight: Weight of each neighbour.

    Shapes:
        operators: [K]; source: [K * D]; weight: [K, D, 1].
    """

    operators: IndexArray | None
    source: IndexArray
    weight: FloatArray

    def add_to(self, total: FloatArray, values: FloatArray) -> None:
        count, degree, _ = self.weight.shape
        heard = values.take(self.source, axis=-2)
        if degree == 1:
            heard *= self.weight[:, 0]
        else:
            heard = (heard.reshape(*values.shape[:-2], count, degree, -1) * self.weight).sum(axis=-2)
        if self.operators is None:
            total += heard
        else:
            total[..., self.operators, :] += heard


class Neighbours:
    """Messages laid out for NumPy.

    There is a gather for the first neighbour of all operators, one for each of the next few, and one for the rest of
    those that have some more, many more, ...

    Args:
        messages: The messages.
        count: Number of operators.
    """

    def __init__(self, messages: Messages, *, count: int) -> None:
        source, target, weight = messages.source, messages.target, messages.weight
        degree = np.bincount(target, minlength=count)
        start = np.cumsum(degree) - degree

        def gather(operators: IndexArray, first: int, width: int) -> _Gather:
            place = first + np.arange(width)
            is_there = place < degree[operators, None]
            edge = np.where(is_there, start[operators, None] + place, 0)
            is_all = len(operators) == count
            return _Gather(
                operators=None if is_all else operators,
                source=source[edge].ravel(),
                weight=np.where(is_there, weight[edge], np.float32(0.0))[..., None],
            )

        self._gathers = []
        if len(target):
            self._gathers.append(gather(np.arange(count), 0, 1))
        for place in range(1, _FEW):
            operators = np.flatnonzero(degree > place)
            if len(operators):
                self._gathers.append(gather(operators, place, 1))
        width = 1
        while (degree >= _FEW + width).any():
            operators = np.flatnonzero((degree >= _FEW + width) & (degree < _FEW + 2 * width))
            if len(operators):
                self._gathers.append(gather(operators, _FEW, 2 * width - 1))
            width *= 2

    def add_means(self, values: FloatArray, total: FloatArray) -> None:
        """Add to each operator the mean of its neighbours' values, nothing where it has none.

        Shapes:
            values, total: [..., N, W].
        """
        for gather in self._gathers:
            gather.add_to(total, values)


class Ensemble:
    """What :class:`dippm.models.additive.AdditiveNetwork` gives in evaluation mode, to float32's rounding.

    The first layer is linear in the features, so that the part of those that never change can be kept.

    Args:
        members: Each network's state by PyTorch's names, such as ``"own.0.weight"``; all are of one size.
    """

    def __init__(self, members: Sequence[Mapping[str, FloatArray]]) -> None:
        def stack(name: str) -> FloatArray:
            return np.stack([np.ascontiguousarray(member[name].T) for member in members])

        rounds = sum(name.startswith("own.") and name.endswith(".weight") for name in members[0])
        self._input, self._input_bias = stack("input.weight"), stack("input.bias")[:, None]
        # One product makes what an operator tells its consumers, its producers and itself.
        self._rounds = [
            np.stack([stack(f"{name}.{step}.weight") for name in ("producers", "consumers", "own")])
            for step in range(rounds)
        ]
        self._biases = [stack(f"own.{step}.bias")[:, None] for step in range(rounds)]
        self._output, self._output_bias = stack("output.weight"), stack("output.bias")[:, None]

    def embed(self, features: FloatArray, columns: IndexArray | slice = slice(None)) -> FloatArray:
        """The part of the first layer, without its bias, that some of the features make.

        Args:
            features: Scaled features of one graph's operators at each batch.
            columns: Which of the network's inputs they are.

        Shapes:
            features: [B, N, columns]; result: [B, M, N, W].
        """
        return _product(features[:, None], self._input[:, columns])

    def corrections(self, first: FloatArray, producers: Neighbours, consumers: Neighbours) -> FloatArray:
        """Logarithms of both corrections of each operator by each member.

        Args:
            first: All parts of the first layer together; see :meth:`embed`.
            producers: Whom each operator reads from.
            consumers: Who reads from each operator.

        Shapes:
            first: [B, M, N, W]; result: [B, M, N, 2].
        """
        values = first + self._input_bias
        np.maximum(values, 0.0, out=values)
        for weights, bias in zip(self._rounds, self._biases, strict=True):
            of_producers, of_consumers, heard = _product(values, weights[:, None])
            heard += bias
            producers.add_means(of_producers, heard)
            consumers.add_means(of_consumers, heard)
            values += np.maximum(heard, 0.0, out=heard)
        result: FloatArray = _BOUND * np.tanh((_product(values, self._output) + self._output_bias) / _BOUND)
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
