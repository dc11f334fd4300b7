"""Reading modules: batch, roles, lifetimes, errors, and that the module is left alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.errors import UnsupportedError, UsageError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.graph import Dim, DType, Graph, OpKind, TensorRole  # noqa: E402


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu_(self.norm(self.conv(x)))
        x = self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return self.head(x)


def read(module: nn.Module, given: object, **options: object) -> Graph:
    return read_module(module, input=parse_input_shapes(given), **options)


def kinds(graph: Graph) -> list[OpKind]:
    return [node.kind for node in graph.nodes if node.kind is not OpKind.VIEW]


def test_batch_stays_open() -> None:
    graph = read(Small(), "3,32,32")
    assert graph.fixed_batch is None
    assert graph.has_lifetimes
    assert graph.framework == "pytorch"
    assert graph.tensors[graph.inputs[0]].shape == (Dim(1, 0), Dim(0, 3), Dim(0, 32), Dim(0, 32))
    assert [graph.tensors[index].shape for index in graph.outputs] == [(Dim(1, 0), Dim(0, 10))]


def test_dropout_leaves_no_node() -> None:
    assert kinds(read(Small(), "3,32,32")) == [
        OpKind.CONV,
        OpKind.BATCH_NORM,
        OpKind.RELU,
        OpKind.GLOBAL_POOL,
        OpKind.LINEAR,
    ]


def test_inputs_and_attributes_follow_the_kinds_conventions() -> None:
    graph = read(Small(), "3,32,32")
    conv, norm = graph.nodes[0], graph.nodes[1]
    assert [graph.tensors[index].name for index in conv.inputs] == ["input", "conv.weight", "conv.bias"]
    assert dict(conv.attributes) == {
        "kernel": (3, 3),
        "stride": (2, 2),
        "dilation": (1, 1),
        "padding": (1, 1),
        "groups": 1,
    }
    assert [graph.tensors[index].name for index in norm.inputs[1:]] == [
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
    ]


def test_scope_is_the_modules_path() -> None:
    graph = read(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4))), "4")
    assert [node.scope for node in graph.nodes] == ["0", "1.0", "1.1"]


def test_module_is_left_as_it_was() -> None:
    module = Small().train()
    module.head.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    read(module, "3,32,32")
    assert module.training
    assert not module.head.training
    assert list(module.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(type(p) is nn.Parameter and p.device.type == "cpu" for p in module.parameters())
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None
        self.by_size: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1], dtype=torch.float32).cos()
        if x.shape[1] not in self.by_size:
            self.by_size[x.shape[1]] = torch.ones(x.shape[1]).exp()
        return x * self.table + self.by_size[x.shape[1]]


def test_caches_are_read_filled_and_left_empty() -> None:
    module = Caching()
    graph = read(module, "6")
    assert kinds(graph) == [OpKind.MUL, OpKind.ADD]
    assert module.table is None
    assert module.by_size == {}


def test_tied_and_unused_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.table.weight
            self.unused = nn.Parameter(torch.zeros(7))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens))

    module = Tied()
    graph = read(module, "12:int64")
    assert graph.parameter_count == 50 * 16 + 7 == sum(p.numel() for p in module.parameters())
    embedding, linear = graph.nodes
    assert embedding.inputs[0] == linear.inputs[1]


def test_weights_that_share_one_flat_buffer_all_count() -> None:
    module = nn.Linear(4, 6)
    flat = torch.zeros(30)
    module.weight.data = flat[:24].view(6, 4)
    module.bias.data = flat[24:]
    assert read(module, "4").parameter_count == 30


def test_roles() -> None:
    graph = read(Small(), "3,32,32")
    roles = {tensor.name: tensor.role for tensor in graph.tensors}
    assert roles["conv.weight"] is TensorRole.PARAMETER
    assert roles["norm.running_var"] is TensorRole.BUFFER
    assert roles["input"] is TensorRole.INPUT


def test_views_and_in_place_results_share_storage() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            y.transpose(0, 1).mul_(2)
            return y

    graph = read(Views(), "5")
    add, transpose, mul = graph.nodes
    assert transpose.kind is OpKind.VIEW
    assert graph.tensors[transpose.outputs[0]].alias_of == add.outputs[0]
    assert mul.kind is OpKind.MUL
    assert graph.tensors[mul.outputs[0]].alias_of == add.outputs[0]


def test_releases_follow_python() -> None:
    class Holds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = x.exp()
            second = first.sin()
            third = second.cos()
            del second
            fourth = third + 1
            return fourth + first

    graph = read(Holds(), "5")
    exp, sin, cos, plus_one, plus_first = graph.nodes
    assert exp.releases == ()
    assert sin.releases == ()
    assert cos.releases == sin.outputs
    # Neither `first` nor `third` dies before the function returns, which is after the last operator.
    assert plus_one.releases == ()
    assert sorted(plus_first.releases) == sorted((*exp.outputs, *cos.outputs, *plus_one.outputs))


def test_dropped_outputs_are_released_at_once() -> None:
    graph = read(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), "4,8")
    norm = graph.nodes[0]
    assert len(norm.outputs) == 3
    assert set(norm.outputs[1:]) <= set(norm.releases)


def test_nested_outputs_are_flattened() -> None:
    @dataclass
    class Out:
        a: torch.Tensor
        rest: dict[str, list[torch.Tensor]]

    class Nested(nn.Module):
        def forward(self, x: torch.Tensor) -> Out:
            return Out(a=x + 1, rest={"b": [x + 2, x + 3]})

    assert len(read(Nested(), "5").outputs) == 3


def test_several_inputs_by_position_and_by_name() -> None:
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


def test_input_type_follows_the_weights() -> None:
    graph = read(nn.Linear(4, 4).half(), "4")
    assert graph.tensors[graph.inputs[0]].dtype is DType.FLOAT16


def test_embedding_input_becomes_integer_unless_the_caller_said_otherwise() -> None:
    graph = read(nn.Embedding(10, 4), "7")
    assert graph.tensors[graph.inputs[0]].dtype is DType.INT64
    with pytest.raises(UsageError) as caught:
        read(nn.Embedding(10, 4), "7:float32")
    assert caught.value.code == "input.dtype_wrong"


def test_values_that_follow_from_the_program_can_be_branched_on() -> None:
    class Knows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.linspace(0, 1, 4).tolist()
            mask = torch.ones(x.shape[0], 5, dtype=torch.bool)
            mask[:, 2:] = False
            if mask.any() and not mask.all() and math.isclose(steps[-1], 1.0):
                return x[:, : int(mask[0].sum())]
            return x

    graph = read(Knows(), "5")
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 2))


def test_values_overwritten_by_the_input_are_no_longer_known() -> None:
    class Overwrites(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known = torch.zeros(5)
            view = known[:3]
            view.copy_(x[0, :3])
            return x if known.sum() > 0 else x + 1

    with pytest.raises(UnsupportedError) as caught:
        read(Overwrites(), "5")
    assert caught.value.code == "torch.data_dependent"


def test_known_values_are_not_followed_into_large_tensors() -> None:
    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            row = torch.arange(500_000, dtype=torch.float32)
            return (torch.outer(row, row) + torch.outer(row, row).repeat(2, 1)[:500_000]).sum() + x

    graph = read(Outer(), "5")  # each product would take 1 TB
    assert graph.fixed_batch is None


@pytest.mark.parametrize("use", ["if", "nonzero", "mask", "tolist", "numpy"])
def test_branching_on_input_values_is_refused_with_its_place(use: str) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            match use:
                case "if":
                    return x if x.sum() > 0 else -x
                case "nonzero":
                    return x.nonzero()
                case "mask":
                    return x[x > 0]
                case "tolist":
                    return x * x[0].tolist()[0]
                case _:
                    return x * float(x.numpy()[0, 0])

    with pytest.raises(UnsupportedError) as caught:
        read(Branches(), "5")
    assert caught.value.code == "torch.data_dependent"
    assert "test_reader.py:" in str(caught.value)


def test_membership_in_the_input_is_assumed_and_reported() -> None:
    class Warns(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            if 3 in tokens[:, [-1, 0]]:
                raise ValueError("padding")
            return tokens + 1

    graph = read(Warns(), "5:int64")
    assert len(graph.warnings) == 1
    assert "3" in graph.warnings[0]


def test_missing_shapes_name_the_arguments() -> None:
    with pytest.raises(UsageError) as caught:
        read(Small(), None)
    assert caught.value.code == "input.shape_needed"
    assert " x " in str(caught.value)
    assert "3,224,224" in str(caught.value)


@pytest.mark.parametrize("shape", ["4,32,32", "3,32", "3,2,2,2,2"])
def test_wrong_shape_carries_the_models_own_message(shape: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(Small(), shape)
    assert caught.value.code == "input.shape_wrong"
    assert "batch first" in str(caught.value)


def test_unknown_input_name() -> None:
    with pytest.raises(UsageError) as caught:
        read(Small(), {"image": (3, 32, 32)})
    assert caught.value.code == "input.name_unknown"
    assert "x" in (caught.value.cure or "")


def test_a_model_for_one_batch_size_says_why() -> None:
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


def test_steps_that_depend_on_the_batch_fix_it() -> None:
    class Loops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(x.shape[0]):
                x = x + 1
            return x

    graph = read(Loops(), "6", batch_hint=5)
    assert graph.fixed_batch == 5
    assert len(graph.nodes) == 5
    assert "grow" in graph.fixed_batch_reason


def test_sizes_that_level_off_with_the_batch_fix_it() -> None:
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


def test_standard_deviation_over_groups_of_the_batch_fixes_it() -> None:
    class MinibatchStd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, channels, height, width = x.shape
            group = min(4, batch)
            y = x.reshape(group, -1, 1, channels, height, width)
            y = (y - y.mean(0)).square().mean(0).sqrt().mean([2, 3, 4])
            return torch.cat([x, y.reshape(-1, 1, 1, 1).repeat(group, 1, height, width)], 1)

    assert read(MinibatchStd(), "8,4,4", batch_hint=32).fixed_batch == 32


def test_a_size_that_is_zero_at_small_batches_fixes_it() -> None:
    class Quarter(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: x.shape[0] // 4] + 1

    graph = read(Quarter(), "8", batch_hint=32)
    assert graph.fixed_batch == 32
    assert graph.tensors[graph.outputs[0]].shape == (Dim(0, 8), Dim(0, 8))


def test_a_large_batch_hint_is_proved_itself() -> None:
    class FirstHundred(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:100] + 1

    assert read(FirstHundred(), "8", batch_hint=256).fixed_batch == 256


def test_a_module_for_even_batches_alone_stays_open() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % 2:
                raise ValueError("takes pairs")
            return x + 1

    assert read(Pairs(), "6").fixed_batch is None


def test_what_cannot_be_read_at_a_large_batch_fixes_it() -> None:
    class AsksLate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] < 10 or x.sum() > 0 else x

    graph = read(AsksLate(), "6", batch_hint=4)
    assert graph.fixed_batch == 4
    assert "values of its input" in graph.fixed_batch_reason


def test_wrappers_are_unwrapped() -> None:
    assert kinds(read(nn.DataParallel(nn.Linear(4, 4)), "4")) == [OpKind.LINEAR]

    class Compiled(nn.Module):  # what torch.compile returns, without importing the compiler
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    assert kinds(read(Compiled(), "4")) == [OpKind.LINEAR]


def test_recurrent_layers_stay_whole() -> None:
    graph = read(nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True), "30,8")
    lstm = next(node for node in graph.nodes if node.kind is OpKind.LSTM)
    assert dict(lstm.attributes) == {
        "hidden_size": 16,
        "num_layers": 2,
        "num_directions": 2,
        "batch_first": True,
    }
    assert graph.tensors[lstm.outputs[0]].shape == (Dim(1, 0), Dim(0, 30), Dim(0, 32))


def test_fused_attention_stays_whole_and_frees_the_merge_of_heads() -> None:
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.view(x.shape[0], -1, 2, 8).transpose(1, 2)
            y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return y.transpose(1, 2).reshape(x.shape)

    graph = read(Attends(), "10,16")
    assert kinds(graph) == [OpKind.ATTENTION]
    assert any(node.attributes.get("is_causal") is True for node in graph.nodes)


def test_product_with_a_weight_is_linear_however_it_is_written() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.addmm(self.bias, x, self.weight) @ self.weight.t()

    assert kinds(read(Conv1D(), "4")) == [OpKind.LINEAR, OpKind.LINEAR]
    assert kinds(read(_Product(), ["3,4", "4,3"])) == [OpKind.MATMUL]


class _Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def test_operators_without_a_rule_keep_their_shapes_and_are_reported() -> None:
    class Exotic(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    graph = read(Exotic(), "5")
    assert kinds(graph) == [OpKind.UNKNOWN]
    assert dict(graph.unsupported_ops) == {"aten.special_bessel_j0": 1}
    assert "special_bessel_j0" in graph.warnings[0]
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 5))


def test_process_switches_are_restored() -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(UsageError):
        read(Small(), "4,32,32")
    read(nn.TransformerEncoderLayer(16, 2, batch_first=True), "5,16")
    assert torch.backends.mha.get_fastpath_enabled() is before
    assert not torch.is_inference_mode_enabled()
    assert torch.zeros(1).device.type == "cpu"


def test_a_seven_billion_parameter_model_takes_no_memory() -> None:
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(16384, 16384, bias=False) for _ in range(27)))
    graph = read(module, "16384")
    assert graph.parameter_count == 27 * 16384**2
    assert len(graph.nodes) == 27
