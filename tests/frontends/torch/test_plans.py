"""What is done with an operator follows from PyTorch's own description of it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dippm.errors import ModelReadError  # noqa: E402
from dippm.frontends.torch.plans import plan_for, refusal  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "name", "flags"),
    [
        (aten.relu.default, "relu", {}),
        (aten.relu_.default, "relu", {"is_in_place": True, "is_aliasing": True}),
        (aten.view.default, "view", {"is_aliasing": True}),
        (aten._unsafe_view.default, "_unsafe_view", {"is_aliasing": True}),
        (aten.bernoulli.default, "bernoulli", {"is_random": True}),
        (aten.zeros.default, "zeros", {"has_device": True}),
        (aten.einsum.default, "einsum", {"is_composite": True}),
        (aten.linear.default, "linear", {}),  # kept whole although it is a composition
        (aten.__and__.Tensor, "__and__", {"is_composite": True}),
        (aten._print.default, "_print", {"is_skipped": True, "is_ignored": True}),
        (aten.from_file.default, "from_file", {"is_refused": True, "has_device": True}),
        (torch.ops.quantized.linear_dynamic.default, "linear_dynamic", {"is_quantised": True}),
        (aten.quantize_per_tensor.default, "quantize_per_tensor", {}),
    ],
)
def test_an_operators_plan(func: Any, name: str, flags: dict[str, bool]) -> None:
    plan = plan_for(func)
    assert plan.name == name
    names = (
        "is_refused", "is_quantised", "is_skipped", "is_ignored", "is_composite", "is_random", "is_in_place",
        "is_aliasing", "has_device",
    )  # fmt: skip
    assert {flag: getattr(plan, flag) for flag in names} == dict.fromkeys(names, False) | flags


def test_overloads_share_a_name_and_have_arguments_of_their_own() -> None:
    plan = plan_for(aten.add.Tensor)
    assert plan.source_op == "aten.add"
    assert plan.argument_names == ("self", "other", "alpha")
    assert plan.defaults == {"alpha": 1}
    assert plan_for(aten.add.Tensor) is plan
    assert plan_for(aten.add_.Tensor).source_op == "aten.add_"
    assert plan_for(aten.add_.Tensor).rule is plan.rule is not None


def test_what_is_refused_says_what_it_is() -> None:
    error = refusal(plan_for(aten.from_file.default))
    assert isinstance(error, ModelReadError)
    assert error.code == "torch.file_operator"
    assert "aten.from_file" in str(error)
