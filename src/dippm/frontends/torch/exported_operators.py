"""What the names in a ``torch.export`` archive stand for: operators, and arithmetic of sizes."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.torch.higher_order import WITHOUT_MODES
from dippm.frontends.torch.late_compiler import compiler_postponed
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

__all__ = ["import_packages", "resolve_operator"]

_ARITHMETIC = frozenset(
    {
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "eq", "ne", "lt", "le", "gt",
        "ge", "and_", "or_", "not_", "xor", "getitem", "ceil", "floor", "trunc", "sqrt", "log", "log2", "exp",
    }
)  # fmt: skip
_INTEGER_BITS = 128
_OPERANDS = 2
_SYMBOLIC: Mapping[str, Callable[..., Any]] = {
    "torch.sym_max": max, "torch.sym_min": min, "torch.sym_float": float, "torch.sym_int": int,
    "torch.sym_not": operator.not_, "torch.sym_sum": sum, "torch.sym_ite": lambda c, a, b: a if c else b,
}  # fmt: skip
_OF_HIGHER_ORDER = 4
_OF_VMAP = "torch._functorch.predispatch."
# Where packages register operators that their models are exported with.
_REGISTERED_IN = {"torchvision": "torchvision", "transformers": "transformers.integrations.moe"}


def import_packages(targets: Iterable[str]) -> None:
    """Import the known packages whose operators a program calls, where they are installed.

    Args:
        targets: Names of all that it calls.
    """
    namespaces = {name.split(".")[2] for name in targets if name.startswith("torch.ops.") and name.count(".") > 2}
    needed = [package for package in _REGISTERED_IN if package in namespaces and find_spec(package)]
    if not needed:
        return
    with warnings.catch_warnings(), compiler_postponed(), suppress(ImportError):
        warnings.simplefilter("ignore")
        if find_spec("torchvision"):
            import_torchvision_ops()
        for package in needed:
            import_module(_REGISTERED_IN[package])


def resolve_operator(target: str) -> Callable[..., Any]:
    """The operator of a name; only operators and arithmetic have one, so that a file cannot call anything else.

    Raises:
        UnsupportedError: ``torch.export_unsupported`` where it has none here.
    """
    if target in _SYMBOLIC:
        symbolic: Callable[..., Any] = _SYMBOLIC[target]
        return symbolic
    namespace, _, rest = target.partition(".")
    if namespace in {"_operator", "math"} and rest.isidentifier():
        found: Any = getattr(operator if namespace == "_operator" else math, rest, None)
        if rest in _ARITHMETIC and found is not None:
            return _bounded(rest, found)
    parts = target.split(".")
    if parts[:3] == ["torch", "ops", "higher_order"] and parts[-1] in WITHOUT_MODES and len(parts) == _OF_HIGHER_ORDER:
        return WITHOUT_MODES[parts[-1]]
    if target.startswith(_OF_VMAP):
        raise UnsupportedError(
            f"The exported program calls '{target}', a part of torch.vmap that only PyTorch's own loader runs.",
            code="torch.export_unsupported",
            cure="Save program.run_decompositions({}) in place of the program, or give the module.",
        )
    if parts[:2] == ["torch", "ops"] and len(parts) == 5 and parts[2] != "higher_order":
        packet = getattr(getattr(torch.ops, parts[2]), parts[3], None)
        overload = getattr(packet, parts[4], None)
        if isinstance(overload, torch._ops.OpOverload):
            return overload
    raise UnsupportedError(
        f"The exported program calls '{target}', which is no operator of this PyTorch ({torch.__version__}).",
        code="torch.export_unsupported",
        cure="Import the package that registers the operator first, or export the model to ONNX and give that file.",
    )


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic of sizes, which refuses what no size is: text and lists to repeat, and integers without bound."""

    def bounded(*values: Any) -> Any:
        numbers = [value for value in values if isinstance(value, int)]
        is_sound = all(value.bit_length() <= _INTEGER_BITS for value in numbers) and (
            name == "getitem" or all(isinstance(value, (int, float, complex, torch.Tensor)) for value in values)
        )
        if is_sound and name == "pow" and len(numbers) == len(values) == _OPERANDS:
            is_sound = numbers[0].bit_length() * numbers[1] <= _INTEGER_BITS
        if not is_sound:
            raise ModelReadError(
                f"The exported program computes '{name}' of what is no size, or of sizes that no tensor has.",
                code="torch.export_invalid",
                cure="Export the model again with torch.export.save.",
            )
        return function(*values)

    return bounded
