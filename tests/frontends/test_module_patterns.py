"""Names of modules that a checkpoint's configuration leaves out of quantisation."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.frontends.module_patterns import check_patterns, is_of_module

# Names as in the graphs of Mixtral, gpt-oss and Llama; at a step of generation "model." stands before them.
_MLP = "model.layers.3.mlp."


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize(
    ("pattern", "skipped", "kept"),
    [
        ("gate", [f"{_MLP}gate.weight"], [f"{_MLP}experts.gate_up_proj", f"{_MLP}gate_proj.weight"]),
        ("mlp.gate", [f"{_MLP}gate.weight"], [f"{_MLP}gate_proj.weight", f"{_MLP}experts.gate_up_proj"]),
        ("model.layers.3", [f"{_MLP}gate.weight"], ["model.layers.31.mlp.gate.weight"]),
        ("mlp.experts", [f"{_MLP}experts.gate_up_proj"], [f"{_MLP}gate.weight"]),
        ("score", ["score.weight"], ["model.scores.weight"]),
        (
            "model.layers.*.mlp.router",
            [f"{_MLP}router.weight", "model.layers.11.mlp.router.weight"],
            [f"{_MLP}experts.down_proj", "model.layers.3.self_attn.q_proj.weight"],
        ),
        # A wildcard stays within its component.
        ("model.*.router", ["model.layers.router.weight"], [f"{_MLP}router.weight"]),
        ("mlp.gate*", [f"{_MLP}gate.weight", f"{_MLP}gate_proj.weight"], [f"{_MLP}experts.gate_up_proj"]),
        # As compressed-tensors has them: they fit the module's name.
        ("re:.*mlp.gate$", [f"{_MLP}gate.weight"], [f"{_MLP}gate_proj.weight", f"{_MLP}experts.gate_up_proj"]),
        (r"re:.*\.mlp\.experts\.gate_up_proj$", [f"{_MLP}experts.gate_up_proj"], [f"{_MLP}experts.down_proj"]),
        ("re:.*experts$", [f"{_MLP}experts.gate_up_proj"], [f"{_MLP}gate.weight"]),
        (
            r"re:^model\.layers\.(\d+|x)\.self_attn\.(?:q|k)_proj",
            ["model.layers.31.self_attn.k_proj.weight"],
            ["model.layers.31.self_attn.v_proj.weight"],
        ),
        # It fits from the beginning of a component on, and need not go to the end of one.
        ("re:gate", [f"{_MLP}gate_proj.weight"], [f"{_MLP}investigate.weight"]),
    ],
)
def test_weights_of_the_modules_that_a_pattern_names(
    prefix: str, pattern: str, skipped: list[str], kept: list[str]
) -> None:
    check_patterns([pattern])
    for name in skipped:
        assert is_of_module(prefix + name, pattern), name
    for name in kept:
        assert not is_of_module(prefix + name, pattern), name


@pytest.mark.parametrize(
    "expression",
    [
        r"(\w+\.?)+$!",
        "(a*)*b",
        "(a|a)+",
        "(a|b){9}",
        "(?!.*mlp).*",
        r"(a)\1",
        "[a-z]+",
        ".*?b",
        "a**",
        "(",
        "a)(b",
        "",
        "a" * 201,
    ],
)
def test_expressions_that_are_not_followed(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check_patterns([f"re:{expression}"])


def test_there_may_not_be_any_number_of_patterns() -> None:
    for pattern, most in (("a.b", 10_000), ("a.*", 100), ("re:a", 100)):
        check_patterns([pattern] * most)
        with pytest.raises(ValueError, match="patterns"):
            check_patterns([pattern] * (most + 1))


@pytest.mark.parametrize("pattern", ["re:" + ".*" * 98 + "z", "re:" + "(e|.)" * 39 + "z", "*e" * 99 + "*z"])
def test_no_pattern_takes_long(pattern: str) -> None:
    check_patterns([pattern])
    start = time.process_time()
    assert not is_of_module("e" * 150 + ".weight", pattern)
    # To try all ways through any of them would take years.
    assert time.process_time() - start < 1


_PIECES = ["a", ".", r"\.", "1", ".*", "a+", "b?", r"\d+", "[0-9]*", "(a|b1)", "(?:a|(b|1.)|)", "$", "|"]


@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join), st.text("ab1.", max_size=8))
def test_expressions_mean_what_they_mean_in_python(expression: str, module: str) -> None:
    begins = [0, *(index + 1 for index, character in enumerate(module) if character == ".")]
    expected = any(re.compile(expression).match(module, begin) for begin in begins)
    assert is_of_module(f"{module}.weight", f"re:{expression}") == expected
