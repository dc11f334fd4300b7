"""How a product of two tensors by index letters becomes one product of stacks of matrices.

PyTorch lays every such product out in the same way (``at::einsum`` and ``sumproduct_pair`` in ATen's ``Linear.cpp``):
both tensors get a dimension for each letter, letters of both that are kept are stacked, the others are rows, columns
or summed over. All of it is views, unless a tensor lies in memory such that its letters do not join without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from dippm.graph.dim import Dim, Shape

__all__ = ["Contraction", "Rearrangement", "plan_contraction", "product_of"]

_ONE = Dim(0, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rearrangement:
    """One view of a tensor.

    Args:
        function: ``"unsqueeze"``, ``"transpose"`` or ``"reshape"``; the last one copies where strides forbid a view.
        shape: What it results in.
        perm: Of a transposition, which dimension stands at each place.
    """

    function: str
    shape: Shape
    perm: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Contraction:
    """A product by letters as a product of stacks of matrices.

    Args:
        left: What makes ``[stacks, rows, summed]`` of the left factor, in order.
        right: What makes ``[stacks, summed, columns]`` of the right one.
        product: ``[stacks, rows, columns]``.
        result: What makes the wanted result of the product.
    """

    left: tuple[Rearrangement, ...]
    right: tuple[Rearrangement, ...]
    product: Shape
    result: tuple[Rearrangement, ...]


def plan_contraction(equation: str, left: Shape, right: Shape) -> Contraction | None:
    """Lay out a product of two tensors by index letters.

    Args:
        equation: As in ``"bhqd,bhkd->bhqk"``, one character for each dimension and none twice in a tensor. What is
            summed over belongs to both tensors.
        left: Shape of the left tensor.
        right: Shape of the right one, its letters of the same sizes.

    Returns:
        The layout, or None where more than one dimension that grows with the batch would be joined.
    """
    factors, _, kept = equation.partition("->")
    first, _, second = factors.partition(",")
    sizes = {**dict(zip(first, left, strict=True)), **dict(zip(second, right, strict=True))}
    order = [*kept, *sorted(letter for letter in sizes if letter not in kept)]
    places = range(len(order))
    summed = [place for place in places if order[place] not in kept]
    # A dimension of one element belongs to no side; PyTorch takes it for a column.
    in_left, in_right = ([letter in term and sizes[letter] != _ONE for letter in order] for term in (first, second))
    kept_places = [place for place in places if place not in summed]
    stacks = [place for place in kept_places if in_left[place] and in_right[place]]
    rows = [place for place in kept_places if in_left[place] and not in_right[place]]
    columns = [place for place in kept_places if not in_left[place]]

    joined = [product_of([sizes[order[place]] for place in group]) for group in (stacks, rows, summed, columns)]
    batch, m, k, n = joined
    if batch is None or m is None or k is None or n is None:
        return None
    turned = [stacks + rows + summed + columns, stacks + summed + columns + rows]
    steps = [
        _flatten(term, shape, order, perm, flat)
        for term, shape, perm, flat in zip(
            (first, second), (left, right), turned, ((batch, m, k), (batch, k, n)), strict=True
        )
    ]
    # The product has one element where something was summed over.
    left_over = stacks + rows + summed + columns
    spread = tuple(_ONE if place in summed else sizes[order[place]] for place in left_over)
    back = tuple(left_over.index(place) for place in places)
    result = [
        Rearrangement(function="reshape", shape=spread),
        Rearrangement(function="transpose", shape=tuple(spread[place] for place in back), perm=back),
        Rearrangement(function="reshape", shape=tuple(sizes[letter] for letter in kept)),
    ]
    return Contraction(left=steps[0], right=steps[1], product=(batch, m, n), result=tuple(result))


def product_of(dims: Sequence[Dim]) -> Dim | None:
    """The product of dimensions, None where more than one of them grows with the batch."""
    growing = [dim for dim in dims if dim.per_sample]
    fixed = prod(dim.fixed for dim in dims if not dim.per_sample)
    if not growing:
        return Dim(0, fixed)
    return Dim(growing[0].per_sample * fixed, growing[0].fixed * fixed) if len(growing) == 1 else None


def _flatten(
    term: str, shape: Shape, order: Sequence[str], perm: Sequence[int], flat: Shape
) -> tuple[Rearrangement, ...]:
    """A factor with a dimension for each letter, these in the order of all letters, then joined to three."""
    steps = []
    letters = list(term)
    for letter in order:
        if letter not in term:
            letters.append(letter)
            shape = (*shape, _ONE)
            steps.append(Rearrangement(function="unsqueeze", shape=shape))
    sizes: Mapping[str, Dim] = dict(zip(letters, shape, strict=True))
    ordered = tuple(letters.index(letter) for letter in order)
    shape = tuple(sizes[letter] for letter in order)
    steps.append(Rearrangement(function="transpose", shape=shape, perm=ordered))
    shape = tuple(shape[place] for place in perm)
    steps.append(Rearrangement(function="transpose", shape=shape, perm=tuple(perm)))
    steps.append(Rearrangement(function="reshape", shape=flat))
    return tuple(steps)
