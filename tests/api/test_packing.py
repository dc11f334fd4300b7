"""``dippm.pack``: which slices models may have, their names and replicas, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.devices import find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    """Four MiB of activations per sample, and some work."""
    x = builder.input(builder.N, 1024, 1024)
    y = builder.node(OpKind.RELU, [x], builder.N, 1024, 1024)
    builder.node(OpKind.RELU, [y], builder.N, 1024, 1024)
    return builder.graph()


def slices(packing: dippm.ModelPacking) -> Counter[tuple[str, str | None]]:
    return Counter((each.name, each.profile) for gpu in packing.gpus for each in gpu.slices)


@pytest.mark.parametrize("batch", [1, 400, 1000, 2000])
def test_without_a_bound_the_slice_is_the_recommended_one(graph: Graph, batch: int) -> None:
    prediction = dippm.predict(graph, batch=batch)
    packing = dippm.pack([graph], batch=batch)
    assert list(slices(packing)) == [(graph.source, prediction.mig)]
    assert packing.is_optimal


def test_a_model_that_no_slice_holds_takes_the_whole_card(graph: Graph) -> None:
    card = find_device("A100")
    largest = dippm.max_batch(graph, device=card).batch
    prediction = dippm.predict(graph, batch=largest, device=card)
    assert prediction.mig is None
    assert list(slices(dippm.pack([graph], batch=largest))) == [(graph.source, None)]


def test_a_bound_on_the_time_is_kept_on_the_slice(graph: Graph) -> None:
    on_slices = {
        profile.name: dippm.predict(graph, batch=300, device=f"{profile.name}@A100").latency_ms
        for profile in find_device("A100").mig_profiles
    }
    bound = on_slices["3g.20gb"] * 1.01
    packing = dippm.pack([graph], batch=300, latency_ms=bound)
    ((_, profile),) = slices(packing)
    keeping = [name for name, time in on_slices.items() if time <= bound]
    assert profile == keeping[0] != dippm.predict(graph, batch=300).mig
    (model,) = packing.models
    assert model.on_slices[f"{profile}@A100-SXM4-40GB"].latency_ms == on_slices[profile]


def test_every_model_has_its_own_conditions(graph: Graph) -> None:
    packing = dippm.pack(
        [
            dippm.ModelToPack(model=graph, name="a", replicas=3),
            dippm.ModelToPack(model=graph, name="b", batch=1500),
            dippm.ModelToPack(model=graph, precision="amp", batch=100),
        ],
        batch=2,
    )
    assert [model.name for model in packing.models] == ["a", "b", graph.source]
    assert [model.on_cards["A100-SXM4-40GB"].batch for model in packing.models] == [2, 1500, 100]
    precisions = [model.on_cards["A100-SXM4-40GB"].conditions.precision for model in packing.models]
    assert precisions == ["fp32", "fp32", "amp"]
    assert sum(slices(packing).values()) == 5


def test_layout_runtime_software_and_steps_are_those_of_the_model_or_of_the_call(builder: Any) -> None:
    x = builder.input(builder.N, 64)
    for _ in range(2):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(64, 64)], builder.N, 64)
    plain = builder.graph(x)
    nodes = tuple(replace(node, scope=f"layers.{number}.linear") for number, node in enumerate(plain.nodes))
    graph = replace(plain, nodes=nodes)
    packing = dippm.pack(
        [
            dippm.ModelToPack(model=graph, name="a"),
            dippm.ModelToPack(model=graph, name="b", accumulation=2, checkpointing=False, layout="nchw"),
            dippm.ModelToPack(model=graph, name="c", mode="inference", runtime="cuda-graph", software="torch 2.4"),
        ],
        mode="training",
        accumulation=4,
        checkpointing=True,
        layout="nhwc",
    )
    found = [model.on_cards["A100-SXM4-40GB"] for model in packing.models]
    steps = [(each.conditions.accumulation, each.conditions.is_checkpointed) for each in found]
    assert steps == [(4, True), (2, False), (1, False)]
    assert [each.conditions.layout for each in found] == ["nhwc", "nchw", "nhwc"]
    assert [each.conditions.runtime for each in found] == ["eager", "eager", "cuda-graph"]
    assert "2.4" in str(found[2].software) != str(found[0].software)


def test_models_without_a_name_are_told_apart(graph: Graph) -> None:
    packing = dippm.pack([graph, graph, dippm.ModelToPack(model=graph, name=f"{graph.source} #2"), graph])
    names = [model.name for model in packing.models]
    assert len(set(names)) == 4
    assert names[0] == graph.source
    assert dippm.pack([graph, graph], replicas={f"{graph.source} #2": 5}).models[1].replicas == 5


def test_a_fleet_of_several_kinds(graph: Graph) -> None:
    # One batch that an A30 does not hold: it has to go to the A100 of which there is one.
    packing = dippm.pack(
        [
            dippm.ModelToPack(model=graph, name="large", batch=2000),
            dippm.ModelToPack(model=graph, name="small"),
        ],
        device=["A30", "A100"],
        gpus=[1, 1],
    )
    where = {each.name: gpu.device for gpu in packing.gpus for each in gpu.slices}
    assert where == {"large": "A100-SXM4-40GB", "small": "A30"}
    answer = packing.to_dict()
    assert answer["devices"] == [{"device": "A30", "gpus": 1}, {"device": "A100-SXM4-40GB", "gpus": 1}]
    assert answer["optimal"] is True
    assert (answer["gpu_count"], answer["gpu_count_at_least"]) == (2, 2)


def test_what_is_not_vouched_for_is_of_the_cards_in_use(graph: Graph) -> None:
    # The second kind alone holds it.
    packing = dippm.pack([graph], device=["T4", "A100"], batch=2000)
    (model,) = packing.models
    assert set(model.on_cards) == {"Tesla T4", "A100-SXM4-40GB"}
    assert [each.device for each in model.on_chosen_cards] == ["A100-SXM4-40GB"]
    assert model.to_dict()["warnings"] == list(model.on_cards["A100-SXM4-40GB"].warnings)
    both = dippm.pack([graph], device=["T4", "A30"], gpus=[1, 1], replicas={graph.source: 5}).models[0]
    assert [each.device for each in both.on_chosen_cards] == ["Tesla T4", "A30"]


def test_too_few_gpus_are_counted(graph: Graph) -> None:
    with pytest.raises(UnsupportedError, match="need 2 or more A100") as caught:
        dippm.pack([graph], replicas={graph.source: 8}, gpus=1)
    assert caught.value.code == "pack.no_room"
    assert len(dippm.pack([graph], replicas={graph.source: 8}, gpus=2).gpus) == 2


def test_models_that_run_nowhere_are_all_named(graph: Graph) -> None:
    asked = [
        dippm.ModelToPack(model=graph, name="huge", batch=100_000),
        dippm.ModelToPack(model=graph, name="fine"),
        dippm.ModelToPack(model=graph, name="hasty", latency_ms=1e-6),
    ]
    with pytest.raises(UnsupportedError) as caught:
        dippm.pack(asked)
    assert caught.value.code == "pack.too_large"
    message = str(caught.value)
    assert "2 of 3 models" in message
    assert "huge needs" in message
    assert "hasty takes" in message
    assert "fine" not in message


def test_a_card_whose_placements_are_unknown_is_refused(graph: Graph) -> None:
    card = find_device("A30")
    blind = replace(card, mig_profiles=tuple(replace(profile, placements=()) for profile in card.mig_profiles))
    with pytest.raises(UnsupportedError) as caught:
        dippm.pack([graph], device=blind)
    assert caught.value.code == "pack.placements"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"models": []}, "pack.models"),
        ({"gpus": 0}, "pack.gpus"),
        ({"gpus": True}, "pack.gpus"),
        ({"gpus": [1, 2]}, "pack.gpus"),
        ({"device": ["A100", "A30"], "gpus": 2}, "pack.gpus"),
        ({"device": ["A100", "A100"]}, "device.invalid"),
        ({"device": "1g.5gb@A100"}, "device.invalid"),
        ({"latency_ms": 0}, "latency.invalid"),
        ({"latency_ms": float("nan")}, "latency.invalid"),
        ({"replicas": {"other": 2}}, "pack.replicas"),
        ({"batch": 0}, "batch.invalid"),
        ({"mode": "dreaming"}, "mode.unknown"),
        ({"optimizer": "adam"}, "optimizer.unused"),
        ({"lora": 8}, "training.unused"),
        ({"checkpointing": True}, "training.unused"),
        ({"mode": "training", "accumulation": 0}, "accumulation.invalid"),
        ({"layout": "hwcn"}, "layout.unknown"),
        ({"weights": "q4"}, "weights.unknown"),
    ],
)
def test_wrong_use_is_refused(graph: Graph, arguments: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.pack(**({"models": [graph]} | arguments))
    assert caught.value.code == code


@pytest.mark.parametrize("replicas", [0, -1, True, 1.5, 10_001])
def test_wrong_replicas_are_refused(graph: Graph, replicas: Any) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.pack([dippm.ModelToPack(model=graph, replicas=replicas)])
    assert caught.value.code == "pack.replicas"


def test_equal_names_are_refused(graph: Graph) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.pack([dippm.ModelToPack(model=graph, name="a"), dippm.ModelToPack(model=graph, name="a")])
    assert caught.value.code == "pack.name"


def test_a_model_that_comes_often_is_read_once(monkeypatch: pytest.MonkeyPatch, graph: Graph, tmp_path: Path) -> None:
    read: list[object] = []

    def load(model: object, **options: object) -> Graph:
        read.append(model)
        return graph

    monkeypatch.setattr("dippm.api.loading.load", load)
    path = str(tmp_path / "a.onnx")
    dippm.pack([dippm.ModelToPack(model=path, batch=batch) for batch in (1, 2, 3)])
    assert read == [path]
    dippm.pack([dippm.ModelToPack(model=path, mode="inference", input=shape) for shape in ("1", "2")])
    assert read == [path] * 3


def test_a_graph_of_one_batch_is_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, tmp_path: Path
) -> None:
    hints: list[int] = []

    def load(model: object, *, batch_hint: int, **options: object) -> Graph:
        hints.append(batch_hint)
        return replace(graph, fixed_batch=batch_hint, fixed_batch_reason="It was traced so.")

    monkeypatch.setattr("dippm.api.loading.load", load)
    dippm.pack([dippm.ModelToPack(model=str(tmp_path / "a.pt2"), batch=batch) for batch in (1, 1, 2)])
    assert hints == [1, 2]


def test_weights_and_adapters_are_those_of_the_model_or_of_the_call(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 4096), builder.weight(16384, 4096)], n, 16384)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(16384, 16384)], n, 16384))
    given = [dippm.ModelToPack(model=graph, name="whole"), dippm.ModelToPack(model=graph, name="small", weights="nf4")]
    whole, small = (each.on_cards["A100-SXM4-40GB"].memory_parts_mb["weights"] for each in dippm.pack(given).models)
    # The first layer has 32 bits a weight, or 4 and half a bit of scales.
    assert whole - small == pytest.approx(4096 * 16384 * (32 - 4.5) / 8 / 2**20, rel=1e-3)
    steps = [dippm.ModelToPack(model=graph, name="thin", lora=4), dippm.ModelToPack(model=graph, name="wide")]
    thin, wide = dippm.pack(steps, mode="training", lora=512).models
    adapters = [each.on_cards["A100-SXM4-40GB"].conditions.adapters for each in (thin, wide)]
    assert [each.rank for each in adapters if each is not None] == [4, 512]
