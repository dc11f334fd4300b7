"""Tables of which a step has gradients of the rows alone that were looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dippm
from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.sparse_gradients import SPARSE, find_sparse_tables, warn_of_dense
from dippm.costs.training_step.training_graph import Phase, TrainingGraph
from dippm.errors import UnsupportedError
from dippm.graph import Dim, DType, Graph, OpKind, TensorRole

_MIB = 2**20
_ROWS, _WIDTH, _IDS = 65_536, 64, 16


@pytest.fixture
def lookup(builder: Any) -> Callable[..., Graph]:
    """A table that is looked up, once or twice, and a linear layer."""

    def make(*, is_sparse: bool = True, lookups: int = 1, has_offsets: bool = False) -> Graph:
        graph = type(builder)()
        n = graph.N
        table = graph.weight(_ROWS, _WIDTH)
        attributes = {SPARSE: True} if is_sparse else {}
        for _ in range(lookups):
            ids = graph.input(Dim(_IDS, 0) if has_offsets else n, *(() if has_offsets else (_IDS,)), dtype=DType.INT64)
            inputs, sizes = [table, ids], (n, _IDS, _WIDTH)
            if has_offsets:
                inputs, sizes = [table, ids, graph.input(n, dtype=DType.INT64)], (n, _WIDTH)
            x = graph.node(OpKind.EMBEDDING, inputs, *sizes, **attributes)
        y = graph.node(OpKind.LINEAR, [x, graph.weight(4, _WIDTH)], *sizes[:-1], 4)
        return graph.graph(y)

    return make


def _update(training: TrainingGraph) -> list[tuple[OpKind, object]]:
    nodes = zip(training.graph.nodes, training.phase, strict=True)
    return [(node.kind, node.attributes["function"]) for node, phase in nodes if phase == Phase.OPTIMIZER]


@pytest.mark.parametrize("has_offsets", [False, True])
def test_the_gradient_is_as_large_as_what_was_looked_up(lookup, train, has_offsets):
    training = train(lookup(has_offsets=has_offsets), optimizer=Optimizer.SGD)
    gradients = [each for each in training.graph.tensors if each.role is TensorRole.GRADIENT]
    sizes = sorted(_elements(tensor.shape, 8) for tensor in gradients)
    assert sizes == [4 * _WIDTH, 8 * _IDS * _WIDTH]


def _elements(shape, batch):
    count = 1
    for dim in shape:
        count *= dim.at(batch)
    return count


def test_a_step_has_no_second_table(lookup, train, live):
    table = _ROWS * _WIDTH * 4
    dense, sparse = (
        live(train(lookup(is_sparse=is_sparse), optimizer=Optimizer.SGD), 8).peak_bytes[0]
        for is_sparse in (False, True)
    )
    assert dense > 2 * table
    assert sparse < table + _MIB


def test_the_update_goes_to_the_rows_and_takes_each_parameter_by_itself(lookup, train):
    assert _update(train(lookup(), optimizer=Optimizer.SGD)) == [
        (OpKind.OPTIMIZER, "mul"), (OpKind.SCATTER, "index_add"), (OpKind.OPTIMIZER, "add"),
    ]  # fmt: skip
    assert _update(train(lookup(is_sparse=False), optimizer=Optimizer.SGD)) == [(OpKind.OPTIMIZER, "add")]
    assert _update(train(lookup(), optimizer=Optimizer.NONE)) == []


@pytest.mark.parametrize(
    ("options", "optimizer", "accumulation"),
    [({}, Optimizer.MOMENTUM, 1), ({}, Optimizer.SGD, 2), ({"lookups": 2}, Optimizer.SGD, 1)],
)
def test_what_grows_to_the_table_counts_as_one(lookup, train, options, optimizer, accumulation):
    graph = lookup(**options)
    assert not find_sparse_tables(graph, optimizer, accumulation=accumulation)
    training = train(graph, optimizer=optimizer, accumulation=accumulation)
    assert OpKind.SCATTER not in {kind for kind, _ in _update(training)}
    (told,) = warn_of_dense(graph, optimizer, accumulation=accumulation)
    assert told.startswith("Sparse gradients of ")


def test_nothing_is_said_where_they_count_as_they_are(lookup):
    assert not warn_of_dense(lookup(), Optimizer.SGD)
    assert not warn_of_dense(lookup(is_sparse=False), Optimizer.MOMENTUM)


@pytest.mark.parametrize(
    "optimizer", [Optimizer.ADAM, Optimizer.ADAMW, Optimizer.ADAMW_FUSED, Optimizer.RMSPROP, Optimizer.ADAFACTOR]
)
def test_optimizers_that_take_no_sparse_gradients_are_refused(lookup, train, optimizer):
    with pytest.raises(UnsupportedError, match=f"{optimizer.value} takes no sparse gradients") as caught:
        train(lookup(), optimizer=optimizer)
    assert caught.value.code == "optimizer.sparse"
    train(lookup(is_sparse=False), optimizer=optimizer)


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_modules_of_pytorch_are_read_with_it(kind):
    torch = pytest.importorskip("torch")

    class Scorer(torch.nn.Module):
        def __init__(self, *, sparse: bool) -> None:
            super().__init__()
            self.table = getattr(torch.nn, kind)(500_000, 64, sparse=sparse, device="meta")
            self.head = torch.nn.Linear(64, 1, device="meta")

        def forward(self, x):
            return self.head(self.table(x))

    def ask(*, sparse: bool, optimizer: str = "sgd"):
        options = {"mode": "training", "optimizer": optimizer, "device": "A100"}
        return dippm.predict(Scorer(sparse=sparse), input="20:int64", batch=32, **options)

    dense, sparse = ask(sparse=False), ask(sparse=True)
    assert sparse.memory_parts_mb["gradients"] < 1 < 120 < dense.memory_parts_mb["gradients"]
    assert sparse.latency_ms < dense.latency_ms
    assert not any(warning.startswith("Sparse gradients") for warning in sparse.warnings)
    momentum = ask(sparse=True, optimizer="momentum")
    assert any(warning.startswith("Sparse gradients of table.weight") for warning in momentum.warnings)
    with pytest.raises(UnsupportedError, match=r"sparse=True: table\.weight"):
        ask(sparse=True, optimizer="adam")
