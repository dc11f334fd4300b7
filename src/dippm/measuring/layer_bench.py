"""Traces layers by themselves, many in one profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from dippm.costs.conditions import Layout
from dippm.graph import OpKind
from dippm.measuring.arithmetic import autocast, backend_switches, whole_model_dtype
from dippm.measuring.failures import is_out_of_memory
from dippm.measuring.kernel_trace import trace_operators
from dippm.measuring.layer import Layer
from dippm.measuring.operator_run import OperatorRun

__all__ = ["LayerBench"]

_ACTIVATIONS: dict[OpKind, Callable[[Tensor, bool], Tensor]] = {
    OpKind.RELU: lambda x, inplace: functional.relu(x, inplace=inplace),
    OpKind.LEAKY_RELU: lambda x, inplace: functional.leaky_relu(x, inplace=inplace),
    OpKind.ELU: lambda x, inplace: functional.elu(x, inplace=inplace),
    OpKind.GELU: lambda x, _: functional.gelu(x),
    OpKind.SILU: lambda x, inplace: functional.silu(x, inplace=inplace),
    OpKind.MISH: lambda x, inplace: functional.mish(x, inplace=inplace),
    OpKind.SIGMOID: lambda x, inplace: x.sigmoid_() if inplace else x.sigmoid(),
    OpKind.TANH: lambda x, inplace: x.tanh_() if inplace else x.tanh(),
    OpKind.HARD_SWISH: lambda x, inplace: functional.hardswish(x, inplace=inplace),
    OpKind.HARD_SIGMOID: lambda x, inplace: functional.hardsigmoid(x, inplace=inplace),
    OpKind.CLIP: lambda x, inplace: functional.relu6(x, inplace=inplace),
}
# Tensors begin where PyTorch's allocator would have them begin, B.
_ALIGNMENT = 512
_ELEMENT_BYTES = 4


class LayerBench:
    """A device with a pool of numbers, of which every tensor is a part, so that none has to be made.

    Args:
        device: PyTorch's name of the device.
        image_bytes: Room for the images, B.
        weight_bytes: Room for weights, B: those of one layer follow those of the one before, so that a cache which is
            smaller does not hold them when they are read again.

    Raises:
        torch.OutOfMemoryError: The device has no such room.
    """

    def __init__(self, device: str, *, image_bytes: int = 12 * 2**30, weight_bytes: int = 2**30) -> None:
        self._device = device
        self._images, self._weights = (self._numbers(size) for size in (image_bytes, weight_bytes))
        self._taken = 0

    def trace(self, layers: Sequence[Layer]) -> list[tuple[OperatorRun, ...] | None]:
        """The operators of each layer with their kernels; None for one that does not run or has no room.

        Each layer runs once, for libraries to choose its kernels, and when all have, once more under the profiler, its
        image written right before, as a layer before it would.
        """
        result: list[tuple[OperatorRun, ...] | None] = [None] * len(layers)
        order = sorted(range(len(layers)), key=lambda place: layers[place].precision)
        for precision, places in groupby(order, key=lambda place: layers[place].precision):
            with backend_switches(precision), torch.inference_mode():
                calls = {place: call for place in places if (call := self._try(layers[place])) is not None}
                runs = iter(trace_operators(lambda calls=calls: [call() for call in calls.values()], self._wait))  # type: ignore[misc]
            for place in calls:
                next(runs)  # the writing of its image
                result[place] = tuple(next(runs) for _ in range(layers[place].operators))
        return result

    def _try(self, layer: Layer) -> Callable[[], None] | None:
        """The layer as a call, after its first one."""
        try:
            call = self._prepare(layer)
            call()
        except RuntimeError as exc:
            if is_out_of_memory(exc):
                torch.cuda.empty_cache()
            return None
        return call

    def _prepare(self, layer: Layer) -> Callable[[], None]:
        whole = whole_model_dtype(layer.precision)
        weights = whole or torch.float32
        half = whole or (torch.bfloat16 if "bf16" in layer.precision else torch.float16)
        image = self._take_image(layer, half if layer.image_bytes < _ELEMENT_BYTES else torch.float32)
        shape = (layer.channels, layer.image[1] // layer.groups, *layer.kernel)
        weight = self._take_weight(shape, weights, is_last=layer.layout is Layout.NHWC)
        bias = self._take_weight((layer.channels,), weights) if layer.has_bias else None
        mean, variance, scale, shift = (self._take_weight((layer.channels,), weights) for _ in range(4))
        activation = None if layer.activation is None else _ACTIVATIONS[layer.activation]

        def call() -> None:
            image.mul_(1.0)
            with autocast(layer.precision, self._device):
                y = functional.conv2d(image, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
                if layer.has_norm:
                    y = functional.batch_norm(y, mean, variance, scale, shift)
                if activation is not None:
                    activation(y, layer.is_in_place)

        return call

    def _take_image(self, layer: Layer, dtype: torch.dtype) -> Tensor:
        return _shaped(self._images.view(dtype), layer.image, is_last=layer.is_read_last)

    def _take_weight(self, shape: tuple[int, ...], dtype: torch.dtype, *, is_last: bool = False) -> Tensor:
        size = -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._taken + size > self._weights.nbytes:
            self._taken = 0
        numbers = self._weights.view(torch.uint8)[self._taken :].view(dtype)
        self._taken += size
        return _shaped(numbers, shape, is_last=is_last)

    def _numbers(self, size: int) -> Tensor:
        """Small FP16 numbers, which are numbers in other formats too."""
        numbers = torch.empty(size // 2, dtype=torch.float16, device=self._device)
        return numbers.uniform_(0.25, 0.75)

    def _wait(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _shaped(numbers: Tensor, shape: tuple[int, ...], *, is_last: bool) -> Tensor:
    """The first of some numbers as a tensor.

    Raises:
        RuntimeError: They are too few.
    """
    flat = numbers[: math.prod(shape)]
    if not is_last:
        return flat.view(shape)
    first, channels, *window = shape
    return flat.view(first, *window, channels).permute(0, -1, *range(1, len(window) + 1))
