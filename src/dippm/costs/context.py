"""Device memory that a process holds before its first tensor: the CUDA context and cuBLAS's workspace."""

from __future__ import annotations

from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.devices.spec import DeviceSpec

__all__ = ["blas_workspace_bytes", "context_growth_mb", "context_mb", "eager_margin_mb", "lt_workspace_bytes"]

# aten/src/ATen/cuda/CublasHandlePool.cpp (PyTorch 2.13): ":4096:2:16:8" in KiB, 32 MiB on compute capability 9, 10
# and 12. cuBLASLt shares it since 2.12. CUBLAS_WORKSPACE_CONFIG changes it; its default is taken.
_BLAS_BYTES = (2 * 4096 + 8 * 16) * 1024
_BLAS_BYTES_NEW = 32 * 2**20
_LT_BYTES = 2**20
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

# What a new process holds more once it has run a backward pass, whose thread has handles of cuBLAS and cuDNN of its
# own, and once it has captured a graph, on a second stream: the medians of 7 and 9 processes on an H100 and an H200
# (`data/labels`), from 66 to 84 MiB, the same whichever comes first. That it is so on other devices is assumed.
_BACKWARD_MB = 72.0
_CAPTURE_MB = 70.0

# Where all kernels are loaded at once. Published training steps that did and did not fit leave 1,708 MiB beside tensors
# on an RTX 3090 (82 SMs) under PyTorch 1.12 and CUDA 11.3, with the handles and workspaces of cuDNN and cuBLAS: chosen
# on half of the models by `python -m dippm.evaluation.training_fits`. Code does not grow with the number of SMs.
_EAGER_DEVICE = "GeForce RTX 3090"
_EAGER_SOFTWARE = Software(torch=(1, 12), cuda=(11, 3))
_EAGER_KERNELS_MB = 1708.0 - _CONTEXT_FIXED_MB - _CONTEXT_MB_PER_THREAD * (82 * 1536)
# Assumed for other devices and releases. A maintainer of PyTorch gives "more than 1,000 MB" for the kernels that were
# loaded before CUDA 11.7 (github.com/pytorch/pytorch, issue 107667).
_EAGER_MARGIN_MB = 700.0


def blas_workspace_bytes(device: DeviceSpec, software: Software = DEFAULT_SOFTWARE) -> int:
    """Workspace that PyTorch takes from its caching allocator for cuBLAS, once per thread and stream, bytes."""
    if not software.has_blas_workspace:
        return 0
    return _BLAS_BYTES_NEW if device.compute_capability[0] in _NEW_MAJORS else _BLAS_BYTES


def lt_workspace_bytes(software: Software) -> int:
    """Workspace that PyTorch takes from its caching allocator for cuBLASLt, once per thread and stream, bytes."""
    return _LT_BYTES if software.has_lt_workspace else 0


def context_mb(
    device: DeviceSpec, software: Software = DEFAULT_SOFTWARE, *, trains: bool = False, is_captured: bool = False
) -> float:
    """Memory of the CUDA context and the loaded kernels, MiB.

    What was measured on the device, where kernels are loaded lazily as they were then. Else an estimate, fitted to one
    published figure for lazy loading and to one chosen on published training steps for eager loading (both in this
    module's comments), and scaled by the device's resident threads.

    Args:
        device: The device.
        software: What the process loads.
        trains: Whether it runs backward passes.
        is_captured: Whether it captures CUDA graphs.
    """
    grown = context_growth_mb(software, trains=trains, is_captured=is_captured)
    if device.context_mb is not None and software.loads_lazily:
        return device.context_mb + grown
    threads = device.sm_count * _THREADS_PER_SM.get(device.compute_capability, _MOST_THREADS_PER_SM)
    kernels = _KERNELS_MB if software.loads_lazily else _EAGER_KERNELS_MB
    return _CONTEXT_FIXED_MB + _CONTEXT_MB_PER_THREAD * threads + kernels + grown


def context_growth_mb(software: Software, *, trains: bool, is_captured: bool) -> float:
    """By how much the context is larger than that of a process that only runs forward passes, MiB.

    Nothing where all kernels are loaded at once: the estimate of these contexts is one of training steps.
    """
    if not software.loads_lazily:
        return 0.0
    return trains * _BACKWARD_MB + is_captured * _CAPTURE_MB


def eager_margin_mb(device: DeviceSpec, software: Software) -> float:
    """By how much less or more than estimated the context may be where all kernels are loaded at once, MiB.

    Nothing where it was chosen: what is uncertain there is among the errors of everything else.
    """
    return 0.0 if device.name == _EAGER_DEVICE and software == _EAGER_SOFTWARE else _EAGER_MARGIN_MB
