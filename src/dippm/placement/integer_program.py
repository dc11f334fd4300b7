"""Small integer programs, solved exactly: the dual simplex method in whole numbers, and branch and bound.

Arithmetic is exact (a tableau of integers over one common denominator, as Edmonds and Bareiss keep it), so that a bound
is a bound and "no solution" means that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Row", "Solution", "minimize"]

# Pivots without progress after which the smallest indices are taken, which cannot go round in a circle.
_STALL = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One condition: the weighted sum of variables is at least a number.

    Args:
        weights: Weight by variable; those left out weigh nothing.
        at_least: The number.
    """

    weights: dict[int, int]
    at_least: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """What was found.

    Args:
        values: The best values found, or None where none were.
        cost: Their cost; None without values.
        cost_at_least: No solution costs less; None where it is proved that there is none.
    """

    values: tuple[int, ...] | None
    cost: int | None
    cost_at_least: int | None

    @property
    def is_proved(self) -> bool:
        """Whether no better solution exists, or none at all."""
        return self.cost == self.cost_at_least


def minimize(
    costs: Sequence[int],
    rows: Sequence[Row],
    *,
    whole: Sequence[int],
    most_steps: int,
    known: Solution | None = None,
) -> Solution:
    """Minimize a sum over variables that are 0 or more.

    Args:
        costs: Cost of one unit of each variable, whole and 0 or more.
        rows: The conditions.
        whole: Variables to branch on; where they are whole, a vertex of the conditions must be whole altogether.
        most_steps: Linear programs to solve before giving up on a proof; a count, not a time, so that the same question
            has the same answer everywhere.
        known: A solution of the same conditions to start from.

    Returns:
        The best solution, with a proof or a bound.
    """
    values, cost = (None, None) if known is None else (known.values, known.cost)
    root = _Tableau.of(costs, rows)
    if not root.optimize():
        return Solution(values=None, cost=None, cost_at_least=None)
    floor = root.cost_at_least()
    rounded = _round_up(root, whole)
    if rounded is not None:
        values, cost = rounded.better(values, cost)
    # Depth first; each entry is optimal for its own conditions.
    stack, steps = [root], 2
    while stack and steps < most_steps and (cost is None or cost > floor):
        node = stack.pop()
        if cost is not None and node.cost_at_least() >= cost:
            continue
        broken = node.broken(whole)
        if not broken:
            values, cost = node.better(values, cost)
            continue
        variable, value = max(broken, key=lambda each: (each[1], -each[0]))
        up, down = node.copy(), node
        up.bound(variable, at_least=math.ceil(value))
        down.bound(variable, at_most=math.floor(value))
        steps += 2
        # The last one is the next one: it soon leads to a solution.
        stack += [child for child in (down, up) if child.optimize()]
    if not stack:
        return Solution(values=values, cost=cost, cost_at_least=cost)
    floor = min(node.cost_at_least() for node in stack)
    return Solution(values=values, cost=cost, cost_at_least=floor if cost is None else min(floor, cost))


def _round_up(root: _Tableau, whole: Sequence[int]) -> _Tableau | None:
    """A first solution: everything is rounded up and may not fall again, where the conditions allow it."""
    rounded = root.copy()
    for variable, value in rounded.nonzero(whole):
        rounded.bound(variable, at_least=math.ceil(value))
    return rounded if rounded.optimize() and not rounded.broken(whole) else None


class _Tableau:
    """Basic variables by the others: each row's numbers, and the costs', are over one common denominator.

    A row says ``basic = right - sum(weight * other)``; the last row is the cost. Variables are the program's own, then
    one for the slack of every condition.
    """

    def __init__(
        self, rows: list[list[int]], basic: list[int], others: list[int], *, denominator: int, own: int, total: int
    ) -> None:
        self._rows = rows
        self._basic = basic
        self._others = others
        self._denominator = denominator
        self._own = own
        self._total = total

    @classmethod
    def of(cls, costs: Sequence[int], rows: Sequence[Row]) -> _Tableau:
        own = len(costs)
        table = [[-row.weights.get(column, 0) for column in range(own)] + [-row.at_least] for row in rows]
        table.append([-cost for cost in costs] + [0])
        return cls(
            table,
            list(range(own, own + len(rows))),
            list(range(own)),
            denominator=1,
            own=own,
            total=own + len(rows),
        )

    def copy(self) -> _Tableau:
        return _Tableau(
            [row.copy() for row in self._rows],
            self._basic.copy(),
            self._others.copy(),
            denominator=self._denominator,
            own=self._own,
            total=self._total,
        )

    def cost_at_least(self) -> int:
        """The cost of this optimum, rounded up: that of any whole solution is whole."""
        return -(-self._rows[-1][-1] // self._denominator)

    def nonzero(self, whole: Sequence[int]) -> list[tuple[int, Fraction]]:
        """Variables to branch on that are not 0 here, with their values."""
        wanted = set(whole)
        return sorted(
            (variable, Fraction(row[-1], self._denominator))
            for variable, row in zip(self._basic, self._rows, strict=False)
            if variable in wanted and row[-1]
        )

    def broken(self, whole: Sequence[int]) -> list[tuple[int, Fraction]]:
        """Variables to branch on that are not whole here, with their values."""
        return [(variable, value) for variable, value in self.nonzero(whole) if value.denominator > 1]

    def better(self, values: tuple[int, ...] | None, cost: int | None) -> tuple[tuple[int, ...] | None, int | None]:
        """The values here, unless those given cost no more."""
        here = self.cost_at_least()
        if cost is not None and cost <= here:
            return values, cost
        found = [0] * self._own
        for variable, row in zip(self._basic, self._rows, strict=False):
            if variable < self._own:
                found[variable] = row[-1] // self._denominator
        return tuple(found), here

    def bound(self, variable: int, *, at_least: int | None = None, at_most: int | None = None) -> None:
        """Add a condition on one basic variable."""
        row = self._rows[self._basic.index(variable)]
        if at_least is not None:
            added = [*row[:-1], row[-1] - at_least * self._denominator]
        else:
            added = [*(-each for each in row[:-1]), (at_most or 0) * self._denominator - row[-1]]
        self._rows.insert(-1, added)
        self._basic.append(self._total)
        self._total += 1

    def optimize(self) -> bool:
        """Make every basic variable 0 or more at the least cost; False where that is impossible."""
        stalled = 0
        while True:
            negative = [place for place, row in enumerate(self._rows[:-1]) if row[-1] < 0]
            if not negative:
                return True
            if stalled > _STALL:
                leaving = min(negative, key=lambda place: self._basic[place])
            else:
                leaving = min(negative, key=lambda place: (self._rows[place][-1], self._basic[place]))
            entering = self._choose_entering(self._rows[leaving])
            if entering is None:
                return False
            old = Fraction(self._rows[-1][-1], self._denominator)
            self._pivot(leaving, entering)
            stalled = stalled + 1 if old == Fraction(self._rows[-1][-1], self._denominator) else 0

    def _choose_entering(self, row: Sequence[int]) -> int | None:
        """The column whose cost bears the least for the gain; of equal ones the variable with the smallest index."""
        costs = self._rows[-1]
        best: int | None = None
        for column in range(len(row) - 1):
            if row[column] >= 0:
                continue
            if best is not None:
                # Both costs are 0 or less, as are both weights: ratios by cross-multiplication.
                here, there = costs[column] * row[best], costs[best] * row[column]
                if here > there or (here == there and self._others[column] > self._others[best]):
                    continue
            best = column
        return best

    def _pivot(self, leaving: int, entering: int) -> None:
        rows, old = self._rows, self._denominator
        row = rows[leaving]
        pivot = row[entering]
        sign = -1 if pivot < 0 else 1
        new = sign * pivot
        for place, other in enumerate(rows):
            if place == leaving:
                continue
            weight = other[entering]
            if weight:
                rows[place] = [
                    sign * (each * pivot - weight * mine) // old for each, mine in zip(other, row, strict=True)
                ]
                rows[place][entering] = -sign * weight
            elif new != old:
                rows[place] = [each * new // old for each in other]
        rows[leaving] = [sign * each for each in row]
        rows[leaving][entering] = sign * old
        self._denominator = new
        self._basic[leaving], self._others[entering] = self._others[entering], self._basic[leaving]
