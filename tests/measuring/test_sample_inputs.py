"""Random inputs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import UsageError  # noqa: E402
from dippm.frontends.inputs import InputEntry, InputShapes, parse_input_shapes  # noqa: E402
from dippm.graph import DType  # noqa: E402
from dippm.measuring.sample_inputs import make_inputs  # noqa: E402


class Reader(nn.Module):
    """Looks tokens up in tables of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 4)
        self.positions = nn.Embedding(50, 4)
        self.types = nn.Embedding(2, 4)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> None:
        return None


def test_integers_are_valid_in_every_table() -> None:
    inputs = make_inputs(
        Reader(),
        parse_input_shapes(["64:int64", "64:int32", "64:int64"]),
        batch=16,
        device="cpu",
    )
    ids, types, mask = inputs.args
    assert ids.shape == (16, 64)
    assert (ids.dtype, types.dtype) == (torch.int64, torch.int32)
    assert 40 <= int(ids.max()) < 50
    assert int(types.max()) == 1
    assert bool((mask == 1).all())


def test_floats_have_the_models_type() -> None:
    module = nn.Conv2d(3, 4, 3).to(torch.bfloat16)
    (image,) = make_inputs(module, parse_input_shapes("3,8,8"), batch=2, device="cpu").args
    assert image.dtype == torch.bfloat16
    assert 0.5 < float(image.float().std()) < 1.5


def test_by_name_and_converted() -> None:
    shapes = parse_input_shapes({"image": (3, 8, 8), "ids": ((4,), "int64"), "mask": ((4,), "bool")})
    inputs = make_inputs(nn.Conv2d(3, 4, 3), shapes, batch=2, device="cpu")
    changed = inputs.to_dtype(torch.float16).to_channels_last()
    assert inputs.args == ()
    assert changed.kwargs["image"].dtype == torch.float16
    assert changed.kwargs["image"].is_contiguous(memory_format=torch.channels_last)
    assert changed.kwargs["ids"].dtype == torch.int64
    assert bool(changed.kwargs["mask"].all())


def test_a_type_that_pytorch_lacks() -> None:
    with pytest.raises(UsageError) as caught:
        make_inputs(nn.Linear(2, 2), parse_input_shapes("2:int4"), batch=1, device="cpu")
    assert caught.value.code == "input.dtype_unknown"


def test_values_that_are_given_are_those_of_every_sample() -> None:
    entry = InputEntry(shape=(3,), dtype=DType.INT64, values=(1, 20, 30))
    patches = InputEntry(shape=(8,), rows=6)
    inputs = make_inputs(nn.Linear(8, 8), InputShapes(named={"grid": entry, "patches": patches}), batch=2, device="cpu")
    assert inputs.kwargs["grid"].tolist() == [[1, 20, 30]] * 2
    assert inputs.kwargs["patches"].shape == (12, 8)


def test_tensors_inside_an_argument_are_named_by_their_path() -> None:
    class Conditioned(nn.Module):
        def forward(self, sample: torch.Tensor, beside: dict[str, torch.Tensor]) -> torch.Tensor:
            return sample + beside["text"] + beside["size"]

    shapes = parse_input_shapes({"beside.text": (3,), "sample": (3,), "beside.size": (3,)})
    inputs = make_inputs(Conditioned(), shapes, batch=2, device="cpu").to_dtype(torch.float64)
    args, kwargs = inputs.arguments
    assert Conditioned()(*args, **kwargs).dtype == torch.float64
    assert kwargs["beside"]["size"] is inputs.kwargs["beside.size"]


def test_the_name_that_an_answer_prints_is_understood() -> None:
    inputs = make_inputs(nn.Flatten(), parse_input_shapes({"input": (3, 4)}), batch=2, device="cpu")
    assert [tensor.shape for tensor in inputs.kwargs.values()] == [(2, 3, 4)]

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    inputs = make_inputs(Own(), parse_input_shapes({"input": (3, 4)}), batch=2, device="cpu")
    assert ([tensor.shape for tensor in inputs.args], dict(inputs.kwargs)) == ([(2, 3, 4)], {})
