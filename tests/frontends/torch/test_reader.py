"""Reading modules: batch, roles, lifetimes, errors, and that the module is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.errors import UsageError  # noqa: E402
from dippm.graph import Dim, DType, Graph, OpKind  # noqa: E402


def test_batch_stays_open(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    graph = read(small(), "3,32,32")
    assert graph.fixed_batch is None
    assert graph.has_lifetimes
    assert graph.framework == "pytorch"
    assert graph.tensors[graph.inputs[0]].shape == (Dim(1, 0), Dim(0, 3), Dim(0, 32), Dim(0, 32))
    assert [graph.tensors[index].shape for index in graph.outputs] == [(Dim(1, 0), Dim(0, 10))]


def test_nested_outputs_are_flattened(read: Callable[..., Graph]) -> None:
    @dataclass
    class Out:
        a: torch.Tensor
        rest: dict[str, list[torch.Tensor]]

    class Nested(nn.Module):
        def forward(self, x: torch.Tensor) -> Out:
            return Out(a=x + 1, rest={"b": [x + 2, x + 3]})

    assert len(read(Nested(), "5").outputs) == 3


def test_several_inputs_by_position_and_by_name(read: Callable[..., Graph]) -> None:
    class Two(nn.Module):
        def forward(self, image: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
            return image * scale

    graph = read(Two(), {"image": (3, 4), "scale": (3, 1)})
    assert [graph.tensors[index].name for index in graph.inputs] == ["image", "scale"]

    class Pair(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

    graph = read(Pair(), ["3,4", "4,5"])
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 3), Dim(0, 5))


def test_input_type_follows_the_weights(read: Callable[..., Graph]) -> None:
    graph = read(nn.Linear(4, 4).half(), "4")
    assert graph.tensors[graph.inputs[0]].dtype is DType.FLOAT16


def test_embedding_input_becomes_integer_unless_the_caller_said_otherwise(read: Callable[..., Graph]) -> None:
    graph = read(nn.Embedding(10, 4), "7")
    assert graph.tensors[graph.inputs[0]].dtype is DType.INT64
    with pytest.raises(UsageError) as caught:
        read(nn.Embedding(10, 4), "7:float32")
    assert caught.value.code == "input.dtype_wrong"


def test_missing_shapes_name_the_arguments(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    with pytest.raises(UsageError) as caught:
        read(small(), None)
    assert caught.value.code == "input.shape_needed"
    assert " x " in str(caught.value)
    assert "3,224,224" in str(caught.value)


@pytest.mark.parametrize("shape", ["4,32,32", "3,32", "3,2,2,2,2"])
def test_wrong_shape_carries_the_models_own_message(
    shape: str, small: type[nn.Module], read: Callable[..., Graph]
) -> None:
    with pytest.raises(UsageError) as caught:
        read(small(), shape)
    assert caught.value.code == "input.shape_wrong"
    assert "batch first" in str(caught.value)


def test_unknown_input_name(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    with pytest.raises(UsageError) as caught:
        read(small(), {"image": (3, 32, 32)})
    assert caught.value.code == "input.name_unknown"
    assert "x" in (caught.value.cure or "")


def test_an_unknown_name_that_a_module_passes_on(read: Callable[..., Graph]) -> None:
    class Passing(nn.Module):
        def forward(
            self, input_ids: torch.Tensor | None = None, mask: torch.Tensor | None = None, **others: torch.Tensor
        ) -> torch.Tensor:
            if input_ids is None:
                raise ValueError("You must specify input_ids")
            return input_ids * others.get("scale", 2)

    with pytest.raises(
        UsageError, match=r"Passing\.forward has no input 'ids'\. .*input_ids, mask\. .*specify"
    ) as caught:
        read(Passing(), {"ids": (128,)})
    assert caught.value.code == "input.name_unknown"
    assert caught.value.cure == "The nearest is 'input_ids'."
    # What only forward itself knows to take is left to it.
    assert len(read(Passing(), {"input_ids": (128,), "scale": (128,)}).inputs) == 2
    with pytest.raises(UsageError) as caught:
        read(Passing(), {"input_ids": (128,), "mask": (1,), "scale": (7,)})
    assert "shapes (2, 128) and (2, 7) do not go together" in str(caught.value)
    assert caught.value.code != "input.name_unknown"


def test_a_model_for_one_batch_size_says_why(read: Callable[..., Graph]) -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(1, -1) + 1

    class OnlyFour(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % 4:
                raise ValueError("takes multiples of four")
            return x.view(x.shape[0] // 4, -1) + 1

    graph = read(Fixed(), "6")
    assert graph.fixed_batch is None
    assert graph.tensors[graph.outputs[0]].shape == (Dim(0, 1), Dim(6, 0))
    graph = read(OnlyFour(), "6", batch_hint=8)
    assert graph.fixed_batch == 8
    assert "multiples of four" in graph.fixed_batch_reason


def test_steps_that_depend_on_the_batch_fix_it(read: Callable[..., Graph]) -> None:
    class Loops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(x.shape[0]):
                x = x + 1
            return x

    graph = read(Loops(), "6", batch_hint=5)
    assert graph.fixed_batch == 5
    assert len(graph.nodes) == 5
    assert "grow" in graph.fixed_batch_reason


def test_sizes_that_level_off_with_the_batch_fix_it(read: Callable[..., Graph]) -> None:
    class FirstFour(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x[: min(x.shape[0], 4)])

    graph = read(FirstFour(), "32", batch_hint=32)
    assert graph.fixed_batch == 32
    assert "batch 64" in graph.fixed_batch_reason
    assert Workload.from_graph(graph).macs.sum() == 4 * 32 * 64
    assert read(FirstFour(), "32").fixed_batch == 1


def test_standard_deviation_over_groups_of_the_batch_fixes_it(read: Callable[..., Graph]) -> None:
    class MinibatchStd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, channels, height, width = x.shape
            group = min(4, batch)
            y = x.reshape(group, -1, 1, channels, height, width)
            y = (y - y.mean(0)).square().mean(0).sqrt().mean([2, 3, 4])
            return torch.cat([x, y.reshape(-1, 1, 1, 1).repeat(group, 1, height, width)], 1)

    assert read(MinibatchStd(), "8,4,4", batch_hint=32).fixed_batch == 32


def test_a_size_that_is_zero_at_small_batches_fixes_it(read: Callable[..., Graph]) -> None:
    class Quarter(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: x.shape[0] // 4] + 1

    graph = read(Quarter(), "8", batch_hint=32)
    assert graph.fixed_batch == 32
    assert graph.tensors[graph.outputs[0]].shape == (Dim(0, 8), Dim(0, 8))


def test_a_large_batch_hint_is_proved_itself(read: Callable[..., Graph]) -> None:
    class FirstHundred(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:100] + 1

    assert read(FirstHundred(), "8", batch_hint=256).fixed_batch == 256


def test_a_module_for_even_batches_alone_stays_open(read: Callable[..., Graph]) -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % 2:
                raise ValueError("takes pairs")
            return x + 1

    assert read(Pairs(), "6").fixed_batch is None


def test_what_cannot_be_read_at_a_large_batch_fixes_it(read: Callable[..., Graph]) -> None:
    class AsksLate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] < 10 or x.sum() > 0 else x

    graph = read(AsksLate(), "6", batch_hint=4)
    assert graph.fixed_batch == 4
    assert "values of its input" in graph.fixed_batch_reason


def test_wrappers_are_unwrapped(read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]) -> None:
    parallel = read(nn.DataParallel(nn.Linear(4, 4)), "4")
    assert kinds(parallel) == [OpKind.LINEAR]
    assert [warning.partition(":")[0] for warning in parallel.warnings] == ["DataParallel is left out"]

    class Compiled(nn.Module):  # what torch.compile returns, without importing the compiler
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    compiled = read(Compiled(), "4")
    assert kinds(compiled) == [OpKind.LINEAR]
    assert [warning.partition(",")[0] for warning in compiled.warnings] == ["The module is compiled"]
    assert not read(nn.Linear(4, 4), "4").warnings


def test_process_switches_are_restored(small: type[nn.Module], read: Callable[..., Graph]) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(UsageError):
        read(small(), "4,32,32")
    read(nn.TransformerEncoderLayer(16, 2, batch_first=True), "5,16")
    assert torch.backends.mha.get_fastpath_enabled() is before
    assert not torch.is_inference_mode_enabled()
    assert torch.zeros(1).device.type == "cpu"


def test_a_seven_billion_parameter_model_takes_no_memory(read: Callable[..., Graph]) -> None:
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(27)))
    graph = read(module, "16384")
    assert graph.parameter_count == 27 * 16384**2
    assert len(graph.nodes) == 27


def test_a_lazy_module_must_have_been_called(read: Callable[..., Graph]) -> None:
    module = nn.Sequential(nn.LazyLinear(10), nn.LazyBatchNorm1d())
    with pytest.raises(UsageError, match=r"0\.weight, 0\.bias") as caught:
        read(module, "20")
    assert caught.value.code == "torch.lazy"
    assert caught.value.cure is not None
    assert "torch.zeros" in caught.value.cure
    module(torch.zeros(2, 20))
    assert not read(module, "20").unsupported_ops
