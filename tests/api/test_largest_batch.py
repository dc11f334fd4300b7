from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    """Four MiB of activations per sample."""
    x = builder.input(builder.N, 1024, 1024)
    builder.node(OpKind.RELU, [x], builder.N, 1024, 1024)
    return builder.graph()


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


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf"), pytest.param(10**5_000, id="huge")])
def test_a_wrong_bound_is_refused(graph: Graph, bound: float) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.max_batch(graph, device="A100", latency_ms=bound)
    assert caught.value.code == "latency.invalid"


def test_a_fixed_batch_has_no_largest(graph: Graph) -> None:
    with pytest.raises(UnsupportedError):
        dippm.max_batch(replace(graph, fixed_batch=1, fixed_batch_reason="so"), device="A100")


def test_a_model_without_a_batch_has_no_largest(builder: Any) -> None:
    source = builder.input(100, 64)
    builder.node(OpKind.LINEAR, [source, builder.weight(64, 64)], 100, 64)
    with pytest.raises(UnsupportedError) as error:
        dippm.max_batch(builder.graph(), device="A100")
    assert error.value.code == "graph.no_batch"
    (prediction,) = dippm.predict(builder.graph(), batch=[8], device="A100")
    assert "No input of the model has a batch: every batch is answered alike." in prediction.predictor.warnings


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
    x = builder.input(builder.N)
    builder.node(OpKind.RELU, [x], builder.N)
    assert dippm.max_batch(builder.graph(), device="A100").bound_by == "none"


def test_training_needs_more_and_holds_fewer(classifier: Graph) -> None:
    at_inference = dippm.max_batch(classifier, device="1g.5gb@A100")
    in_training = dippm.max_batch(classifier, device="1g.5gb@A100", mode="training")
    assert 0 < in_training.batch < at_inference.batch
    assert {"gradients", "optimizer"} <= set(in_training.prediction.memory_parts_mb)
    assert in_training.prediction.step_time_ms == in_training.prediction.latency_ms


def test_a_bound_on_the_step_time_is_one_on_the_latency(classifier: Graph) -> None:
    answer = dippm.max_batch(classifier, device="A100", mode="training", step_time_ms=20.0)
    assert answer == dippm.max_batch(classifier, device="A100", mode="training", latency_ms=20.0)
    assert answer.bound_by == "step_time"
    assert answer.prediction.step_time_ms is not None
    assert answer.prediction.step_time_ms <= 20.0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"step_time_ms": 5.0}, "step_time.unused"),
        ({"step_time_ms": 5.0, "latency_ms": 5.0, "mode": "training"}, "latency.twice"),
        ({"step_time_ms": -1.0, "mode": "training"}, "latency.invalid"),
    ],
)
def test_wrong_bounds_are_refused(classifier: Graph, options: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.max_batch(classifier, device="A100", **options)
    assert caught.value.code == code


def test_the_largest_batch_by_an_adapted_predictor(classifier: Graph, adapted_folder: Path) -> None:
    answer = dippm.max_batch(classifier, predictor=adapted_folder)
    assert (answer.device, answer.bound_by) == ("Small card", "memory")
    verdicts = [
        dippm.fits(classifier, batch=batch, predictor=adapted_folder).verdict
        for batch in (answer.batch, answer.batch + 1)
    ]
    assert verdicts[0] == "yes" != verdicts[1]
    in_time = dippm.max_batch(classifier, predictor=adapted_folder, step_time_ms=answer.prediction.latency_ms / 2)
    assert (in_time.bound_by, in_time.batch < answer.batch) == ("step_time", True)


def test_a_network_does_not_search(graph: Graph, write_predictor: Any) -> None:
    with pytest.raises(UnsupportedError, match="need not grow with the batch") as caught:
        dippm.max_batch(graph, predictor=write_predictor())
    assert caught.value.code == "predictor.unsuited"


def test_the_cheapest_comes_first(graph: Graph) -> None:
    devices = ["V100-SXM2-16GB", "A100", "T4"]
    largest = dippm.max_batch(graph, device=devices, prices={"T4": 0.01, "A100": 1.0})
    assert [answer.device for answer in largest] == ["Tesla T4", "A100-SXM4-40GB", "Tesla V100-SXM2-16GB"]


def test_software_changes_it(graph: Graph) -> None:
    batch = dippm.max_batch(graph, device="A100").batch
    assert dippm.max_batch(graph, device="A100", software="torch 1.12+cu113").batch < batch


def test_an_a100_where_no_device_is_named(graph: Graph) -> None:
    assert dippm.max_batch(graph) == dippm.max_batch(graph, device="A100")


def test_an_answer_prints_as_its_prediction_does(graph: Graph) -> None:
    answer = dippm.max_batch(graph, device="1g.5gb@A100")
    title, *rows = str(answer).splitlines()
    assert title == str(answer.prediction).splitlines()[0].replace(f" · batch {answer.batch}", "")
    assert [row.split() for row in rows[:3]] == [
        ["batch", f"{answer.batch:,}"],
        ["at", "most", f"{answer.batch_at_most:,}"],
        ["bound", "by", "memory"],
    ]
    assert rows[3:6] == answer.prediction.figure_rows()
    assert rows[6:] == answer.prediction.warning_rows()


def test_where_nothing_fits_the_text_says_why(graph: Graph) -> None:
    text = str(dippm.max_batch(graph, device="A100", latency_ms=1e-6))
    assert "  ! A100-SXM4-40GB: even batch 1 is too slow: it takes" in text
    assert "latency        " not in text
