"""Memory layout of tensors as PyTorch chooses it: strides of views, of elementwise results, of image tensors."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["channels_last", "contiguous", "elementwise", "is_contiguous", "permuted", "view"]

Sizes = tuple[int, ...]


def contiguous(shape: Sizes) -> Sizes:
    """Strides of a tensor laid out row by row."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    strides.reverse()
    return tuple(strides)


def permuted(shape: Sizes, order: Sequence[int]) -> Sizes:
    """Strides of a tensor that is dense with its dimensions in another order, the outermost first."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def channels_last(shape: Sizes) -> Sizes:
    """Strides of an NCHW tensor stored as NHWC."""
    return permuted(shape, (0, *range(2, len(shape)), 1))


def is_contiguous(shape: Sizes, strides: Sizes) -> bool:
    """Whether the elements stand row by row; the stride of a dimension of size 1 does not matter."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def view(shape: Sizes, strides: Sizes, target: Sizes) -> Sizes | None:
    """Strides under which the same memory reads as another shape, None where it cannot be without a copy.

    Dimensions are taken together in stretches that are evenly spaced in memory; a target dimension must not reach
    across the border of two stretches.
    """
    result = [0] * len(target)
    axis = len(target) - 1
    stretch_size = 1
    base = strides[-1] if strides else 1
    for dim in range(len(shape) - 1, -1, -1):
        stretch_size *= shape[dim]
        ends_here = dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != stretch_size * base)
        if not ends_here:
            continue
        filled = 1
        while axis >= 0 and (filled < stretch_size or target[axis] == 1):
            result[axis] = filled * base
            filled *= target[axis]
            axis -= 1
        if filled != stretch_size:
            return None
        if dim > 0:
            base = strides[dim - 1]
            stretch_size = 1
    while axis >= 0 and target[axis] == 1:
        result[axis] = base
        axis -= 1
    return tuple(result) if axis < 0 else None


def elementwise(shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
    """Strides of a fresh result of an elementwise operator.

    The dimensions are ordered as the operands store them, the first operand that tells two dimensions apart deciding;
    broadcast dimensions tell nothing.

    Args:
        shape: Shape of the result.
        operands: Shape and strides of each operand.
    """
    rank = len(shape)
    spread = []
    for operand_shape, strides in operands:
        offset = rank - len(operand_shape)
        if offset < 0:  # files may claim shapes that no broadcast gives
            continue
        # A dimension that is broadcast tells nothing; one of size 1 in the result too keeps its own stride.
        stretched = [0] * offset + [
            0 if size == 1 and shape[axis] != 1 else stride
            for axis, (size, stride) in enumerate(zip(operand_shape, strides, strict=True), offset)
        ]
        spread.append(tuple(stretched))
    if all(s == shape and is_contiguous(s, t) for s, t in operands):
        return contiguous(shape)
    order = list(range(rank - 1, -1, -1))  # innermost first
    for start in range(1, rank):
        moving = start
        for other in range(start - 1, -1, -1):
            outcome = _compare(shape, spread, order[other], order[moving])
            if outcome > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif outcome < 0:
                break
    order.reverse()
    return permuted(shape, order)


def _compare(shape: Sizes, operands: Sequence[Sizes], inner: int, outer: int) -> int:
    """Negative where the first dimension should stay inside the second, positive where they should change places."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0
