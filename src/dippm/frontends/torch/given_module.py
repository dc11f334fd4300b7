"""What a user gives as a module: wrappers that training scripts leave around it, and weights that have no shape yet."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from dippm.errors import UsageError

__all__ = ["check_initialised", "unwrapped"]

_COMPILED = (
    'The module is compiled, which is left out as it is read: runtime="compile" (--runtime compile) predicts it so, '
    "eager without that."
)


def unwrapped(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The module inside the wrappers that training scripts leave around it, and what is said of these."""
    told: list[str] = []
    while True:
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            told.append(
                f"{type(module).__name__} is left out: the figures are of one device with the batch that is given, and "
                "what devices send each other is not counted."
            )
            module = module.module
        elif isinstance(getattr(module, "_orig_mod", None), nn.Module):  # torch.compile
            told.append(_COMPILED)
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module, tuple(told)


def check_initialised(module: nn.Module, *, source: str) -> None:
    """Refuse a module with weights that get their shapes at a first call that never was.

    Args:
        module: The module.
        source: Where it came from, for messages.

    Raises:
        UsageError: ``torch.lazy``.
    """
    tensors = (*module.named_parameters(), *module.named_buffers())
    names = [name for name, tensor in tensors if is_lazy(tensor)]
    if names:
        raise UsageError(
            f"{source or type(module).__name__} has lazy modules, which get the shapes of their weights at their first "
            f"call and were never called: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}.",
            code="torch.lazy",
            cure="Call the module once on an example before it is given or saved, as in module(torch.zeros(1, 20)).",
        )
