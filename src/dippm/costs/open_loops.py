"""Loops that are not written out to their end: what their operators may take beside what is counted."""

from __future__ import annotations

from collections.abc import Mapping

from dippm.graph import MOST_RUNS, Attribute

__all__ = ["MOST_ROUNDS", "most_runs_of", "warn_of_open_loops"]

MOST_ROUNDS = 1000.0
"""How many times as often as it is counted a loop may run that its data ends: assumed, not measured."""


def most_runs_of(attributes: Mapping[str, Attribute]) -> float:
    """How many times as often as it is counted an operator may run, at least 1."""
    found = attributes.get(MOST_RUNS, 1.0)
    return max(float(found), 1.0) if isinstance(found, int | float) else 1.0


def warn_of_open_loops(most_runs: float) -> list[str]:
    """What is said of the interval of a model with such loops.

    Args:
        most_runs: How many times as often as it is counted an operator of it may run; 1 where there is no such loop.
    """
    if most_runs <= 1.0:
        return []
    return [
        "The time is a lower bound where a loop runs more often than it is counted; the interval is open to "
        f"{most_runs:,.0f} times the loop's part of it."
    ]
