"""Operators that take functions, such as ``flex_attention`` and ``torch.cond``, as eager PyTorch runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from dippm.errors import UnsupportedError

__all__ = ["run_eagerly"]

_EAGER = torch._C.DispatchKey.CompositeExplicitAutograd


def run_eagerly(func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one by the operators that eager PyTorch runs it by: flexible attention with its scores in memory.

    Raises:
        UnsupportedError: ``torch.higher_order`` where PyTorch has it for its compiler alone.
    """
    name: str = func.name()  # type: ignore[no-untyped-call]
    run = _WITHOUT_MODES.get(name) or func.py_kernels.get(_EAGER)
    if run is None:
        raise UnsupportedError(
            f"The model runs {name}, which PyTorch has for compiled models alone.",
            code="torch.higher_order",
            cure="Give the model without it, or without torch.compile around that part.",
        )
    return run(*args, **kwargs)


def _cond(asked: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any) -> Any:
    return (if_true if asked else if_false)(*operands)


def _while_loop(asked: Callable[..., Any], body: Callable[..., Any], carried: Any, others: Any) -> Any:
    while asked(*carried, *others):
        carried = tuple(body(*carried, *others))
    return carried


def _scan(step: Callable[..., Any], carried: Any, sequences: Any, others: Any, **_: Any) -> Any:
    outputs = []
    for elements in zip(*(sequence.unbind(0) for sequence in sequences), strict=True):
        found = step(*carried, *elements, *others)
        carried, output = found[: len(carried)], found[len(carried) :]
        outputs.append(output)
    return [*carried, *(torch.stack(column) for column in zip(*outputs, strict=True))]


# PyTorch's own refuse to run where operators are recorded.
_WITHOUT_MODES: Mapping[str, Callable[..., Any]] = {"cond": _cond, "while_loop": _while_loop, "scan": _scan}
