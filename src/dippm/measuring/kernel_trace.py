"""Where the time of a call goes: the kernels of each of its operators, by PyTorch's profiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from dippm.measuring.operator_run import KernelRun, OperatorRun

__all__ = ["trace_operators"]

_MICRO = 1e-3  # from the profiler's nanoseconds
_ON_HOST = DeviceType.CPU
# Autograd's nodes stand around the operators of a way back and have no shapes of their own.
_AUTOGRAD = re.compile(r"(torch::)?autograd::|\w+Backward\d*$")


def trace_operators(call: Callable[[], object], synchronise: Callable[[], None]) -> tuple[OperatorRun, ...]:
    """Run a call under the profiler.

    The host launches more slowly while it is traced; durations of kernels are the device's own.

    Args:
        call: Runs the model once; it has run before, so that libraries have chosen their kernels.
        synchronise: Waits for the device.

    Returns:
        Its operators in the order in which they were called, those without work for the device included.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    synchronise()
    with profile(activities=activities, record_shapes=True) as profiler:
        call()
        synchronise()
    results: Any = profiler.profiler
    return _read_operators(results.kineto_results.events())


def _read_operators(events: Sequence[Any]) -> tuple[OperatorRun, ...]:
    events = [event for event in events if not event.is_user_annotation()]
    calls = [event for event in events if event.device_type() == _ON_HOST]
    calls.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
    outermost: list[tuple[Any, bool]] = []
    owners: dict[int, tuple[int, str]] = {}  # of each operator: the outermost one around it, and its own name
    current: dict[int, tuple[int, int]] = {}  # of each thread: the outermost operator at the moment, and its end
    backward_until: dict[int, int] = {}
    for event in calls:
        thread, end_ns = event.start_thread_id(), event.start_ns() + event.duration_ns()
        if _AUTOGRAD.match(event.name()):
            backward_until[thread] = max(end_ns, backward_until.get(thread, 0))
            continue
        if "::" not in event.name():  # a call of CUDA's own
            continue
        position, until_ns = current.get(thread, (-1, -1))
        if event.start_ns() >= until_ns:
            position = len(outermost)
            outermost.append((event, event.start_ns() < backward_until.get(thread, 0)))
            current[thread] = (position, end_ns)
        owners[event.correlation_id()] = (position, event.name())
    kernels: list[list[KernelRun]] = [[] for _ in outermost]
    work = sorted((event for event in events if event.device_type() != _ON_HOST), key=lambda event: event.start_ns())
    for event in work:
        owner = owners.get(event.linked_correlation_id())
        if owner is not None:
            kernels[owner[0]].append(
                KernelRun(
                    name=event.name(),
                    launched_by=owner[1],
                    start_us=(event.start_ns() - work[0].start_ns()) * _MICRO,
                    duration_us=event.duration_ns() * _MICRO,
                )
            )
    return tuple(
        OperatorRun(
            name=event.name(),
            input_shapes=tuple(tuple(shape) for shape in event.shapes()),
            scalars=tuple("" if value is None else str(value) for value in event.concrete_inputs()),
            is_backward=is_backward,
            kernels=tuple(runs),
        )
        for (event, is_backward), runs in zip(outermost, kernels, strict=True)
    )
