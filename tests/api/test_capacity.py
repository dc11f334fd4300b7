from dataclasses import replace
from typing import Any

import pytest

import dippm
from dippm.api.capacity import _batches_beyond
from dippm.api.prediction import LARGEST_BATCH
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    """Four MiB of activations per sample."""
    x = builder.input(builder.N, 1024, 1024)
    builder.node(OpKind.RELU, [x], builder.N, 1024, 1024)
    return builder.graph()


def test_fit_follows_the_memory(graph: Graph) -> None:
    verdicts = [dippm.fits(graph, device="1g.5gb@A100", batch=batch).verdict for batch in (1, 5000)]
    assert verdicts == ["yes", "no"]


def test_between_sure_batches_lie_unsure_ones(graph: Graph) -> None:
    answer = dippm.max_batch(graph, device="1g.5gb@A100")
    assert answer.batch < answer.batch_at_most
    for batch in (answer.batch + 1, answer.batch_at_most):
        assert dippm.fits(graph, device="1g.5gb@A100", batch=batch).verdict == "unsure"


def test_the_largest_batch_fits_and_the_next_does_not(graph: Graph) -> None:
    answer = dippm.max_batch(graph, device="A100")
    assert answer.bound_by == "memory"
    assert dippm.fits(graph, device="A100", batch=answer.batch).verdict == "yes"
    assert dippm.fits(graph, device="A100", batch=answer.batch + 1).verdict != "yes"
    assert dippm.fits(graph, device="A100", batch=answer.batch_at_most).verdict != "no"
    assert dippm.fits(graph, device="A100", batch=answer.batch_at_most + 1).verdict == "no"


def test_a_latency_bound_is_kept(graph: Graph) -> None:
    answer = dippm.max_batch(graph, device="A100", latency_ms=1.0)
    assert answer.bound_by == "latency"
    assert answer.prediction.latency_ms <= 1.0
    beyond = dippm.predict(graph, batch=answer.batch + 1)
    assert isinstance(beyond, dippm.Prediction)
    assert beyond.latency_ms > 1.0


def test_nothing_fits_gives_zero(graph: Graph) -> None:
    answer = dippm.max_batch(graph, device="A100", latency_ms=1e-6)
    assert (answer.batch, answer.prediction.batch) == (0, 1)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_bound_is_refused(graph: Graph, bound: float) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.max_batch(graph, device="A100", latency_ms=bound)
    assert caught.value.code == "latency.invalid"


def test_a_fixed_batch_has_no_largest(graph: Graph) -> None:
    with pytest.raises(UnsupportedError):
        dippm.max_batch(replace(graph, fixed_batch=1, fixed_batch_reason="so"), device="A100")


def test_no_larger_batch_fits_though_memory_grows_unevenly(builder: Any) -> None:
    n, x = builder.N, builder.input(builder.N, 3, 112, 112)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    for before, after in ((3, 48), (48, 96), (96, 24)):
        x = builder.node(OpKind.CONV, [x, builder.weight(after, before, 3, 3)], n, after, 112, 112, **square)
    graph = builder.graph()
    answer = dippm.max_batch(graph, device="1g.5gb@A100")
    beyond = range(answer.batch + 1, answer.batch + 2 + answer.batch // 4)
    verdicts = {dippm.fits(graph, device="1g.5gb@A100", batch=batch).verdict for batch in beyond}
    assert "yes" not in verdicts


def test_a_model_without_memory_to_speak_of_has_no_bound(builder: Any) -> None:
    x = builder.input(1)
    builder.node(OpKind.RELU, [x], 1)
    assert dippm.max_batch(builder.graph(), device="A100").bound_by == "none"


@pytest.mark.parametrize("batch", [1, 3, 40, 5000, 200_000, LARGEST_BATCH - 2, LARGEST_BATCH - 2000])
def test_batches_beyond(batch: int) -> None:
    found = _batches_beyond(batch)
    end = min(batch + max(batch // 4, 4), LARGEST_BATCH)
    assert found[:1024] == list(range(batch + 1, min(batch + 1024, end) + 1))
    assert found == sorted(set(found))
    assert len(found) <= 1024 + 2 * 1024
    assert end - found[-1] < max(end // 1024, 1)
