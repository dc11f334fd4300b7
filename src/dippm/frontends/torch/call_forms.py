"""Which of its forms a call of an operator has, by its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dippm.frontends.torch.expansions import is_attention_fused
from dippm.frontends.torch.known_values import MASK_TYPES
from dippm.graph import OpKind

__all__ = ["MASK_INDEXES", "changes_only_device", "is_fused", "is_mask_index", "is_view_of_parts", "kind_of"]

#: Operators that pick by indices, among which may be masks.
MASK_INDEXES = frozenset({"index", "_unsafe_index"})
_MATRIX_RANK = 2
_OF_TWO_MATRICES = frozenset({"addmm", "mm", "_scaled_mm", "_scaled_mm_v2", "_int_mm"})


def is_fused(arguments: Mapping[str, Any]) -> bool:
    """Whether attention runs as one kernel."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    return is_attention_fused(query, key, value, enable_gqa=arguments["enable_gqa"])


def is_view_of_parts(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a composition that is recorded whole ends in a view: of rows and of channels as one dimension."""
    if name == "linear":
        return arguments["bias"] is not None and arguments["input"].dim() > _MATRIX_RANK
    return name == "instance_norm"


def is_mask_index(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an operator picks where a mask is true, as many elements as its values say."""
    if name not in MASK_INDEXES:
        return name == "masked_select"
    return any(item is not None and item.dtype in MASK_TYPES for item in arguments["indices"])


def changes_only_device(arguments: Mapping[str, Any]) -> bool:
    """Whether a copy is to another device and changes nothing else."""
    is_moved, is_of_its_type = arguments["device"] is not None, arguments["dtype"] in {None, arguments["self"].dtype}
    return is_moved and is_of_its_type and arguments["memory_format"] is None


def kind_of(kind: OpKind, name: str, arguments: Mapping[str, Any], *, is_weight: Callable[[Any], bool]) -> OpKind:
    """What kind of operator a call is: a product with a matrix of weights is a linear layer however it is written.

    Args:
        kind: The kind of its operator.
        name: The operator's name.
        arguments: What it is given.
        is_weight: Tells whether a tensor is, or is a view of, a weight.
    """
    if kind is OpKind.CONV and arguments.get("transposed"):
        return OpKind.CONV_TRANSPOSE
    is_linear = kind is OpKind.MATMUL and name in _OF_TWO_MATRICES and is_weight(arguments["mat2"])
    return OpKind.LINEAR if is_linear else kind
