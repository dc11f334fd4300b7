"""What a model's own loss does to its scores."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import nn

__all__ = ["is_scored_in_fp32", "is_scoring_in_fp32"]

# transformers 5: loss/loss_utils.py. These call ``float()`` on the scores; a class without one of its own is of the
# first kind.
_IN_FP32 = frozenset({"ForCausalLMLoss", "ForMaskedLMLoss", "ForTokenClassification"})
_CHOOSER = "transformers.modeling_utils"
_LIBRARY = "transformers"


def is_scored_in_fp32(module: nn.Module) -> bool:
    """Whether the loss that a model of transformers takes of its scores first makes them FP32.

    That of most decoders does. Older classes, BERT's and T5's, take the scores as they are. Of a model with adapters
    (PEFT) the one that they are put on is looked at; other modules around a model are taken to have their own loss.
    """
    base = getattr(module, "get_base_model", None)
    if callable(base):
        module = base()
    if isinstance(module, torch.jit.ScriptModule):
        return False
    # Every model of transformers has a loss; the older classes do not call it.
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None or "loss_function" not in code.co_names:
        return False
    with _unheard(_CHOOSER):
        return getattr(getattr(module, "loss_function", None), "__name__", "") in _IN_FP32


def is_scoring_in_fp32() -> bool:
    """Whether such a loss is being taken right now, of scores that it has made FP32."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in _IN_FP32 and _LIBRARY in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _unheard(name: str) -> Iterator[None]:
    """Keep a logger from saying what a user has no use for."""
    logger = logging.getLogger(name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
