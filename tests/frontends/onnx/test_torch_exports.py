"""Models exported by PyTorch: parameters, multiply-accumulates and kernels are those of the module itself."""

from __future__ import annotations

import io
import logging
import warnings
from collections import Counter
from math import prod

import onnx
import pytest

import dippm
from dippm.frontends.onnx import read_onnx
from dippm.graph import Graph, OpKind

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    """Tokens of an image through attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.proj = nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, c))
        return self.head((x + self.mlp(x))[:, 0])


class Residual(nn.Module):
    """Convolutions with every usual normalization, gate and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 16, 3, groups=16),
            nn.GroupNorm(4, 16), nn.Hardswish(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 1), nn.ReLU6(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.fc = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.body(image)
        return self.fc((x * self.gate(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(64, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(self.words(ids))[0][:, -1])


IMAGE = torch.zeros(1, 3, 16, 16)
IDS = torch.zeros(1, 9, dtype=torch.int64)


def export(module: nn.Module, example: torch.Tensor, *, is_open: bool, is_frozen: bool) -> bytes:
    options: dict[str, object] = {"dynamo": False, "input_names": ["x"], "opset_version": 17}
    if is_open:
        options["dynamic_axes"] = {"x": {0: "batch"}}
    if not is_frozen:
        options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    buffer = io.BytesIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module.eval(), (example,), buffer, **options)
    finally:
        logging.disable(logging.NOTSET)
    return buffer.getvalue()


def export_newer(module: nn.Module, example: torch.Tensor, **options: object) -> onnx.ModelProto:
    pytest.importorskip("onnxscript")
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(module, (example,), dynamo=True, verbose=False, **options).model_proto
    finally:
        logging.disable(logging.NOTSET)


def macs(graph: Graph, batch: int) -> int:
    shape = [[dim.at(batch) for dim in tensor.shape] for tensor in graph.tensors]
    total = 0
    for node in graph.nodes:
        if node.kind is OpKind.CONV:
            total += prod(shape[node.outputs[0]]) * prod(shape[node.inputs[1]][1:])
        elif node.kind in (OpKind.LINEAR, OpKind.MATMUL):
            total += prod(shape[node.outputs[0]]) * shape[node.inputs[0]][-1]
        elif node.kind is OpKind.ATTENTION:
            q, k, v = (shape[index] for index in node.inputs[:3])
            total += prod(q[:3]) * k[2] * (q[3] + v[3])
    return total


def counted_by_torch(module: nn.Module, example: torch.Tensor, batch: int) -> int:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # The counter knows matrix products, not the fused attention of the CPU.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module.eval()(example.expand(batch, *example.shape[1:]))
    return int(counter.get_total_flops() // 2)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_frozen", [True, False])
@pytest.mark.parametrize(("kind", "example"), [(Block, IMAGE), (Residual, IMAGE)])
def test_work_is_the_modules(kind: type[nn.Module], example: torch.Tensor, is_open: bool, is_frozen: bool) -> None:
    module = kind()
    graph = read_onnx(export(module, example, is_open=is_open, is_frozen=is_frozen))
    assert graph.fixed_batch is None
    assert graph.unsupported_ops == {}
    for batch in (1, 4):
        assert macs(graph, batch) == counted_by_torch(module, example, batch)
    if not is_frozen:
        assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())


def test_kernels_of_a_transformer_block() -> None:
    graph = read_onnx(export(Block(), IMAGE, is_open=True, is_frozen=False))
    counted = Counter(node.kind for node in graph.nodes if node.kind is not OpKind.VIEW)
    assert counted == {
        OpKind.CONV: 1, OpKind.CONCAT: 1, OpKind.LAYER_NORM: 2, OpKind.LINEAR: 5, OpKind.ATTENTION: 1, OpKind.ADD: 2,
        OpKind.GELU: 1,
    }  # fmt: skip


def test_kernels_of_a_convolutional_network() -> None:
    graph = read_onnx(export(Residual(), IMAGE, is_open=True, is_frozen=False))
    assert [node.kind.value for node in graph.nodes if node.kind is not OpKind.VIEW] == [
        "conv", "batch_norm", "silu", "conv", "group_norm", "hard_swish", "max_pool", "conv", "clip", "avg_pool",
        "global_pool", "conv", "hard_sigmoid", "mul", "reduce", "linear",
    ]  # fmt: skip


class Attention(nn.Module):
    """PyTorch's own layer for attention, which has the parts of its projection in one copy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("is_newer", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [1, 2])
def test_attention_launches_what_the_module_launches(is_newer: bool, batch: int) -> None:
    import dippm

    module, example = Attention().eval(), torch.zeros(batch, 20, 32)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.1, 0.2)  # the newer exporter leaves out a bias of zeros
    file = export_newer(module, example) if is_newer else export(module, example, is_open=False, is_frozen=True)
    counted = [
        Counter(node.kind for node in graph.nodes if node.kind is not OpKind.VIEW)
        for graph in (dippm.load(module, input=(20, 32)), read_onnx(file))
    ]
    assert counted[0] == counted[1] == {OpKind.COPY: 3, OpKind.LINEAR: 2, OpKind.ATTENTION: 1}


class Cells(nn.Module):
    """Recurrent layers that a model runs step by step itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(8, 16), nn.LSTMCell(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = state = x[:, 0, :1].expand(-1, 16).contiguous()
        for step in range(x.shape[1]):
            state = self.gru(x[:, step], state)
            h, c = self.lstm(state, (h, c))
        return h


@pytest.mark.parametrize("is_newer", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_cells_launch_what_the_module_launches(is_newer: bool, mode: str, tmp_path) -> None:
    module, example = Cells().eval(), torch.zeros(1, 3, 8)
    path = tmp_path / "cells.onnx"
    if is_newer:
        onnx.save(export_newer(module, example), path)
    else:
        path.write_bytes(export(module, example, is_open=True, is_frozen=True))
    times = [
        dippm.predict(model, input=(3, 8), batch=4, device="A100", precision="fp32", mode=mode).latency_ms
        for model in (module, path)
    ]
    assert times[1] == pytest.approx(times[0], rel=0.1)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_recurrent_layers_keep_their_weights(is_frozen: bool) -> None:
    module = Recurrent()
    graph = read_onnx(export(module, IDS, is_open=True, is_frozen=is_frozen))
    assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())
    layers = [node.attributes["num_layers"] for node in graph.nodes if node.kind is OpKind.LSTM]
    assert layers == [2]  # the exporter writes one operator for each
    assert graph.fixed_batch is None


def test_module_paths_are_kept() -> None:
    graph = read_onnx(export(Block(), IMAGE, is_open=True, is_frozen=False))
    scopes = {node.scope for node in graph.nodes}
    assert {"stem", "qkv", "mlp.0", "mlp.1", "mlp.4", "head"} <= scopes


@pytest.mark.slow
def test_newer_exporter_reads_alike() -> None:
    module = Block().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)  # the exporter merges weights of equal values
    program = export_newer(module, torch.zeros(2, 3, 16, 16), dynamic_shapes=({0: torch.export.Dim("batch")},))
    graph = read_onnx(program)
    assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())
    assert macs(graph, 3) == counted_by_torch(module, IMAGE, 3)
    assert [node.kind for node in graph.nodes].count(OpKind.ATTENTION) == 1


class EinsteinSum(nn.Module):
    def __init__(self, equation: str, weights: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.equation = equation
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(*shape)) for shape in weights])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        others = list(self.weights) or ([x + 1] if "," in self.equation else [])
        return torch.einsum(self.equation, x, *others).relu()


@pytest.mark.parametrize(
    ("equation", "x", "weights"),
    [
        ("bthd,hde->bthe", (128, 8, 64), ((8, 64, 64),)),
        ("bcxy,cdxy->bdxy", (64, 16, 16), ((64, 64, 16, 16),)),
        ("betf,efd->betd", (8, 128, 512), ((8, 512, 256),)),
        ("bhtd,hde->bhte", (8, 128, 64), ((8, 64, 64),)),
        ("bnd,nd->bn", (128, 512), ((128, 512),)),
        ("bhqd,bhkd->bhqk", (8, 128, 64), ()),
        ("bqhd,bkhd->bhqk", (128, 8, 64), ()),
        ("ij,jk->ik", (512,), ((512, 256),)),
        ("...d,de", (16, 32, 512), ((512, 256),)),
        ("bi,bj->bij", (64,), ()),
        ("bij->ij", (256, 256), ()),
        ("bii->b", (64, 64), ()),
        ("bi,ij,jk->bk", (512,), ((512, 256), (256, 128))),
    ],
)
def test_einstein_sums_run_as_the_modules(
    equation: str, x: tuple[int, ...], weights: tuple[tuple[int, ...], ...]
) -> None:
    module = EinsteinSum(equation, weights).eval()
    own = dippm.load(module, input=x)
    exported = read_onnx(export(module, torch.zeros(2, *x), is_open=True, is_frozen=True))
    kinds = [Counter(node.kind for node in graph.nodes) for graph in (own, exported)]
    assert kinds[0] == kinds[1]
    for precision in ("fp32", "fp16"):
        one, other = (dippm.predict(graph, batch=32, device="A100", precision=precision) for graph in (own, exported))
        assert other.macs == one.macs
        assert other.latency_ms == pytest.approx(one.latency_ms, rel=0.05)


class SharedKeys(nn.Module):
    """Attention with fewer heads of keys than of queries, repeated as often as the shapes say."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 16), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (layer(x).view(b, t, -1, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        n = q.shape[1] // k.shape[1]
        return nn.functional.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


def test_repeats_follow_from_shapes() -> None:
    exported = read_onnx(export(SharedKeys(), torch.zeros(2, 16, 64), is_open=True, is_frozen=True))
    (attention,) = (node for node in exported.nodes if node.kind is OpKind.ATTENTION)
    assert [str(dim) for dim in exported.tensors[attention.inputs[1]].shape] == ["N", "8", "16", "8"]
    assert all(node.kind is not OpKind.SCATTER for node in exported.nodes)


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(1000, 32, mode=mode)
        self.head = nn.Linear(32, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_by_the_older_exporter_run_as_the_modules(mode: str) -> None:
    module = Bags(mode).eval()
    exported = read_onnx(export(module, torch.zeros(2, 10, dtype=torch.int64), is_open=True, is_frozen=True))
    own = dippm.load(module, input="10:int64")
    kinds = [node.kind for node in exported.nodes if node.kind not in {OpKind.FILL, OpKind.CONCAT, OpKind.COPY}]
    assert kinds == [node.kind for node in own.nodes if node.kind is not OpKind.FILL]
    assert exported.fixed_batch is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_run_as_the_modules(mode: str) -> None:
    module = Bags(mode).eval()
    program = export_newer(module, torch.zeros(2, 10, dtype=torch.int64), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    exported, own = read_onnx(program), dippm.load(module, input="10:int64")
    assert Counter(node.kind for node in exported.nodes) == Counter(node.kind for node in own.nodes)
    one, other = (dippm.predict(graph, batch=1024, device="A100") for graph in (own, exported))
    assert other.latency_ms == pytest.approx(one.latency_ms, rel=0.05)
