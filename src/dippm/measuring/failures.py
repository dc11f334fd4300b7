"""What an exception of a framework means."""

from __future__ import annotations

import errno
import re

import torch

from dippm.errors import error_chain

__all__ = ["describe", "is_out_of_memory"]

_LONGEST_MESSAGE = 300
# The frameworks have no exception type for most of these.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",  # onnxruntime
    "bad_alloc",
    "bad allocation",
    "_alloc_failed",  # cuBLAS, cuFFT, cuDNN before 9
    "_allocation_failed",  # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
)
# Where memory runs out on a MIG slice, the caching allocator fails over its report of what fills the device.
_FAILED_REPORT = ("nvml_success ==", "cudacachingallocator")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def describe(error: BaseException) -> str:
    """An exception in one line."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    name = type(error).__name__
    return f"{name}: {lines[0]}"[:_LONGEST_MESSAGE] if lines else name


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it arose from, says that memory ran out, on the device or on the host."""
    for link in error_chain(error):
        if isinstance(link, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(link, OSError) and link.errno == errno.ENOMEM:
            return True
        text = str(link).lower()
        if any(sign in text for sign in _OUT_OF_MEMORY) or all(sign in text for sign in _FAILED_REPORT):
            return True
    return False
