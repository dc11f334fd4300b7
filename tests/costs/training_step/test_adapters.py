"""Low-rank adapters: what is trained, what runs beside a layer, and that it is what a module with adapters runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dippm.costs import MemoryTimeline, Precision, Workload, live_memory
from dippm.costs.conditions import LowRankAdapters
from dippm.costs.training_step.adapters import find_adapted_weights
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.errors import UnsupportedError
from dippm.graph import DType, Graph, OpKind, TensorRole

torch = pytest.importorskip("torch")


def _step(
    graph: Graph, *, rank: int = 4, precision: str = "fp32", has_dropout: bool = False, **given: Any
) -> TrainingGraph:
    adapters = LowRankAdapters(rank=rank, has_dropout=has_dropout)
    return make_training_graph(graph, TrainingSettings(adapters=adapters, precision=Precision(precision), **given))


def _kinds(step: TrainingGraph, phase: Phase = Phase.FORWARD) -> list[OpKind]:
    nodes = zip(step.graph.nodes, step.phase.tolist(), strict=True)
    return [node.kind for node, number in nodes if number == phase and node.kind is not OpKind.VIEW]


@pytest.fixture
def pair(builder: Any) -> Graph:
    """Two linear layers, the second of which writes the output."""
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 32), builder.weight(64, 32), builder.weight(64)], n, 64)
    x = builder.node(OpKind.GELU, [x], n, 64)
    return builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(10, 64)], n, 10))


def test_adapters_alone_are_trained(pair: Graph) -> None:
    step = _step(pair)
    trained = [step.graph.tensors[index] for index in step.trained]
    # A is 4 x 32, B is 64 x 4; the layer of the output has none.
    assert [[size.fixed for size in tensor.shape] for tensor in trained] == [[4, 32], [64, 4]]
    frozen = [tensor for tensor in step.graph.tensors if tensor.role is TensorRole.BUFFER]
    assert [[size.fixed for size in tensor.shape] for tensor in frozen] == [[64, 32], [64], [10, 64]]


def test_two_thin_products_a_factor_and_a_sum_run_beside_the_layer(pair: Graph) -> None:
    forward = [OpKind.LINEAR, OpKind.LINEAR, OpKind.LINEAR, OpKind.MUL, OpKind.ADD, OpKind.GELU, OpKind.LINEAR]
    assert _kinds(_step(pair))[: len(forward)] == forward
    # Back: through the last layer, the activation, the factor, and to both weights of the adapter; the input of the
    # model wants none, and so none goes through the first layer or through A.
    backward = [kind for kind in _kinds(_step(pair), Phase.BACKWARD) if kind is OpKind.MATMUL]
    assert len(backward) == 1 + 3


@pytest.mark.parametrize(("precision", "half"), [("bf16", DType.BFLOAT16), ("fp16", DType.FLOAT16)])
def test_adapters_of_a_model_of_16_bits_stay_in_fp32_and_are_cast(pair: Graph, precision: str, half: DType) -> None:
    step = _step(pair, precision=precision)
    tensors = step.graph.tensors
    assert {tensors[index].dtype for index in step.trained} == {DType.FLOAT32}
    casts = [
        (tensors[node.inputs[0]].dtype, tensors[node.outputs[0]].dtype)
        for node, phase in zip(step.graph.nodes, step.phase.tolist(), strict=True)
        if node.kind is OpKind.CAST and phase == Phase.FORWARD
    ]
    # The input to FP32 and back, and each of both weights once.
    assert casts[:4] == [(half, DType.FLOAT32), *[(DType.FLOAT32, half)] * 3]


def test_layers_are_chosen_by_the_last_parts_of_their_names(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 16)
    for name in ("layers.0.q_proj", "layers.0.k_proj", "layers.1.q_proj", "head"):
        weight = builder.weight(16, 16)
        builder.tensors[weight] = replace(builder.tensors[weight], name=f"{name}.weight")
        x = builder.node(OpKind.LINEAR, [x, weight], n, 16)
    graph = builder.graph(x)

    def names(*targets: str) -> list[str]:
        chosen = find_adapted_weights(graph, LowRankAdapters(rank=2, targets=targets))
        return sorted(graph.tensors[index].name for index in chosen)

    assert names("q_proj") == ["layers.0.q_proj.weight", "layers.1.q_proj.weight"]
    assert names("0.q_proj", "head") == ["head.weight", "layers.0.q_proj.weight"]
    assert names() == ["layers.0.k_proj.weight", "layers.0.q_proj.weight", "layers.1.q_proj.weight"]
    with pytest.raises(UnsupportedError, match="q_proj, k_proj, head") as caught:
        names("proj")
    assert caught.value.code == "lora.no_layers"
    # One name that none has is a slip, whatever the others are.
    with pytest.raises(UnsupportedError, match="is called vproj\\.") as caught:
        names("q_proj", "vproj")
    assert caught.value.code == "lora.no_layers"


def test_a_weight_that_an_embedding_reads_is_no_layer(builder: Any) -> None:
    n = builder.N
    table = builder.weight(100, 16)
    x = builder.node(OpKind.EMBEDDING, [table, builder.input(n, 8, dtype=DType.INT64)], n, 8, 16)
    x = builder.node(OpKind.GELU, [builder.node(OpKind.LINEAR, [x, builder.weight(16, 16)], n, 8, 16)], n, 8, 16)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, table], n, 8, 100))
    name = graph.tensors[table].name
    with pytest.raises(UnsupportedError, match=f"is called {name}"):
        find_adapted_weights(graph, LowRankAdapters(rank=2, targets=(name,)))


def test_a_model_without_linear_layers_is_refused(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.PRELU, [builder.input(n, 8), builder.weight(8)], n, 8)
    with pytest.raises(UnsupportedError) as caught:
        _step(builder.graph(x))
    assert caught.value.code == "lora.no_layers"


class _Adapted(torch.nn.Module):
    """A linear layer with an adapter, as a program writes it."""

    def __init__(self, base: torch.nn.Linear, rank: int, *, dropout: float) -> None:
        super().__init__()
        self.base = base
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base(x)
        return result + self.up(self.down(self.dropout(x))) * 0.5


class _Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.first = torch.nn.Linear(width, 4 * width)
        self.second = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


def _network(*, rank: int | None, dropout: float = 0.0) -> torch.nn.Module:
    with torch.device("meta"):
        net = torch.nn.Sequential(
            torch.nn.Embedding(100, 32), *(_Block(32) for _ in range(3)), torch.nn.Linear(32, 100)
        )
        if rank is None:
            return net
        net.requires_grad_(False)
        for block in list(net)[1:-1]:
            block.first, block.second = (
                _Adapted(layer, rank, dropout=dropout) for layer in (block.first, block.second)
            )
    return net


@pytest.mark.parametrize("weights", [None, "nf4"])
def test_layers_of_a_module_that_is_frozen_already_get_adapters_too(weights: str | None) -> None:
    import dippm

    steps = []
    for is_frozen in (False, True):
        net = _network(rank=None).requires_grad_(not is_frozen)
        steps.append(_step(dippm.load(net, input="12:int64", mode="training", weights=weights)))
    plain, frozen = (step.graph for step in steps)
    assert frozen == plain


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("has_dropout", [False, True])
def test_a_step_is_that_of_a_module_with_adapters(is_checkpointed: bool, has_dropout: bool) -> None:
    import dippm

    given, mode = "12:int64", "training"
    settings = {"is_checkpointed": is_checkpointed}
    read = dippm.load(_network(rank=8, dropout=0.1 * has_dropout), input=given, mode=mode)
    theirs = make_training_graph(read, TrainingSettings(**settings))
    ours = _step(dippm.load(_network(rank=None), input=given, mode=mode), rank=8, has_dropout=has_dropout, **settings)
    assert _kinds(ours) == _kinds(theirs)
    assert _kinds(ours, Phase.BACKWARD) == _kinds(theirs, Phase.BACKWARD)
    assert _kinds(ours, Phase.OPTIMIZER) == _kinds(theirs, Phase.OPTIMIZER)
    figures = []
    for step in (ours, theirs):
        work = Workload.from_graph(step.graph, step.precision)
        (peak,) = live_memory(MemoryTimeline.from_workload(work), [7]).peak_bytes
        figures.append((work.at([7]).macs.sum(), peak))
    assert figures[0] == figures[1]
