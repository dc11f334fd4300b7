"""The table of aten operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from dippm.frontends.torch.operators import KEPT_WHOLE, OPERATORS  # noqa: E402
from dippm.graph import OpKind  # noqa: E402

FOREIGN = {"nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d", "grouped_mm_fallback"}


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - FOREIGN))
def test_every_name_is_an_operator_of_pytorch(name: str) -> None:
    assert hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, f"{name}_")


def test_names_of_inputs_are_arguments_of_the_operator() -> None:
    for name, rule in OPERATORS.items():
        if rule.inputs is None or name in FOREIGN:
            continue
        packet = getattr(torch.ops.aten, name, None)
        assert packet is not None, name
        known = {item.name for overload in packet.overloads() for item in getattr(packet, overload)._schema.arguments}
        assert set(rule.inputs) <= known, name


def test_kinds_that_need_a_function_have_one() -> None:
    for name, rule in OPERATORS.items():
        if rule.kind in {OpKind.UNARY, OpKind.BINARY, OpKind.REDUCE, OpKind.COPY, OpKind.RESIZE}:
            assert rule.function, name


def test_kept_whole_is_in_the_table() -> None:
    assert set(OPERATORS) >= KEPT_WHOLE
