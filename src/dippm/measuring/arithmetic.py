"""Precision in PyTorch: the switches, autocast and the model's own format."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain

import torch
from torch import nn

from dippm.costs.precision import Precision, stored_half
from dippm.frontends.torch.dtypes import from_torch_dtype, to_torch_dtype
from dippm.graph import DType

__all__ = ["autocast", "backend_switches", "stored_dtype", "whole_model_dtype"]

_AUTOCAST = {Precision.AMP: torch.float16, Precision.AMP_BF16: torch.bfloat16}
_WHOLE_MODEL = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}
# Precision to TF32 in (cuDNN, matrix products). PyTorch's defaults wherever the precision says nothing of TF32.
_TF32 = {Precision.FP32_STRICT: (False, False), Precision.TF32: (True, True)}
_TF32_DEFAULT = (True, False)


@contextmanager
def backend_switches(precision: Precision) -> Iterator[None]:
    """Set PyTorch's switches for a precision, and back at the end.

    ``torch.backends.cudnn.benchmark`` is off throughout, as is PyTorch's default: cuDNN chooses its convolution
    algorithms by rule, and does not try them out.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    with warnings.catch_warnings():
        # PyTorch 2.9 and later warn once that these switches have a newer spelling, which older versions lack.
        warnings.filterwarnings("ignore", message=".*TF32.*")
        before = (cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
        cudnn.benchmark = False
        cudnn.allow_tf32, matmul.allow_tf32 = _TF32.get(precision, _TF32_DEFAULT)
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*TF32.*")
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def autocast(precision: Precision, device: str) -> AbstractContextManager[object]:
    """A new context for one forward pass: autocast where the precision asks for it."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype=dtype)


def whole_model_dtype(precision: Precision) -> torch.dtype | None:
    """The format that model and inputs are converted to, or None where they stay as they are."""
    return _WHOLE_MODEL.get(precision)


def stored_dtype(module: nn.Module) -> torch.dtype | None:
    """The 16-bit format that most weights of a module are stored in; None where they are not."""
    kept: dict[DType, int] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        dtype = from_torch_dtype(tensor.dtype)
        kept[dtype] = kept.get(dtype, 0) + tensor.numel()
    half = stored_half(kept)
    return None if half is None else to_torch_dtype(half)
