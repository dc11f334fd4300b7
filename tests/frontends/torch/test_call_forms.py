"""Forms that calls of operators have by their arguments."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dippm.frontends.torch.call_forms import (  # noqa: E402
    changes_only_device,
    is_fused,
    is_mask_index,
    is_view_of_parts,
    kind_of,
)
from dippm.graph import OpKind  # noqa: E402


@pytest.mark.parametrize(
    ("name", "indices", "expected"),
    [
        ("index", [torch.zeros(3, dtype=torch.bool)], True),
        ("_unsafe_index", [None, torch.zeros(3, dtype=torch.uint8)], True),
        ("index", [None, torch.zeros(3, dtype=torch.int64)], False),
        ("index_put", [torch.zeros(3, dtype=torch.bool)], False),
    ],
)
def test_an_index_is_a_mask_where_one_of_its_tensors_is(name: str, indices: list[Any], expected: bool) -> None:
    assert is_mask_index(name, {"indices": indices}) is expected


@pytest.mark.parametrize(
    ("name", "rank", "has_bias", "expected"),
    [
        ("linear", 3, True, True),
        ("linear", 2, True, False),
        ("linear", 3, False, False),
        ("instance_norm", 4, True, True),
        ("layer_norm", 3, True, False),
    ],
)
def test_rows_and_channels_are_viewed_as_one_dimension(name: str, rank: int, has_bias: bool, expected: bool) -> None:
    arguments = {"input": torch.zeros([2] * rank), "bias": torch.zeros(2) if has_bias else None}
    assert is_view_of_parts(name, arguments) is expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float32}, True),
        ({"dtype": torch.float16}, False),
        ({"device": None}, False),
        ({"memory_format": torch.contiguous_format}, False),
    ],
)
def test_a_copy_may_change_the_device_alone(changed: dict[str, Any], expected: bool) -> None:
    arguments = {"self": torch.zeros(2), "device": torch.device("cpu"), "dtype": None, "memory_format": None}
    assert changes_only_device({**arguments, **changed}) is expected


def test_attention_of_four_dimensions_is_one_kernel() -> None:
    heads = torch.zeros(2, 4, 8, 16)
    assert is_fused({"query": heads, "key": heads, "value": heads, "enable_gqa": False})


@pytest.mark.parametrize(
    ("kind", "name", "arguments", "is_weight", "expected"),
    [
        (OpKind.CONV, "convolution", {"transposed": True}, False, OpKind.CONV_TRANSPOSE),
        (OpKind.CONV, "convolution", {"transposed": False}, False, OpKind.CONV),
        (OpKind.MATMUL, "mm", {"mat2": 0}, True, OpKind.LINEAR),
        (OpKind.MATMUL, "mm", {"mat2": 0}, False, OpKind.MATMUL),
        (OpKind.MATMUL, "bmm", {"mat2": 0}, True, OpKind.MATMUL),
    ],
)
def test_a_product_with_weights_is_a_linear_layer(
    kind: OpKind, name: str, arguments: dict[str, Any], is_weight: bool, expected: OpKind
) -> None:
    assert kind_of(kind, name, arguments, is_weight=lambda _: is_weight) is expected
