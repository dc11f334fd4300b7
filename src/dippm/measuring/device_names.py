"""Names of devices: PyTorch's, and the ones that devices give themselves."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from dippm.errors import MissingExtraError, UnsupportedError
from dippm.measuring.nvml import Nvml

__all__ = ["cpu_name", "cuda_name", "describe_device", "parse_device", "starting_cuda"]

_CPU_INFO = Path("/proc/cpuinfo")
_VENDOR = "NVIDIA "


def describe_device(device: str) -> str:
    """The name under which a device's measurements are kept.

    On a GPU this makes PyTorch look for devices, which creates no CUDA context.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:INDEX"``.

    Returns:
        NVML's name without the vendor, such as ``"H200"``; for a CPU its model name.

    Raises:
        UnsupportedError: ``device.unavailable``.
        MissingExtraError: where PyTorch is not installed.
    """
    kind, index = parse_device(device)
    if kind == "cpu":
        return cpu_name()
    with starting_cuda(device):
        return cuda_name(index, Nvml())


@contextmanager
def starting_cuda(device: str) -> Iterator[None]:
    """Where CUDA is there and does not start, say why: an old driver, a device that another process has for itself.

    Raises:
        UnsupportedError: ``device.unavailable``.
    """
    try:
        yield
    except RuntimeError as exc:  # the base of all errors that PyTorch raises for CUDA
        from dippm.measuring.failures import describe

        raise UnsupportedError(
            f"The device '{device}' cannot be used. {describe(exc).removesuffix('.')}.",
            code="device.unavailable",
            cure="See with nvidia-smi that its driver works and that no other process has it.",
        ) from exc


def parse_device(device: str) -> tuple[str, int]:
    """Split a device's name into kind and index, and make sure that it is there.

    Raises:
        UnsupportedError: ``device.unavailable``.
        MissingExtraError: where PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingExtraError(package="torch", extra="measure", purpose="measure a model")
    if device == "cpu":
        return "cpu", 0
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number.isdigit() or device == "cuda"):
        raise UnsupportedError(
            f"Measuring knows no device '{device}'.", code="device.unavailable", cure="Use cpu, cuda or cuda:INDEX."
        )
    import torch

    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        raise UnsupportedError(
            f"There is no device '{device}': PyTorch {torch.__version__} sees {count} CUDA devices here.",
            code="device.unavailable",
            cure="Use cpu, or look at nvidia-smi, CUDA_VISIBLE_DEVICES and torch.cuda.is_available().",
        )
    return "cuda", index


def cpu_name() -> str:
    """Model name of the processor."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "CPU"


def cuda_name(index: int, nvml: Nvml) -> str:
    """NVML's name of the device that PyTorch counts as ``index``, without the vendor."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    found = nvml.find(properties)
    name = None if found is None else found.name()
    return (name or str(properties.name)).removeprefix(_VENDOR)
