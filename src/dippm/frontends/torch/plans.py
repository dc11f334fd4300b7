"""What the recorder does with each operator, worked out once from PyTorch's own description of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.torch.operators import KEPT_WHOLE, OPERATORS, OpRule

__all__ = [
    "DROPOUTS",
    "REFUSED",
    "SAME_TENSOR",
    "VALUE_DEPENDENT",
    "OpPlan",
    "no_end",
    "no_quantised",
    "plan_for",
    "refusal",
]

DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
SAME_TENSOR = frozenset({"detach", "lift", "lift_fresh", "alias", "resolve_conj", "resolve_neg"})
# Operators that reach outside the process: files by name, and whole namespaces, the network among them.
REFUSED = frozenset({"from_file", "save", "read_file", "write_file", "load_tensor"})
_REFUSED_NAMESPACES = frozenset(
    {
        "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor", "debugprims",
        "debug_mode_ops", "_test", "static_runtime",
    }
)  # fmt: skip
VALUE_DEPENDENT = frozenset(
    {
        "_local_scalar_dense", "equal", "nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim",
        "unique_consecutive", "repeat_interleave", "bincount", "is_nonzero", "nms",
    }
)  # fmt: skip
# In-place operators that PyTorch counts as views though they may take other memory.
_REALLOCATING = frozenset({"resize", "resize_as", "set"})


@dataclass(frozen=True, kw_only=True, slots=True)
class OpPlan:
    """What to do with one operator.

    Args:
        name: Name without namespace, overload and in-place underscore.
        source_op: Name with namespace, without overload.
        rule: Its entry in the table, or None.
        argument_names: Names of its arguments in order.
        defaults: Values of arguments that were left out.
        is_refused: Reaches outside the process.
        is_quantised: Computes with weights that PyTorch has quantised.
        is_skipped: Neither takes nor gives anything that a recording knows, such as a message to print.
        is_ignored: Computes no tensor.
        is_composite: Is a composition that PyTorch takes apart.
        is_random: Its result differs from call to call.
        is_in_place: Writes to its first argument.
        is_in_place_view: Gives its first argument another shape and writes no data.
        is_aliasing: Writes to an argument or returns a view of one.
        has_device: Takes a device.
    """

    name: str
    source_op: str
    rule: OpRule | None
    argument_names: tuple[str, ...]
    defaults: Mapping[str, Any]
    is_refused: bool
    is_quantised: bool
    is_skipped: bool
    is_ignored: bool
    is_composite: bool
    is_random: bool
    is_in_place: bool
    is_in_place_view: bool
    is_aliasing: bool
    has_device: bool


def _make_plan(func: torch._ops.OpOverload) -> OpPlan:
    packet = func._schema.name.rpartition("::")[2]
    name = packet if packet.startswith("__") else packet.removesuffix("_")
    arguments = func._schema.arguments
    is_composite = (
        name not in KEPT_WHOLE
        and name not in DROPOUTS
        and torch._C._dispatch_has_kernel_for_dispatch_key(func._name, "CompositeImplicitAutograd")
    )
    returns_tensor = any("Tensor" in str(item.type) for item in func._schema.returns)
    takes_tensor = any("Tensor" in str(item.type) for item in arguments)
    return OpPlan(
        name=name,
        source_op=f"{func.namespace}.{packet}",
        rule=OPERATORS.get(name) or OPERATORS.get(packet),
        argument_names=tuple(argument.name for argument in arguments),
        defaults={item.name: item.default_value for item in arguments if item.has_default_value()},
        is_refused=name in REFUSED or func.namespace in _REFUSED_NAMESPACES,
        is_quantised=func.namespace == "quantized" or name.startswith("quantized_"),
        is_skipped=func.namespace not in {"prim", "profiler"} and not takes_tensor and not func._schema.returns,
        is_ignored=func.namespace in {"prim", "profiler"}
        or (not returns_tensor and name not in VALUE_DEPENDENT and not is_composite and not func._schema.is_mutable)
        or (not returns_tensor and not takes_tensor),
        is_composite=is_composite,
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        is_in_place=bool(arguments)
        and arguments[0].name == "self"
        and arguments[0].alias_info is not None
        and arguments[0].alias_info.is_write,
        is_in_place_view=torch.Tag.inplace_view in func.tags and name not in _REALLOCATING,
        is_aliasing=any(item.alias_info is not None for item in (*arguments, *func._schema.returns))
        or name in {"_unsafe_view", "_reshape_alias"},
        has_device=any(argument.name == "device" for argument in arguments),
    )


def plan_for(func: torch._ops.OpOverload) -> OpPlan:
    """The plan of an operator."""
    plan = _PLANS.get(func)
    if plan is None:
        plan = _PLANS[func] = _make_plan(func)
    return plan


def refusal(plan: OpPlan) -> ModelReadError:
    """The error of running an operator that is refused."""
    return ModelReadError(
        f"The model runs {plan.source_op}, which reaches files or other processes.",
        code="torch.file_operator",
        cure="Remove that from the model.",
    )


def no_end(operators: int) -> UnsupportedError:
    """The error of a model that runs on and on.

    Args:
        operators: How many operators it has run.
    """
    return UnsupportedError(
        f"The model has run {operators} operators and has not ended.",
        code="torch.too_many_operators",
        cure="It loops without end, or far longer than a model does; give it without that loop.",
    )


def no_quantised(what: str) -> UnsupportedError:
    """The error of a model that PyTorch has quantised.

    Args:
        what: What of it is quantised, as "runs quantized.linear_dynamic".
    """
    return UnsupportedError(
        f"The model {what}. PyTorch's own quantised operators run on CPUs, and are not supported.",
        code="torch.quantised",
        cure="Give the model that it was quantised from.",
    )


_PLANS: dict[torch._ops.OpOverload, OpPlan] = {}
