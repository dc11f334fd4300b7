from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph, Node, OpKind


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


@pytest.mark.parametrize("device", ["1g.5gb@A100", "3g.20gb@A100", "A100"])
def test_a_prediction_warns_as_the_verdict_says(graph: Graph, device: str) -> None:
    batches = list(range(1, 12_000, 101))
    said = {"It does not fit:": "no", "It may not fit:": "unsure"}
    fits = dippm.fits(graph, device=[device], batch=batches)
    verdicts = [
        next((said[start] for start in said if each.warnings[0].startswith(start)), "yes")
        for each in dippm.predict(graph, device=[device], batch=batches)
    ]
    assert verdicts == [fit.verdict for fit in fits]
    assert set(verdicts) == {"yes", "unsure", "no"}


def test_a_slice_that_is_named_fits(graph: Graph) -> None:
    batches = list(range(1, 12_000, 101))
    named = {each.batch: each.mig for each in dippm.predict(graph, device=["A100"], batch=batches) if each.mig}
    assert len(set(named.values())) > 3
    for batch, profile in named.items():
        assert dippm.fits(graph, device=f"{profile}@A100", batch=batch).verdict == "yes"


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


@pytest.fixture(name="classifier")
def _classifier(builder: Any) -> Graph:
    """A convolution and a linear layer, which can be trained."""
    n = builder.N
    x = builder.input(n, 3, 64, 64)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [x, builder.weight(64, 3, 3, 3)], n, 64, 64, 64, **square)
    x = builder.node(OpKind.RELU, [x], n, 64, 64, 64)
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, 64, 1, 1, output_size=(1, 1))
    flat = builder.tensor(n, 64, alias_of=x)
    builder.nodes.append(Node(kind=OpKind.VIEW, inputs=(x,), outputs=(flat,), attributes={"function": "view"}))
    return builder.graph(builder.node(OpKind.LINEAR, [flat, builder.weight(10, 64)], n, 10))


def test_several_devices_and_batches_come_in_their_order(graph: Graph) -> None:
    answers = dippm.fits(graph, device=["T4", "A100"], batch=[1, 4500])
    assert [(answer.device, answer.batch) for answer in answers] == [
        ("Tesla T4", 1), ("Tesla T4", 4500), ("A100-SXM4-40GB", 1), ("A100-SXM4-40GB", 4500),
    ]  # fmt: skip
    assert [answer.verdict for answer in answers] == ["yes", "no", "yes", "unsure"]


def test_with_prices_what_fits_comes_first_and_the_cheapest_of_it(graph: Graph) -> None:
    devices = ["V100-SXM2-16GB", "A100", "T4", "1g.5gb@A100"]
    answers = dippm.fits(graph, device=devices, batch=1000, prices={"A100": 1.0, "T4": 1.0})
    assert [answer.device for answer in answers][:2] == ["A100-SXM4-40GB", "Tesla T4"]
    assert answers[0].price is not None
    assert answers[1].price is not None
    assert answers[0].price.per_sample < answers[1].price.per_sample
    assert answers[2].price is None
    assert answers[-1].verdict == "no"
    largest = dippm.max_batch(graph, device=devices, prices={"T4": 0.01, "A100": 1.0})
    assert [answer.device for answer in largest][:2] == ["Tesla T4", "A100-SXM4-40GB"]


def test_a_price_is_of_the_time_of_a_call(graph: Graph) -> None:
    (answer,) = dippm.fits(graph, device=["A100"], batch=8, prices={"A100": 3.6})
    assert answer.price is not None
    assert answer.price.per_call == pytest.approx(answer.prediction.latency_ms * 1e-6)
    assert answer.price.per_sample == pytest.approx(answer.price.per_call / 8)
    assert answer.to_dict()["price"] == answer.price.to_dict()


@pytest.mark.parametrize(
    ("prices", "code"),
    [({"A100": 0.0}, "price.invalid"), ({"A100": True}, "price.invalid"), ({"T4": 1.0}, "price.unused"),
     ({"no such": 1.0}, "price.unused")],
)  # fmt: skip
def test_wrong_prices_are_refused(graph: Graph, prices: dict[str, float], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.fits(graph, device="A100", prices=prices)
    assert caught.value.code == code


def test_the_largest_part_of_the_memory_is_named(graph: Graph) -> None:
    answer = dippm.fits(graph, device="A100", batch=2000)
    assert answer.largest_part == "activations"
    assert sum(answer.prediction.memory_parts_mb.values()) == pytest.approx(answer.prediction.memory_mb)


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


def test_software_changes_the_verdict(graph: Graph) -> None:
    batch = dippm.max_batch(graph, device="A100").batch
    old = {"software": "torch 1.12+cu113"}
    assert dippm.fits(graph, device="A100", batch=batch).verdict == "yes"
    answer = dippm.fits(graph, device="A100", batch=batch, **old)
    assert answer.verdict != "yes"
    assert answer.to_dict()["software"] == "torch 1.12+cu113"
    assert dippm.max_batch(graph, device="A100", **old).batch < batch


@pytest.mark.parametrize("ask", [dippm.fits, dippm.max_batch])
def test_software_that_is_not_known_is_refused(graph: Graph, ask: Any) -> None:
    with pytest.raises(UsageError, match="torch latest") as caught:
        ask(graph, device="A100", software="torch latest")
    assert caught.value.code == "software.unknown"


def test_an_a100_where_no_device_is_named(graph: Graph) -> None:
    assert dippm.fits(graph, batch=3) == dippm.fits(graph, batch=3, device="A100")
    assert dippm.max_batch(graph) == dippm.max_batch(graph, device="A100")


def test_an_adapted_predictor_says_what_its_card_holds(classifier: Graph, adapted_folder: Path) -> None:
    answer = dippm.fits(classifier, batch=64, predictor=adapted_folder)
    told = dippm.predict(classifier, batch=64, predictor=adapted_folder)
    assert answer.prediction == told
    assert (answer.device, answer.needed_mb) == ("Small card", told.intervals["memory_mb"])
    assert answer.capacity_mb < 8192
    (shipped,) = dippm.predict(classifier, batch=64, device=["RTX 4090"], mode="training", precision="amp")
    assert answer.needed_mb[1] > shipped.intervals["memory_mb"][1]
    (priced,) = dippm.fits(classifier, batch=[64], predictor=adapted_folder, prices={"Small card": 3.6})
    assert priced.price is not None
    assert priced.price.per_call == pytest.approx(1e-6 * told.latency_ms, rel=1e-6)
    in_inference = dippm.fits(classifier, batch=64, predictor=adapted_folder, mode="inference")
    assert in_inference.needed_mb[1] < answer.needed_mb[1]


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


def test_a_network_says_whether_a_model_like_its_labels_fits(graph: Graph, write_predictor: Any) -> None:
    folder = write_predictor()
    answers = dippm.fits(graph, batch=[1, 8], predictor=folder)
    assert [answer.prediction for answer in answers] == dippm.predict(graph, batch=[1, 8], predictor=folder)
    assert answers[0].needed_mb == pytest.approx((800, 5000))
    assert (answers[0].verdict, answers[0].largest_part) == ("yes", "unknown")
    found = answers[0].to_dict()
    assert (found["software"], found["memory_parts_mb"]) == (None, {})


@pytest.mark.parametrize(
    ("changes", "batch", "reason"),
    [
        ({}, 9, "Outside what the training saw.*batch 9"),
        ({"spreads": {"latency_ms": 0.1}}, 1, "too few labels to calibrate"),
        ({"metrics": ("latency_ms",), "spreads": {"latency_ms": 0.1}}, 1, "its labels had none"),
    ],
)
def test_without_an_interval_of_the_memory_there_is_no_verdict(
    changes: dict[str, Any], batch: int, reason: str, graph: Graph, write_predictor: Any
) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        dippm.fits(graph, batch=[batch], predictor=write_predictor(**changes))
    assert caught.value.code == "prediction.no_interval"


def test_a_network_does_not_search(graph: Graph, write_predictor: Any) -> None:
    with pytest.raises(UnsupportedError, match="need not grow with the batch") as caught:
        dippm.max_batch(graph, predictor=write_predictor())
    assert caught.value.code == "predictor.unsuited"
