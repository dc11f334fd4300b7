"""Operators that take functions, such as ``flex_attention`` and ``torch.cond``, as eager PyTorch runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from dippm.errors import UnsupportedError
from dippm.frontends.torch.asked_values import DataDependentError

__all__ = ["COND", "WITHOUT_MODES", "run_eagerly"]

#: What a branch of ``torch.cond`` is said to ask by.
COND = "torch.cond"

_STEP_LIMIT = 1_000_000  # those with operators end before
_EAGER = torch._C.DispatchKey.CompositeExplicitAutograd


def run_eagerly(func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one by the operators that eager PyTorch runs it by: flexible attention with its scores in memory.

    Raises:
        UnsupportedError: ``torch.higher_order`` where PyTorch has it for its compiler alone.
    """
    name: str = func.name()  # type: ignore[no-untyped-call]
    run = WITHOUT_MODES.get(name) or func.py_kernels.get(_EAGER)
    if run is None:
        raise UnsupportedError(
            f"The model runs {name}, which PyTorch has for compiled models alone.",
            code="torch.higher_order",
            cure="Give the model without it, or without torch.compile around that part.",
        )
    return run(*args, **kwargs)


def _cond(asked: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any) -> Any:
    try:
        is_true = bool(asked)
    except DataDependentError as exc:
        raise DataDependentError(COND, exc.tensors) from exc
    return (if_true if is_true else if_false)(*operands)


def _while_loop(asked: Callable[..., Any], body: Callable[..., Any], carried: Any, others: Any) -> Any:
    for _ in range(_STEP_LIMIT):
        if not _one(asked(*carried, *others)):
            return carried
        carried = tuple(body(*carried, *others))
    raise UnsupportedError(
        f"A loop of the model has run {_STEP_LIMIT} times and has not ended.",
        code="torch.too_many_operators",
        cure="It loops without end, or far longer than a model does; give it without that loop.",
    )


def _one(found: Any) -> Any:
    """The one result of a function; those of exported programs give lists."""
    return found[0] if isinstance(found, (list, tuple)) else found


def _scan(step: Callable[..., Any], carried: Any, sequences: Any, others: Any, **_: Any) -> Any:
    outputs = []
    for elements in zip(*(sequence.unbind(0) for sequence in sequences), strict=True):
        found = step(*carried, *elements, *others)
        carried, output = found[: len(carried)], found[len(carried) :]
        outputs.append(output)
    return [*carried, *(torch.stack(column) for column in zip(*outputs, strict=True))]


def _map(function: Callable[..., Any], sequences: Any, others: Any, **_: Any) -> Any:
    return _scan(function, (), sequences, others)


#: What PyTorch's own refuse to run where operators are recorded, by its name.
WITHOUT_MODES: Mapping[str, Callable[..., Any]] = {
    "cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map,
}  # fmt: skip
