from __future__ import annotations

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


def test_fit_follows_the_memory(graph: Graph) -> None:
    verdicts = [dippm.fits(graph, device="1g.5gb@A100", batch=batch).verdict for batch in (1, 5000)]
    assert verdicts == ["yes", "no"]


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


def test_software_changes_the_verdict(graph: Graph) -> None:
    batch = dippm.max_batch(graph, device="A100").batch
    old = {"software": "torch 1.12+cu113"}
    assert dippm.fits(graph, device="A100", batch=batch).verdict == "yes"
    answer = dippm.fits(graph, device="A100", batch=batch, **old)
    assert answer.verdict != "yes"
    assert answer.to_dict()["software"] == "torch 1.12+cu113"


@pytest.mark.parametrize("ask", [dippm.fits, dippm.max_batch])
def test_software_that_is_not_known_is_refused(graph: Graph, ask: Any) -> None:
    with pytest.raises(UsageError, match="torch latest") as caught:
        ask(graph, device="A100", software="torch latest")
    assert caught.value.code == "software.unknown"


def test_an_a100_where_no_device_is_named(graph: Graph) -> None:
    assert dippm.fits(graph, batch=3) == dippm.fits(graph, batch=3, device="A100")


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


def test_json_says_what_the_verdict_holds_for_and_rests_on(graph: Graph) -> None:
    answer = dippm.fits(graph, device="T4", batch=3, precision="amp", software="torch 1.12+cu113")
    said: Any = answer.to_dict()["prediction"]
    assert said == answer.prediction.to_dict()
    assert (said["precision"], said["mode"], said["batch"], said["software"]) == (
        "amp", "inference", 3, "torch 1.12+cu113",
    )  # fmt: skip
    assert said["predictor"]["version"]
    assert any("torch 1.12+cu113" in warning for warning in said["predictor"]["warnings"])


def test_an_answer_prints_as_its_prediction_does(graph: Graph) -> None:
    answer = dippm.fits(graph, device="1g.5gb@A100", batch=8, prices={"1g.5gb@A100": 2.0})
    predicted = str(answer.prediction).splitlines()
    title, *rows = str(answer).splitlines()
    assert title == predicted[0]
    assert [row.split()[0] for row in rows[:5]] == ["fits", "memory", "has", "margin", "price:"]
    assert rows[0].split() == ["fits", "yes"]
    assert rows[1] == predicted[3]
    assert rows[2].split() == ["has", "4,864", "MiB"]
    assert rows[3].split() == ["margin", f"{answer.margin_mb:+,.0f}", "MiB"]
    assert rows[4].endswith("for a million samples, 2 for an hour")
    assert rows[5:] == [f"  ! {warning}" for warning in answer.prediction.warnings]
