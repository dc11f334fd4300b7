"""Where an operator's rule is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dippm.frontends.onnx.values import Call, Value

__all__ = ["MICROSOFT", "Rule", "find_rule", "known_operators", "rule"]

MICROSOFT = "com.microsoft"
"""Domain of onnxruntime's own operators."""

Rule = Callable[[Call], Value | list[Value]]
Kept = TypeVar("Kept", bound=Rule)

_RULES: dict[tuple[str, str], Rule] = {}


def rule(*op_types: str, domain: str = "") -> Callable[[Kept], Kept]:
    """Register a function as the rule of operators.

    Args:
        op_types: Names of the operators.
        domain: Their domain, ``""`` for the standard one.
    """

    def register(function: Kept) -> Kept:
        for op_type in op_types:
            _RULES[domain, op_type] = function
        return function

    return register


def find_rule(domain: str, op_type: str) -> Rule | None:
    """The rule of an operator, None where there is none."""
    found = _RULES.get((domain, op_type))
    if found is None and domain == MICROSOFT:
        # onnxruntime keeps copies of standard operators in its own domain.
        found = _RULES.get(("", op_type))
    return found


def known_operators() -> list[tuple[str, str]]:
    """Every operator with a rule, as (domain, name)."""
    return sorted(_RULES)
