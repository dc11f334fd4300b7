"""Figures as tables show them."""

from __future__ import annotations

from dippm.predictors.prediction import format_figure, format_interval, format_number_of

__all__ = ["format_count", "format_figure", "format_interval", "format_number_of", "format_shape"]


def format_count(value: float) -> str:
    """A large count with a prefix and a space before the unit that follows: ``"15.5 G"``."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{format_figure(value / size)} {prefix}"
    return f"{value:.3g} "


def format_shape(shape: tuple[int, ...]) -> str:
    """Sizes joined by ``×``: ``"8×64×56×56"``; ``"scalar"`` where there is none."""
    return "×".join(map(str, shape)) or "scalar"
