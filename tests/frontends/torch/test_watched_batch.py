"""A module that decides by its batch is told, and read the way that it goes at the batch that is asked for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import dippm
from dippm.graph import Dim, Graph

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.frontends.torch.watched_batch import BatchWatch  # noqa: E402

READ = (2, 3, 64)


class Forked(nn.Module):
    """Takes the wide layer at some batches and the narrow one at all others."""

    def __init__(self, is_wide: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(8, 8), nn.Linear(8, 512)
        self.is_wide = is_wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x) if self.is_wide(x) else self.narrow(x)  # type: ignore[no-any-return]


def width(graph: Graph) -> int:
    return graph.tensors[graph.outputs[0]].shape[-1].fixed


@pytest.mark.parametrize(
    ("is_wide", "wide_at"),
    [
        (lambda x: x.shape[0] == 1, 1),
        (lambda x: not x.size(0) > 1, 1),
        (lambda x: x.size(dim=0) < 2, 1),
        (lambda x: x.size(-2) == 1, 1),
        (lambda x: x.size(dim=-2) == 7, 7),
        (lambda x: len(x) == 1, 1),
        (lambda x: x.size()[0] <= 1, 1),
        (lambda x: not x.shape[0] >= 2, 1),
        (lambda x: (x.shape[0] != 1) is False, 1),
        (lambda x: x.shape == (1, 8), 1),
        (lambda x: x.shape[0] == 7, 7),
        (lambda x: x.shape[0] % 5 == 0, 5),
        (lambda x: x.shape[0] % 2, 3),
        (lambda x: x.shape[0] % 3 == 0, 3),
    ],
)
def test_a_fork_by_the_batch_is_told_and_taken(is_wide: Callable[[Any], bool], wide_at: int) -> None:
    module = Forked(is_wide)
    graph = dippm.load(module, input="8")
    (warning,) = graph.warnings
    assert warning.startswith(f"At batch {wide_at} the model goes another way than at batches 2, ")
    assert (graph.fixed_batch, width(graph)) == (None, 8)
    alone = dippm.load(module, input="8", batch_hint=wide_at)
    assert (alone.fixed_batch, alone.warnings, width(alone)) == (wide_at, (), 512)
    assert "goes another way" in alone.fixed_batch_reason


@pytest.mark.parametrize("batch", [1, 5, 7, 33])
def test_a_batch_beside_those_that_a_fork_was_seen_at_is_looked_at(batch: int) -> None:
    graph = dippm.load(Forked(lambda x: x.shape[0] % 2), input="8", batch_hint=batch)
    assert (graph.fixed_batch, width(graph)) == (batch, 512)


def test_predictions_are_of_the_way_that_their_batch_goes() -> None:
    module = Forked(lambda x: x.shape[0] == 1)
    alone = dippm.predict(module, input="8", batch=1)
    assert (alone.macs, [text for text in alone.warnings if "another way" in text]) == (8 * 512, [])
    for prediction in dippm.predict(module, input="8", batch=[1, 2]):
        assert prediction.macs == prediction.batch * 8 * (512 if prediction.batch == 1 else 8)
        assert not [text for text in prediction.warnings if "another way" in text]


@pytest.mark.parametrize("batches", [[7, 8], [8, 7], [5, 6, 7], [1, 2, 64, 65]])
@pytest.mark.parametrize(("divisor", "rest"), [(2, 1), (2, 0), (3, 1), (4, 3), (5, 0), (10, 7)])
def test_of_several_batches_each_has_its_own_way(batches: list[int], divisor: int, rest: int) -> None:
    found = dippm.predict(Forked(lambda x: x.shape[0] % divisor == rest), input="8", batch=batches)
    assert [(each.batch, each.macs) for each in found] == [
        (batch, batch * 8 * (512 if batch % divisor == rest else 8)) for batch in batches
    ]
    assert not [text for each in found for text in each.warnings if "another way" in text]


def test_a_graph_says_where_its_module_goes_another_way() -> None:
    graph = dippm.load(Forked(lambda x: x.shape[0] == 1), input="8")
    assert (graph.other_batches, graph.known_batches) == ((1,), ())
    assert [graph.serves(batch) for batch in (1, 2, 9)] == [False, True, True]
    for is_odd in (lambda x: x.shape[0] % 2, lambda x: x.shape[0] in (1, 5, 7, 9, 11)):
        graph = dippm.load(Forked(is_odd), input="8", batch_hint=8)
        assert graph.warnings == ()
        assert [graph.serves(batch) for batch in (5, 7, 8, 64)] == [False, False, True, True]


def test_a_graph_that_is_asked_for_a_batch_of_another_way_warns_of_it() -> None:
    graph = dippm.load(Forked(lambda x: x.shape[0] == 1), input="8", batch_hint=8)
    told = [
        [
            text
            for text in each.warnings
            if text.startswith("The graph is of a model that decides by its batch, and at 1 ")
        ]
        for each in dippm.predict(graph, batch=[1, 2, 4])
    ]
    assert [len(texts) for texts in told] == [1, 0, 0]
    assert any("and at 1 it goes" in text for text in dippm.inspect(graph, batch=1).prediction.warnings)


def test_a_search_for_the_largest_batch_warns_of_those_on_its_way() -> None:
    found = dippm.max_batch(Forked(lambda x: x.shape[0] == 1), input="8")
    assert any(text.startswith("At batch 1 the model goes another way") for text in found.prediction.warnings)


def test_a_batch_that_a_module_refuses_is_told() -> None:
    def refuse(x: torch.Tensor) -> bool:
        if x.shape[0] == 1:
            raise ValueError("one is not enough")
        return False

    graph = dippm.load(Forked(refuse), input="8")
    (warning,) = graph.warnings
    assert warning.startswith("The model was read at batches 2, 3 and 64, and cannot be at 1: ")
    assert warning.endswith("one is not enough.")
    assert dippm.load(Forked(refuse), input="8", batch_hint=8).warnings == ()


@pytest.mark.parametrize(("divisor", "batches"), [(2, 5), (2, 1), (2, [5, 8]), (3, 5)])
def test_a_batch_that_is_asked_for_and_that_a_module_refuses_is_an_error(divisor: int, batches: Any) -> None:
    def refuse(x: torch.Tensor) -> bool:
        if x.shape[0] % divisor:
            raise ValueError("not a multiple")
        return False

    with pytest.raises(dippm.UsageError, match="not a multiple") as caught:
        dippm.predict(Forked(refuse), input="8", batch=batches)
    assert caught.value.code == "input.shape_wrong"
    assert dippm.predict(Forked(refuse), input="8", batch=2 * divisor).macs == 2 * divisor * 64


@pytest.mark.parametrize(
    "is_wide",
    [
        lambda x: x.shape[0] == 0,
        lambda x: x.shape[1] == 1,
        lambda x: x.shape[0] < 1,
        lambda x: x.shape[0] == x.size(0) + 1,
        lambda x: x.shape[0] == 2.5 or x.shape[0] is None,
        lambda x: (x.shape[0] == 1) is None,
        lambda x: x.shape[0] % 4 == 5,
        lambda x: {1: False}.get(x.shape[0], False),
        lambda x: copy.deepcopy(x.shape)[0] == "one",
    ],
)
def test_what_comes_to_the_same_is_not_told(is_wide: Callable[[Any], bool]) -> None:
    graph = dippm.load(Forked(is_wide), input="8", batch_hint=1)
    assert (graph.fixed_batch, graph.warnings, graph.proved_batch) == (None, (), 64)
    assert graph.tensors[graph.inputs[0]].shape == (Dim(1, 0), Dim(0, 8))


def test_a_watched_size_is_a_size() -> None:
    watch = BatchWatch(64, axes={0})
    shape = watch.watch_shape(torch.Size([64, 64, 3]))
    assert isinstance(shape, torch.Size)
    assert shape == (64, 64, 3)
    assert torch.empty(shape, device="meta").shape == shape
    assert {64: "found"}[shape[0]] == "found"
    assert [type(size) is int for size in shape] == [False, True, True]
    assert type(copy.deepcopy(shape[0])) is type(pickle.loads(pickle.dumps(shape))[0]) is int
    assert type(shape[0] * 2) is type(shape[0] // 2) is type(shape[0] + 1) is int


def test_doubts_are_batches_that_the_readings_do_not_tell_of() -> None:
    watch = BatchWatch(64, axes={0})
    size: Any = watch.watch_size(64, 0)
    assert watch.watch_size(64, 1) is not size
    assert watch.watch_size(3, 0) == 3
    assert not watch.doubtful(READ)
    for other in (0, 1, 3, 64, 65, 17, -1):
        assert (size == other) is (other == 64)
    assert watch.doubtful(READ) == [1, 17]
    assert (size % 4, size % 2, size % 6) == (0, 0, 4)
    assert size > 8
    assert watch.doubtful(READ) == [1, 6, 17]
    assert size != 20
    assert watch.doubtful(READ) == [1, 6, 17]


def test_rests_are_known_where_the_readings_have_them_all() -> None:
    for divisors, has_more in (((1,), False), ((2,), False), ((3,), False), ((2, 3), True), ((4,), True)):
        watch = BatchWatch(64, axes={0})
        size: Any = watch.watch_size(64, 0)
        assert [size % divisor for divisor in divisors] == [64 % divisor for divisor in divisors]
        assert watch.has_more_rests(READ) is has_more
        assert watch.are_all(READ) is not has_more
