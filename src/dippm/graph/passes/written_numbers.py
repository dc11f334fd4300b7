"""Numbers that stand in a file as what a function is known by, to the precision that the file has."""

from __future__ import annotations

from math import isclose

__all__ = ["is_about"]

# bfloat16 keeps eight bits of a number, which is off by up to one part in 256.
_TOLERANCE = 4e-3


def is_about(number: float, known: float) -> bool:
    """Whether a number is the known one, written in any format.

    Args:
        number: What stands there.
        known: What it would be.
    """
    return isclose(number, known, rel_tol=_TOLERANCE)
