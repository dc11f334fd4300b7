"""Which outputs of a real model have a loss of their own beside its scores, by what autograd recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["find_trained_outputs"]

# Names of what autograd records of them.
_LOOKUPS = ("Embedding", "Gather")


def find_trained_outputs(first: torch.Tensor, others: Sequence[torch.Tensor]) -> list[int]:
    """Positions of the outputs that lead to a use of a weight to which neither the first nor one before them does.

    The same rule as :mod:`dippm.costs.training_step.trained_outputs` has for graphs. What ``torch.compile`` runs is a
    single operator to autograd: none of its further outputs leads anywhere else.

    Args:
        first: Scores that have a gradient.
        others: Outputs beside them, with a gradient or without.
    """
    passed: set[Any] = set()
    _has_new_use(first, passed)
    return [place for place, output in enumerate(others) if _has_new_use(output, passed)]


def _has_new_use(output: torch.Tensor, passed: set[Any]) -> bool:
    pending, is_new = [output.grad_fn], False
    while pending:
        operator = pending.pop()
        if operator is None or operator in passed:
            continue
        passed.add(operator)
        inputs = [source for source, _ in operator.next_functions if source is not None]
        is_new |= any(_is_weight(source) for source in inputs)
        pending += inputs
    return is_new


def _is_weight(operator: Any) -> bool:
    """Whether what an operator gives is a weight, or was made of one alone: its transpose, its copy in 16 bits.

    Rows that are looked up by an input are of the input too.
    """
    while len(operator.next_functions) == 1 and operator.next_functions[0][0] is not None:
        if operator.name().startswith(_LOOKUPS):
            return False
        operator = operator.next_functions[0][0]
    return hasattr(operator, "variable")
