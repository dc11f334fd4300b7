"""What a model's own loss does to its scores."""

from __future__ import annotations

import inspect

from torch import nn

__all__ = ["is_scored_in_fp32"]

# transformers 5: loss/loss_utils.py. These call ``float()`` on the scores; a class without one of its own is of the
# first kind.
_IN_FP32 = frozenset({"ForCausalLMLoss", "ForMaskedLMLoss", "ForTokenClassification"})


def is_scored_in_fp32(module: nn.Module) -> bool:
    """Whether the loss that a model of transformers takes of its scores first makes them FP32.

    That of most decoders does. Older classes, BERT's and T5's, take the scores as they are.
    """
    loss = getattr(module, "loss_function", None)
    if getattr(loss, "__name__", "") not in _IN_FP32:
        return False
    # Every model of transformers has one; the older classes do not call it.
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "loss_function" in code.co_names
