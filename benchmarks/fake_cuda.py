"""Fake CUDA tensors in PyTorch's CPU-only build: import this before torch.

A build with CUDA runs fake tensors on the device "cuda" without a GPU; the CPU-only build lacks a few entries of its
registries, which a small library built here by the C++ compiler fills in. What then runs are the operators of CUDA:
cuDNN's batch norm and recurrent layers, flash or memory-efficient attention, autocast, foreach optimizers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "fake_cuda.cpp"
BUILT = HERE.parent / "build" / "benchmarks" / f"fake_cuda-{version('torch')}.so"


def _build() -> None:
    """Build the library where it is missing or older than its source."""
    if BUILT.exists() and BUILT.stat().st_mtime >= SOURCE.stat().st_mtime:
        return
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The benchmark needs PyTorch.")
    root = Path(spec.submodule_search_locations[0])
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    command = [
        "g++", "-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(BUILT), f"-I{root / 'include'}",
        f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-Wl,--no-as-needed", "-lc10", "-ltorch_cpu",
    ]  # fmt: skip
    subprocess.run(command, check=True)


if "torch" in sys.modules:
    raise ImportError("fake_cuda must be imported before torch, which looks for CUDA only once.")
_build()
ctypes.CDLL(str(BUILT), mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402 - after the library
import torch.cuda.amp.common  # noqa: E402


def _recurrent_backward(input: torch.Tensor, weight: list[torch.Tensor], *rest: Any) -> tuple[Any, ...]:  # noqa: A002
    """Shapes of cuDNN's gradients, those of the weights in one buffer; PyTorch has no such rule.

    The arguments are the operator's; the first and second state are the third and fourth of the rest.
    """
    first, second = rest[2:4]
    buffer = weight[0].new_empty(sum(each.numel() for each in weight))
    gradients, start = [], 0
    for each in weight:
        gradients.append(buffer[start : start + each.numel()].view(each.shape))
        start += each.numel()
    return (
        torch.empty_like(input),
        torch.empty_like(first),
        None if second is None else torch.empty_like(second),
        gradients,
    )


def _never(*_: Any) -> None:
    raise RuntimeError("A kernel was called; all tensors should be fake.")


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("_cudnn_rnn_backward", _recurrent_backward, "Meta")
# These have kernels on CUDA and are taken apart where there is none.
for _name in ("silu_backward", "mish_backward", "_fused_rms_norm"):
    _LIBRARY.impl(_name, _never, "CUDA")
# These look for a real GPU.
torch.cuda.get_device_capability = lambda *_: (8, 0)
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
torch.backends.cudnn.is_acceptable = lambda _: True
# nn.LSTM asks where its weights lie.
warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
