"""Kernels given to operators: on made-up events as a GPU would leave them, and on real calls on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.measuring.kernel_trace import _read_operators, trace_operators  # noqa: E402
from dippm.measuring.operator_run import KernelRun, OperatorRun  # noqa: E402

CPU, CUDA = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA


@dataclass
class Event:
    """What the profiler's events answer."""

    called: str
    begin: int
    length: int
    number: int = 0
    linked: int = 0
    thread: int = 1
    device: Any = CPU
    sizes: list[list[int]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    is_annotation: bool = False

    def name(self) -> str:
        return self.called

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.length

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.linked

    def start_thread_id(self) -> int:
        return self.thread

    def device_type(self) -> Any:
        return self.device

    def shapes(self) -> list[list[int]]:
        return self.sizes

    def concrete_inputs(self) -> list[Any]:
        return self.values

    def is_user_annotation(self) -> bool:
        return self.is_annotation


def kernel(called: str, begin: int, length: int, *, linked: int, **others: Any) -> Event:
    return Event(called, begin, length, number=linked, linked=linked, device=CUDA, **others)


def names(runs: tuple[OperatorRun, ...]) -> list[str]:
    return [run.name for run in runs]


def test_kernels_come_to_the_outermost_operator_and_keep_the_inner_ones_name() -> None:
    runs = _read_operators(
        [
            # Not in order: inner before outer, the last kernel before the first.
            Event("aten::copy_", 112, 5, number=3),
            Event("aten::to", 110, 10, number=2),
            Event("aten::conv2d", 100, 50, number=1, sizes=[[2, 3, 8, 8], [4, 3, 3, 3], []], values=[None, None, 1]),
            Event("aten::cudnn_convolution", 130, 15, number=4),
            Event("aten::relu", 150, 10, number=5, sizes=[[2, 4, 6, 6]], values=[None]),
            kernel("relu_kernel", 9_000, 500, linked=5),
            kernel("conv_kernel", 6_500, 2_250, linked=4),
            kernel("cast_kernel", 5_000, 1_000, linked=3),
        ]
    )
    assert runs == (
        OperatorRun(
            name="aten::conv2d",
            input_shapes=((2, 3, 8, 8), (4, 3, 3, 3), ()),
            scalars=("", "", "1"),
            is_backward=False,
            kernels=(
                KernelRun(name="cast_kernel", launched_by="aten::copy_", start_us=0.0, duration_us=1.0),
                KernelRun(name="conv_kernel", launched_by="aten::cudnn_convolution", start_us=1.5, duration_us=2.25),
            ),
        ),
        OperatorRun(
            name="aten::relu",
            input_shapes=((2, 4, 6, 6),),
            scalars=("",),
            is_backward=False,
            kernels=(KernelRun(name="relu_kernel", launched_by="aten::relu", start_us=4.0, duration_us=0.5),),
        ),
    )
    assert [run.duration_us for run in runs] == [3.25, 0.5]


def test_threads_have_operators_of_their_own() -> None:
    runs = _read_operators(
        [
            Event("aten::conv2d", 100, 100, number=1, thread=1),
            Event("aten::mm", 110, 200, number=2, thread=2),  # in the middle of the first one's time
            Event("aten::copy_", 120, 10, number=3, thread=1),
            Event("aten::fill_", 130, 10, number=4, thread=2),
            Event("aten::relu", 220, 10, number=5, thread=1),  # before the second one's end
            kernel("copy", 1_000, 1, linked=3),
            kernel("fill", 1_001, 1, linked=4),
            kernel("relu", 1_002, 1, linked=5),
        ]
    )
    assert names(runs) == ["aten::conv2d", "aten::mm", "aten::relu"]
    assert [[(each.name, each.launched_by) for each in run.kernels] for run in runs] == [
        [("copy", "aten::copy_")],
        [("fill", "aten::fill_")],
        [("relu", "aten::relu")],
    ]


def test_operators_that_begin_with_their_outer_one_or_at_its_end() -> None:
    runs = _read_operators(
        [
            Event("aten::empty", 100, 10, number=2),
            Event("aten::zeros", 100, 20, number=1),
            Event("aten::add", 120, 5, number=3),
        ]
    )
    assert names(runs) == ["aten::zeros", "aten::add"]


def test_autograds_nodes_are_seen_through() -> None:
    numbers = count(1)

    def wrapped(node: str, begin: int) -> Iterator[Event]:
        yield Event(f"autograd::engine::evaluate_function: {node}", begin, 50, number=next(numbers), thread=2)
        yield Event(node, begin + 5, 40, number=next(numbers), thread=2)

    runs = _read_operators(
        [
            Event("aten::conv2d", 10, 20, number=90),
            *wrapped("ConvolutionBackward0", 100),
            Event("aten::convolution_backward", 110, 20, number=91, thread=2),
            Event("aten::sum", 115, 5, number=92, thread=2),
            *wrapped("torch::autograd::AccumulateGrad", 200),
            Event("aten::add_", 210, 5, number=93, thread=2),
            # Beside the way back: on another thread, and on its own one behind it.
            Event("aten::relu", 120, 5, number=94, thread=1),
            Event("aten::_foreach_add_", 260, 5, number=95, thread=2),
            kernel("dgrad", 1_000, 10, linked=91),
            kernel("bias", 1_010, 10, linked=92),
        ]
    )
    assert [(run.name, run.is_backward) for run in runs] == [
        ("aten::conv2d", False),
        ("aten::convolution_backward", True),
        ("aten::relu", False),
        ("aten::add_", True),
        ("aten::_foreach_add_", False),
    ]
    assert [each.launched_by for each in runs[1].kernels] == ["aten::convolution_backward", "aten::sum"]


def test_an_operator_whose_name_speaks_of_a_way_back_is_no_node() -> None:
    assert names(_read_operators([Event("aten::threshold_backward", 0, 5, number=1)])) == ["aten::threshold_backward"]


def test_calls_of_cuda_and_annotations_are_passed_over() -> None:
    runs = _read_operators(
        [
            Event("my::step", 0, 1_000, number=50, is_annotation=True),
            Event("cudaLaunchKernel", 90, 30, number=7, linked=7),  # around the operator, and no part of it
            Event("aten::relu", 100, 20, number=7),
            kernel("relu", 5_000, 100, linked=7),
            kernel("my::step", 4_000, 2_000, linked=50, is_annotation=True),
        ]
    )
    assert names(runs) == ["aten::relu"]
    assert runs[0].kernels == (KernelRun(name="relu", launched_by="aten::relu", start_us=0.0, duration_us=0.1),)


def test_kernels_of_nobody_are_dropped_and_the_clock_begins_with_them() -> None:
    runs = _read_operators(
        [
            Event("aten::relu", 100, 20, number=1),
            Event("cudaMemsetAsync", 90, 5, number=2, linked=2),
            kernel("Memset (Device)", 5_000, 10, linked=2),
            kernel("lost", 5_500, 10, linked=0),
            kernel("relu", 6_000, 10, linked=1),
        ]
    )
    assert [[(each.name, each.start_us) for each in run.kernels] for run in runs] == [[("relu", 1.0)]]


def test_nothing_was_called() -> None:
    assert _read_operators([]) == ()


@pytest.fixture(name="network")
def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, bias=False), nn.ReLU())


def test_a_real_call_under_autocast(network: nn.Module) -> None:
    waits: list[str] = []
    sample = torch.randn(2, 3, 9, 9)

    def call() -> object:
        waits.append("call")
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            return network(sample)

    call()
    runs = trace_operators(call, lambda: waits.append("wait"))
    assert waits == ["call", "wait", "call", "wait"]
    # Autocast's casts of image and weights are inside the convolution.
    assert names(runs) == ["aten::conv2d", "aten::relu"]
    assert runs[0].input_shapes[:2] == ((2, 3, 9, 9), (4, 3, 3, 3))
    assert runs[0].scalars[3:] == ("[2, 2]", "[0, 0]", "[1, 1]", "1")
    assert runs[1].input_shapes == ((2, 4, 4, 4),)
    assert [(run.is_backward, tuple(run.kernels)) for run in runs] == [(False, ())] * 2


def test_a_real_training_step(network: nn.Module) -> None:
    sample = torch.randn(2, 3, 9, 9)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)

    def step() -> None:
        network(sample).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    found = [(run.name, run.is_backward) for run in trace_operators(step, lambda: None)]
    assert [pair for pair in found if pair[0] in ("aten::conv2d", "aten::relu", "aten::sum")] == [
        ("aten::conv2d", False),
        ("aten::relu", False),
        ("aten::sum", False),
    ]
    back = [name for name, is_backward in found if is_backward]
    assert "aten::threshold_backward" in back
    assert back.index("aten::threshold_backward") < back.index("aten::convolution_backward")
    assert not any("autograd::" in name or name.endswith("Backward0") for name, _ in found)
    last = max(place for place, (_, is_backward) in enumerate(found) if is_backward)
    assert len(found) > last + 1  # the optimizer's own, which are no part of the way back
