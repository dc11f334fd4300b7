"""What errors of the frameworks mean."""

from __future__ import annotations

import errno

import pytest

torch = pytest.importorskip("torch")

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.measuring.failures import describe, is_out_of_memory  # noqa: E402


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165'),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)
    wrapped = UnsupportedError("It cannot be built.", code="zoo.build_failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


def test_other_errors() -> None:
    assert not is_out_of_memory(ValueError("shapes do not match"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    other = 'r == 0 INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165'
    assert not is_out_of_memory(RuntimeError(other))


def test_one_line() -> None:
    assert describe(ValueError("\n\x1b[96mfirst\x1b[0m \nsecond")) == "ValueError: first"
    assert describe(KeyError()) == "KeyError"
    assert len(describe(ValueError("x" * 1000))) == 300
