"""Inference in PyTorch as one call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from dippm.costs.conditions import Layout, Runtime
from dippm.measuring.arithmetic import autocast, stored_dtype, whole_model_dtype
from dippm.measuring.configuration import Configuration
from dippm.measuring.sample_inputs import Inputs

__all__ = ["converted", "inference_call"]

_CALLS_BEFORE_CAPTURE = 3


@contextmanager
def inference_call(
    module: nn.Module, inputs: Inputs, configuration: Configuration, *, device: str
) -> Iterator[Callable[[], object]]:
    """One forward pass as a function without arguments, under ``torch.inference_mode``.

    Args:
        module: The model on the device, in evaluation mode. Whole-model precisions and ``nhwc`` convert it in place.
        inputs: Its inputs.
        configuration: How it is run.
        device: The device.

    Yields:
        The call, which returns what the model returns. With the runtime ``cuda-graph`` it replays a captured graph and
        always returns the same tensors.

    Raises:
        UnsupportedError: ``runtime.unsupported`` for CUDA graphs on another device.
    """
    configuration.check_torch(device)
    conditions = configuration.conditions
    module, inputs = converted(module, inputs, configuration)
    if conditions.runtime is Runtime.COMPILE:
        module = torch.compile(module)  # type: ignore[assignment]
    args, kwargs = inputs.arguments

    def call() -> object:
        # Entered in each call: autocast keeps its casts of the weights for one pass and not longer.
        with torch.inference_mode(), autocast(conditions.precision, device):
            return module(*args, **kwargs)

    try:
        if conditions.runtime is Runtime.CUDA_GRAPH:
            with _captured(call, device=device) as replay:
                yield replay
        else:
            yield call
    finally:
        if conditions.runtime is Runtime.COMPILE:
            torch.compiler.reset()


def converted(module: nn.Module, inputs: Inputs, configuration: Configuration) -> tuple[nn.Module, Inputs]:
    """The model and its inputs in the precision's format and the layout; the model itself is changed.

    Its weights are converted on the host: on the device new ones would lie between the old, in segments that the
    caching allocator could not give back, and a model in 16 bits would be counted with up to all that it held in 32.
    A model that is stored in the precision's format runs as it is, with what it keeps in FP32.
    """
    dtype = whole_model_dtype(configuration.conditions.precision)
    if dtype is stored_dtype(module):
        dtype = None
    is_turned = configuration.conditions.layout is Layout.NHWC
    if dtype is None and not is_turned:
        return module, inputs
    home = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))
    module = module.to("cpu")
    if dtype is not None:
        module, inputs = module.to(dtype), inputs.to_dtype(dtype)
    if is_turned:
        module, inputs = module.to(memory_format=torch.channels_last), inputs.to_channels_last()  # type: ignore[call-overload]
    torch.cuda.empty_cache()  # does nothing where CUDA was not started
    return module.to(home), inputs


@contextmanager
def _captured(call: Callable[[], object], *, device: str) -> Iterator[Callable[[], object]]:
    # PyTorch asks for calls on a side stream before a capture, for all that libraries set up in their first call.
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_CALLS_BEFORE_CAPTURE):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replay() -> object:
        graph.replay()
        return output

    try:
        yield replay
    finally:
        graph.reset()


@functools.cache
def _side_stream(device: str) -> torch.cuda.Stream:
    """One stream for all captures: cuBLAS would take a workspace for each new one."""
    return torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
