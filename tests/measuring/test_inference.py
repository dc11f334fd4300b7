"""Inference as one call."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.costs.conditions import Conditions  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.measuring import inference  # noqa: E402
from dippm.measuring.configuration import Configuration  # noqa: E402
from dippm.measuring.inference import inference_call  # noqa: E402
from dippm.measuring.sample_inputs import make_inputs  # noqa: E402


class Spy(nn.Module):
    """Notes under which conditions it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.seen: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.convolution(x)
        self.seen = {
            "inference": torch.is_inference_mode_enabled(),
            "channels_last": x.is_contiguous(memory_format=torch.channels_last),
            "weights": self.convolution.weight.dtype,
            "output": output.dtype,
        }
        return output


@pytest.mark.parametrize(
    ("conditions", "channels_last", "weights", "output"),
    [
        ({}, False, torch.float32, torch.float32),
        ({"layout": "nhwc"}, True, torch.float32, torch.float32),
        ({"precision": "amp-bf16"}, False, torch.float32, torch.bfloat16),
        ({"precision": "bf16"}, False, torch.bfloat16, torch.bfloat16),
    ],
)
def test_conditions(conditions: dict[str, str], channels_last: bool, weights: torch.dtype, output: torch.dtype) -> None:
    module = Spy().eval()
    inputs = make_inputs(module, parse_input_shapes("3,8,8"), batch=2, device="cpu")
    configuration = Configuration(batch=2, conditions=Conditions.parse(**conditions))
    with inference_call(module, inputs, configuration, device="cpu") as call:
        result = call()
    assert isinstance(result, torch.Tensor)
    assert result.shape == (2, 8, 6, 6)
    assert module.seen == {"inference": True, "channels_last": channels_last, "weights": weights, "output": output}


@pytest.mark.parametrize(
    ("conditions", "moves"),
    [
        ({}, []),
        ({"precision": "amp"}, []),
        ({"precision": "fp16"}, ["cpu", "torch.float16", "given back", "meta"]),
        ({"precision": "bf16", "layout": "nhwc"}, ["cpu", "torch.bfloat16", "turned", "given back", "meta"]),
    ],
)
def test_weights_are_converted_on_the_host(
    monkeypatch: pytest.MonkeyPatch, conditions: dict[str, str], moves: list[str]
) -> None:
    log = []

    class Moved(Spy):
        def to(self, *args: Any, **options: Any) -> Moved:
            log.append("turned" if options else str(args[0]))
            return self

    module = Moved().to_empty(device="meta")
    log.clear()
    inputs = make_inputs(Spy(), parse_input_shapes("3,8,8"), batch=2, device="cpu")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("given back"))
    configuration = Configuration(batch=2, conditions=Conditions.parse(**conditions))
    inference.converted(module, inputs, configuration)
    assert log == moves


def test_a_model_that_is_stored_in_the_format_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.BatchNorm1d(8))
    inputs = make_inputs(module, parse_input_shapes("8"), batch=2, device="cpu")
    configuration = Configuration(batch=2, conditions=Conditions.parse(precision="bf16"))
    assert inference.converted(module, inputs, configuration) == (module, inputs)
    assert module[1].weight.dtype is torch.float32
    other = Configuration(batch=2, conditions=Conditions.parse(precision="fp16"))
    inference.converted(module, inputs, other)
    assert {tensor.dtype for tensor in module.parameters()} == {torch.float16}


def test_cuda_graphs_need_cuda() -> None:
    module = Spy().eval()
    inputs = make_inputs(module, parse_input_shapes("3,8,8"), batch=2, device="cpu")
    configuration = Configuration(batch=2, conditions=Conditions.parse(runtime="cuda-graph"))
    with pytest.raises(UnsupportedError) as caught, inference_call(module, inputs, configuration, device="cpu"):
        pytest.fail("it must not get here")
    assert caught.value.code == "runtime.unsupported"


class FakeStream:
    def wait_stream(self, other: FakeStream) -> None:
        pass


class FakeGraph:
    def replay(self) -> None:
        pass

    def reset(self) -> None:
        pass


def test_all_captures_share_one_side_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make_stream(device: str) -> FakeStream:
        made.append(device)
        return FakeStream()

    replacements = {
        "Stream": make_stream,
        "current_stream": FakeStream,
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": FakeGraph,
        "graph": lambda graph: nullcontext(),
    }
    for name, replacement in replacements.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    inference._side_stream.cache_clear()
    module = Spy().eval()
    inputs = make_inputs(module, parse_input_shapes("3,8,8"), batch=2, device="cpu")
    configuration = Configuration(batch=2, conditions=Conditions.parse(runtime="cuda-graph"))
    try:
        for _ in range(3):
            with inference_call(module, inputs, configuration, device="cuda:0") as call:
                assert call() is call()
    finally:
        inference._side_stream.cache_clear()
    assert made == ["cuda:0"]
