from __future__ import annotations

import pytest

from dippm.frontends.onnx.ops import find_rule, known_operators, registry
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule


def test_onnxruntimes_copies_of_standard_operators_have_the_standard_rule() -> None:
    assert find_rule(MICROSOFT, "Softmax") is find_rule("", "Softmax") is not None
    assert find_rule("custom", "Softmax") is None
    # Operators of the same name that are others have rules of their own.
    assert find_rule(MICROSOFT, "Attention") is not find_rule("", "Attention")


def test_a_function_is_the_rule_of_all_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", {})

    @rule("One", "Two")
    @rule("Three", domain="mine")
    def read(call):
        return call

    assert registry.known_operators() == [("", "One"), ("", "Two"), ("mine", "Three")]
    assert registry.find_rule("mine", "Three") is registry.find_rule("", "One") is read
    assert registry.find_rule("", "Three") is None


def test_operators_are_listed_once_and_in_order() -> None:
    operators = known_operators()
    assert operators == sorted(set(operators))
    assert {("", "Conv"), (MICROSOFT, "FusedConv")} <= set(operators)
