"""Tensors without data."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.frontends.torch.meta_tensors import (  # noqa: E402
    is_differentiable,
    map_tensors,
    run_on_meta,
    tensors_in,
    without_values,
)


def test_tensors_are_found_in_nested_results_and_converted_in_place() -> None:
    first, second = torch.ones(2, 3).t(), torch.ones(4, dtype=torch.int64)
    nested = (first, [None, (second, 5)])
    assert [tensor is other for tensor, other in zip(tensors_in(nested), (first, second), strict=True)] == [True] * 2
    mapped = map_tensors(without_values, nested)
    assert mapped[1][0] is None
    assert mapped[1][1][1] == 5
    assert (mapped[0].device.type, mapped[0].stride()) == ("meta", first.stride())


def test_numbers_with_a_fraction_alone_are_differentiable() -> None:
    kinds = (torch.float16, torch.complex64, torch.int64, torch.bool)
    assert [is_differentiable(torch.ones(1, dtype=kind)) for kind in kinds] == [True, True, False, False]


def test_an_operator_without_a_shape_rule_runs_by_its_decomposition() -> None:
    x = torch.empty(2, 3, device="meta")
    assert run_on_meta(torch.ops.aten.relu.default, (x,), {}).shape == (2, 3)

    class WithoutRule:
        def __call__(self, *_: object) -> object:
            raise NotImplementedError

    with pytest.raises(NotImplementedError):
        run_on_meta(WithoutRule(), (x,), {})
