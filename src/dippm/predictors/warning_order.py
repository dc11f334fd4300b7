"""The order of the warnings of a prediction: what costs most whoever overlooks it comes first."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["order_warnings"]

_FIRST = (
    # It will not run, or may not.
    ("It does not fit:",),
    ("It may not fit:",),
    # The figures leave out, or guess, what the model does.
    ("Operators without a rule of their own", "No gradient reaches", "Outside what the training saw"),
)
# Between stands what was assumed of the model, the device and the software; last comes what a figure rests on.
_LAST = ("The memory interval rests on", "Energy comes from", "Energy takes", "The device waits for the host")


def order_warnings(warnings: Iterable[str]) -> tuple[str, ...]:
    """Warnings in the order of what they cost; those of one kind stay as they stand.

    Args:
        warnings: Warnings of one prediction, or of several.
    """
    return tuple(sorted(warnings, key=_rank))


def _rank(warning: str) -> int:
    for rank, beginnings in enumerate(_FIRST):
        if warning.startswith(beginnings):
            return rank
    return len(_FIRST) + warning.startswith(_LAST)
