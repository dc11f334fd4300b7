"""Device memory that a process holds before its first tensor: the CUDA context and cuBLAS's workspace."""

from __future__ import annotations

from dippm.devices.spec import DeviceSpec

__all__ = ["blas_workspace_bytes", "context_mb"]

# aten/src/ATen/cuda/CublasHandlePool.cpp (PyTorch 2.13): ":4096:2:16:8" in KiB, 32 MiB on compute capability 9, 10
# and 12. cublasLt shares it. CUBLAS_WORKSPACE_CONFIG changes it; its default is taken.
_BLAS_BYTES = (2 * 4096 + 8 * 16) * 1024
_BLAS_BYTES_NEW = 32 * 2**20
_NEW_MAJORS = frozenset({9, 10, 12})

# Resident threads per SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_MOST_THREADS_PER_SM = 2048
_THREADS_PER_SM = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}

# The driver backs every resident thread with stack and local memory, which makes the context grow with the device; a
# part for code and driver state does not. One published figure fixes the scale: 426 MiB for an empty process with
# PyTorch 2.10 and CUDA 13.0 on an RTX 6000 Ada with 142 SMs (github.com/unslothai/unsloth-zoo, pull request 1053).
# How it divides into the two parts is an assumption.
_CONTEXT_FIXED_MB = 32.0
_CONTEXT_MB_PER_THREAD = (426.0 - _CONTEXT_FIXED_MB) / (142 * 1536)
# Kernels of cuBLAS, cuDNN and PyTorch that a model pulls in under lazy loading: an assumption.
_KERNELS_MB = 64.0


def blas_workspace_bytes(device: DeviceSpec) -> int:
    """Workspace that PyTorch takes from its caching allocator for cuBLAS, once per stream, bytes."""
    return _BLAS_BYTES_NEW if device.compute_capability[0] in _NEW_MAJORS else _BLAS_BYTES


def context_mb(device: DeviceSpec) -> float:
    """Memory of the CUDA context and the loaded kernels, MiB.

    An estimate, fitted to one published figure (in this module's comments) and scaled by the device's resident
    threads; the tables that dippm is calibrated on have no figure for it.
    """
    threads = device.sm_count * _THREADS_PER_SM.get(device.compute_capability, _MOST_THREADS_PER_SM)
    return _CONTEXT_FIXED_MB + _CONTEXT_MB_PER_THREAD * threads + _KERNELS_MB
