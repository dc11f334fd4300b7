"""What is written down while a module runs: operators, known values, and what cannot be known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.costs.autocast import KEPT, LOWERED, RAISED  # noqa: E402
from dippm.costs.conditions import Mode  # noqa: E402
from dippm.costs.precision import Arithmetic, Precision  # noqa: E402
from dippm.costs.software_graph import count_raised_products  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file, recorder  # noqa: E402
from dippm.frontends.torch.recorder import Recorder  # noqa: E402
from dippm.graph import Dim, Graph, OpKind  # noqa: E402

torch = pytest.importorskip("torch")


def test_dropout_leaves_no_node(
    small: type[nn.Module], read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    assert kinds(read(small(), "3,32,32")) == [
        OpKind.CONV,
        OpKind.BATCH_NORM,
        OpKind.RELU,
        OpKind.GLOBAL_POOL,
        OpKind.LINEAR,
    ]


def test_values_that_follow_from_the_program_can_be_branched_on(read: Callable[..., Graph]) -> None:
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


def test_values_overwritten_by_the_input_are_no_longer_known(read: Callable[..., Graph]) -> None:
    class Overwrites(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known = torch.zeros(5)
            view = known[:3]
            view.copy_(x[0, :3])
            return x if known.sum() > 0 else x + 1

    with pytest.raises(UnsupportedError) as caught:
        read(Overwrites(), "5")
    assert caught.value.code == "torch.data_dependent"


def test_known_values_are_not_followed_into_large_tensors(read: Callable[..., Graph]) -> None:
    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            row = torch.arange(500_000, dtype=torch.float32)
            return (torch.outer(row, row) + torch.outer(row, row).repeat(2, 1)[:500_000]).sum() + x

    graph = read(Outer(), "5")  # each product would take 1 TB
    assert graph.fixed_batch is None


def test_a_known_mask_picks_of_unknown_values_also_where_it_is_expanded(read: Callable[..., Graph]) -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = (torch.arange(6) % 2 == 0).expand(x.shape[0], 6)
            wide = mask.unsqueeze(-1).expand(*mask.shape, 2**18)
            return x[wide[..., 0], :] * 2

    graph = read(Picks(), "6,5")
    assert graph.tensors[graph.outputs[0]].shape == (Dim(per_sample=3, fixed=0), Dim(per_sample=0, fixed=5))
    assert not graph.unsupported_ops


@pytest.mark.parametrize("use", ["if", "nonzero", "mask", "tolist", "numpy"])
def test_branching_on_input_values_is_refused_with_its_place(use: str, read: Callable[..., Graph]) -> None:
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
    assert "test_recorder.py:" in str(caught.value)


def test_recurrent_layers_stay_whole(read: Callable[..., Graph]) -> None:
    graph = read(nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True), "30,8")
    lstm = next(node for node in graph.nodes if node.kind is OpKind.LSTM)
    assert dict(lstm.attributes) == {
        "hidden_size": 16,
        "num_layers": 2,
        "num_directions": 2,
        "batch_first": True,
    }
    assert graph.tensors[lstm.outputs[0]].shape == (Dim(1, 0), Dim(0, 30), Dim(0, 32))


def test_fused_attention_stays_whole_and_frees_the_merge_of_heads(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.view(x.shape[0], -1, 2, 8).transpose(1, 2)
            y = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            return y.transpose(1, 2).reshape(x.shape)

    graph = read(Attends(), "10,16")
    assert kinds(graph) == [OpKind.ATTENTION]
    assert any(node.attributes.get("is_causal") is True for node in graph.nodes)


class _Attends(nn.Module):
    """Its input attends to itself, asked by learned queries where there are some."""

    def __init__(self, *queries: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(queries)) if queries else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x if self.queries is None else self.queries, x, x)


@pytest.mark.parametrize(
    ("module", "given", "shape", "macs"),
    [
        # Two products of 10 x 10 x 16 for each of 3 x 8 windows and heads.
        (_Attends(), "3,8,10,16", (3, 8, 10, 16), 2 * 3 * 8 * 10 * 10 * 16),
        (_Attends(), "10,16", (10, 16), 2 * 10 * 10 * 16),
        # 16 queries, the same for every sample, of 4 heads that are 32 wide.
        (_Attends(1, 4, 16, 32), "4,10,32", (4, 16, 32), 2 * 4 * 16 * 10 * 32),
    ],
)
def test_attention_that_no_kernel_takes_is_written_out_for_every_sample(
    module: nn.Module,
    given: str,
    shape: tuple[int, ...],
    macs: int,
    read: Callable[..., Graph],
    kinds: Callable[[Graph], list[OpKind]],
) -> None:
    graph = read(module, given)
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), *(Dim(0, size) for size in shape))
    assert Workload.from_graph(graph).at([1, 8]).macs.sum(axis=1).tolist() == [macs, 8 * macs]
    found = kinds(graph)
    assert [found.count(kind) for kind in (OpKind.ATTENTION, OpKind.MATMUL, OpKind.SOFTMAX)] == [0, 2, 1]
    # Rows without a key: PyTorch looks for them and puts zeros there, in the memory of the weights.
    functions = [node.attributes.get("function") for node in graph.nodes]
    assert [functions.count(name) for name in ("isneginf", "all", "where")] == [1, 1, 1]
    (weights,) = (node.outputs[0] for node in graph.nodes if node.kind is OpKind.SOFTMAX)
    zeroed = graph.nodes[functions.index("where")].outputs[0]
    assert graph.tensors[zeroed].alias_of == weights
    assert all(node.attributes.get(RAISED) is True for node in graph.nodes if node.kind is OpKind.MATMUL)
    trained = read(module, given, mode=Mode.TRAINING)
    assert not {"isneginf", "where"} & {node.attributes.get("function") for node in trained.nodes}
    assert not graph.unsupported_ops


class _WritesTo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        torch.add(x, x, out=y)
        torch.where(x > 0, x, y, out=y)
        return y * 2


def test_what_is_given_to_write_to_is_written_in_place(read: Callable[..., Graph]) -> None:
    graph = read(_WritesTo(), "8")
    empty, add, _, where, mul = graph.nodes
    # What is written alone is not read.
    assert add.inputs == (graph.inputs[0],) * 2
    assert len(where.inputs) == 3
    assert where.inputs[2:] == add.outputs
    assert mul.inputs == where.outputs
    assert [graph.tensors[node.outputs[0]].alias_of for node in (add, where)] == [empty.outputs[0]] * 2


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda x: x.transpose_(1, 2), (10, 4, 32)),
        (lambda x: x.swapaxes_(1, 3), (32, 10, 4)),
        (lambda x: x.unsqueeze_(1), (1, 4, 10, 32)),
        (lambda x: x.unsqueeze_(1).squeeze_(1), (4, 10, 32)),
        (lambda x: x.as_strided_((x.shape[0], 320, 4), (1280, 1, 320)), (320, 4)),
    ],
)
def test_a_view_in_place_moves_nothing(
    change: Callable[[torch.Tensor], torch.Tensor],
    shape: tuple[int, ...],
    read: Callable[..., Graph],
    kinds: Callable[[Graph], list[OpKind]],
) -> None:
    class Changes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            change(y)
            return y.relu()

    graph = read(Changes(), "4,10,32")
    assert kinds(graph) == [OpKind.ADD, OpKind.RELU]
    assert not graph.unsupported_ops
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), *(Dim(0, size) for size in shape))
    changed = graph.tensors[graph.nodes[-1].inputs[0]]
    assert changed.alias_of == graph.nodes[0].outputs[0]


def test_a_view_in_place_keeps_the_values_that_are_known(read: Callable[..., Graph]) -> None:
    class Known(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = torch.arange(6).view(2, 3)
            same = table.detach()
            table.t_()
            assert table.shape == (3, 2)
            assert same.tolist() == [[0, 1, 2], [3, 4, 5]]
            return x * table.tolist()[2][1]

    assert not read(Known(), "5").unsupported_ops


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_sum_of_products_grows_with_the_batch(is_in_place: bool, read: Callable[..., Graph]) -> None:
    class Correlates(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(16, 16)
            add = total.addbmm_ if is_in_place else total.addbmm
            return add(x, x.transpose(1, 2))

    graph = read(Correlates(), "16,16")
    assert Workload.from_graph(graph).at([1, 8]).macs.sum(axis=1).tolist() == [16**3, 8 * 16**3]
    assert graph.tensors[graph.outputs[0]].shape == (Dim(0, 16), Dim(0, 16))


@pytest.mark.parametrize("mode", list(Mode))
def test_bilinear_layers_have_two_products_for_each_feature(mode: Mode, read: Callable[..., Graph]) -> None:
    graph = read(nn.Bilinear(20, 30, 4), ["20", "30"], mode=mode)
    # 4 features: 20 x 30 weights for each sample, then 30 products with the second input.
    assert Workload.from_graph(graph).at([8]).macs.sum() == 8 * 4 * (20 * 30 + 30)
    assert not graph.unsupported_ops


def test_product_with_a_weight_is_linear_however_it_is_written(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 6))
            self.bias = nn.Parameter(torch.zeros(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.addmm(self.bias, x, self.weight) @ self.weight.t()

    assert kinds(read(Conv1D(), "4")) == [OpKind.LINEAR, OpKind.LINEAR]
    assert kinds(read(_Product(), ["3,4", "4,3"])) == [OpKind.MATMUL]


@pytest.mark.parametrize(
    ("multiply", "is_lowered"),
    [
        (lambda layer, x: layer(x.transpose(1, 2)), True),
        (lambda layer, x: layer.weight @ x.unsqueeze(1).expand(-1, 2, -1, -1), True),
        (lambda layer, x: layer(x.transpose(1, 2).contiguous()), False),
    ],
)
def test_copies_inside_of_products_run_in_the_format_of_autocast(
    multiply: Callable[..., torch.Tensor], is_lowered: bool, read: Callable[..., Graph]
) -> None:
    class Multiplied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return multiply(self.layer, x)

    copies = [node for node in read(Multiplied(), "4,8").nodes if node.kind is OpKind.COPY]
    assert copies
    assert all(node.attributes.get(LOWERED, False) is is_lowered for node in copies)


def _weight(dtype: torch.dtype, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape).to(dtype), requires_grad=False)


_ONE = torch.ones(())
_FEW_BITS: dict[str, tuple[Callable[..., torch.Tensor], nn.Parameter, Arithmetic]] = {
    "_scaled_mm": (
        lambda x, w: torch._scaled_mm(x.to(w.dtype), w.t(), _ONE, _ONE, out_dtype=torch.bfloat16),
        _weight(torch.float8_e4m3fn, 48, 64),
        Arithmetic.FP8,
    ),
    "_int_mm": (
        lambda x, w: torch._int_mm(x.to(w.dtype), w.t()),
        _weight(torch.int8, 48, 64),
        Arithmetic.INT8,
    ),
    "_weight_int8pack_mm": (
        lambda x, w: torch._weight_int8pack_mm(x, w, torch.ones(48, dtype=x.dtype)),
        _weight(torch.int8, 48, 64),
        Arithmetic.BF16,
    ),
    "_weight_int4pack_mm": (
        lambda x, w: torch._weight_int4pack_mm(x, w, 32, torch.ones(2, 48, 2, dtype=x.dtype)),
        _weight(torch.int32, 6, 4, 32, 2),
        Arithmetic.BF16,
    ),
}  # 48 columns of 64 numbers


class _OfFewBits(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.run, self.weight, _ = _FEW_BITS[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x.flatten(0, 1).bfloat16(), self.weight)


@pytest.mark.parametrize("name", _FEW_BITS)
def test_products_of_weights_of_few_bits_are_linear_layers(name: str, read: Callable[..., Graph]) -> None:
    graph = read(_OfFewBits(name), "32,64")
    assert not graph.unsupported_ops
    position = next(i for i, node in enumerate(graph.nodes) if node.kind is OpKind.LINEAR)
    assert graph.nodes[position].source_op == f"aten.{name}"
    work = Workload.from_graph(graph)
    assert float(work.at([4]).macs.sum()) == 4 * 32 * 64 * 48
    assert work.types.arithmetic[position] is _FEW_BITS[name][2]


def test_a_scaled_product_has_the_flops_that_pytorch_counts(read: Callable[..., Graph]) -> None:
    module, x = _OfFewBits("_scaled_mm"), torch.zeros(2, 32, 64, device="meta")
    with FlopCounterMode(display=False) as counter:
        module.to("meta")(x)
    macs = float(Workload.from_graph(read(module, "32,64")).at([2]).macs.sum())
    assert 2 * macs == counter.get_total_flops()


_LINEAR_ALGEBRA: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, int]] = {
    "solve": (lambda x: torch.linalg.solve_triangular(x, x[..., :3], upper=True), "5,7,7", 5 * 3 * 28),
    "solve from the right": (
        lambda x: torch.linalg.solve_triangular(x, x[..., :3, :], upper=False, left=False), "5,7,7", 5 * 3 * 28,
    ),
    "affine grid": (lambda x: F.affine_grid(x, (x.shape[0], 3, 4, 6), align_corners=True), "2,3", 4 * 6 * 3 * 2),
    "folded": (lambda x: torch.ops.aten.unfold_backward(x, (x.shape[0], 16), 1, 8, 4), "3,8", 0),
}  # fmt: skip


class _Runs(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.run, *_ = _LINEAR_ALGEBRA[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


@pytest.mark.parametrize("name", _LINEAR_ALGEBRA)
def test_rarer_operators_have_the_products_of_a_hand_count(name: str, read: Callable[..., Graph]) -> None:
    # A system of n unknowns has n (n + 1) / 2 products and quotients for each right side.
    _, shape, macs = _LINEAR_ALGEBRA[name]
    graph = read(_Runs(name), shape)
    assert not graph.unsupported_ops
    assert float(Workload.from_graph(graph).at([4]).macs.sum()) == 4 * macs


def test_a_system_of_equations_is_solved_in_fp32_under_autocast(read: Callable[..., Graph]) -> None:
    graph = read(_Runs("solve"), "5,7,7")
    work = Workload.from_graph(graph, Precision.AMP)
    position = next(i for i, node in enumerate(graph.nodes) if node.kind is OpKind.MATMUL)
    assert work.types.arithmetic[position] is Arithmetic.FP32
    assert count_raised_products(graph) == 0


class _Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def test_operators_without_a_rule_keep_their_shapes_and_are_reported(
    read: Callable[..., Graph], kinds: Callable[[Graph], list[OpKind]]
) -> None:
    class Exotic(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._softmax_backward_data(x, x, -1, x.dtype)

    graph = read(Exotic(), "5")
    assert kinds(graph) == [OpKind.UNKNOWN]
    assert dict(graph.unsupported_ops) == {"aten._softmax_backward_data": 1}
    # Whoever predicts says so, once.
    assert graph.warnings == ()
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 5))


VECTOR = parse_input_shapes("4")


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.dim() == 2:
            x = x + 1
        return x


def test_a_loop_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_script: Callable[..., Path]
) -> None:
    monkeypatch.setattr(recorder, "_OPERATOR_LIMIT", 1000)
    with pytest.raises(UnsupportedError) as caught:
        read_torch_file(save_script(Endless(), tmp_path / "m.pt"), input=VECTOR)
    assert caught.value.code == "torch.too_many_operators"


def test_a_check_of_the_input_is_taken_to_pass_and_reported(read: Callable[..., Graph]) -> None:
    class Checks(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            torch._check_tensor_all((tokens == 3).sum() == 2)
            return tokens + 1

    graph = read(Checks(), "5:int64")
    assert len(graph.warnings) == 1
    assert "checks of its values" in graph.warnings[0]
    assert not graph.unsupported_ops


def test_what_is_recorded_apart_leaves_the_rest_alone() -> None:
    recorder = Recorder(scope=lambda: "")
    x = recorder.table.add_input(name="x", shape=(2, 3), dtype=torch.float32)

    def fail() -> list[Any]:
        torch.special.airy_ai(x)
        recorder.assumptions.append("said in vain")
        raise ValueError

    with recorder:
        y = x + 1
        results, nodes = recorder.record_apart(lambda: [(y * 2).exp(), None])
        with pytest.raises(ValueError, match=r"^$"):
            recorder.record_apart(fail)
        torch.sin(y)
    assert [node.source_op for node in nodes] == ["aten.mul", "aten.exp"]
    assert results == (nodes[1].outputs[0], -1)
    assert nodes[1].releases == nodes[0].outputs
    assert [node.source_op for node in recorder.nodes()] == ["aten.add", "aten.sin"]
    assert not {*results} & {index for node in recorder.nodes() for index in node.releases}
    assert recorder.unsupported == {}
    assert recorder.assumptions == []


def test_cross_entropy_asks_for_logarithms_in_the_type_of_its_scores(read: Callable[..., Graph]) -> None:
    class Losses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            classes = x.argmax(-1)
            return F.cross_entropy(x, classes) + F.nll_loss(F.log_softmax(x, -1), classes)

    marked = [KEPT in node.attributes for node in read(Losses(), "5").nodes if node.kind is OpKind.LOG_SOFTMAX]
    assert marked == [True, False]
