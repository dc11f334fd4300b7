"""Numbers that the spaces share: channel counts and sizes after a layer."""

from __future__ import annotations

from dippm.frontends.inputs import InputEntry, InputShapes

__all__ = ["image", "round_channels", "size_after"]


def round_channels(channels: float, *, divisor: int = 8) -> int:
    """The nearest multiple of the divisor, at least one of it."""
    return max(divisor, int(channels / divisor + 0.5) * divisor)


def size_after(size: int, kernel: int, *, stride: int = 1, padding: int = 0) -> int:
    """Height or width after a convolution or pooling."""
    return (size + 2 * padding - kernel) // stride + 1


def image(channels: int, height: int, width: int) -> InputShapes:
    """One image as the only input."""
    return InputShapes(positional=(InputEntry(shape=(channels, height, width)),))
