import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer, Runtime
from dippm.costs.precision import Precision
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.devices import find_device, load_catalog
from dippm.errors import UnsupportedError
from dippm.graph import MOST_RUNS, DType, Graph, OpKind
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

_OF_HOPPER = "dippm-traced on H100 80GB HBM3, H200"


@pytest.fixture(name="network")
def _network(builder: Any) -> Graph:
    """Two convolutions with batch norm and ReLU, pooling, a linear layer."""
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 3, 64, 64)
    for channels_in, channels in ((3, 64), (64, 64)):
        x = builder.node(OpKind.CONV, [x, builder.weight(channels, channels_in, 3, 3)], n, channels, 64, 64, **square)
        x = builder.node(OpKind.BATCH_NORM, [x, builder.weight(channels)], n, channels, 64, 64)
        x = builder.node(OpKind.RELU, [x], n, channels, 64, 64, alias_of=x)
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, 64, 1, 1, output_size=(1, 1))
    x = builder.node(OpKind.VIEW, [x], n, 64, alias_of=x)
    builder.node(OpKind.LINEAR, [x, builder.weight(1000, 64)], n, 1000)
    return builder.graph()


def predict(
    graph: Graph,
    *,
    batches: list[int],
    devices: list[str],
    software: Software = DEFAULT_SOFTWARE,
    **conditions: Any,
) -> list[Prediction]:
    return PhysicsPredictor.load().predict(
        graph,
        batches=batches,
        devices=[find_device(name) for name in devices],
        conditions=Conditions(**conditions),
        software=software,
    )


def test_all_batches_of_the_first_device_come_first(network: Graph) -> None:
    answers = predict(network, batches=[1, 8], devices=["A100", "T4"])
    assert [(answer.device, answer.batch) for answer in answers] == [
        ("A100-SXM4-40GB", 1), ("A100-SXM4-40GB", 8), ("Tesla T4", 1), ("Tesla T4", 8),
    ]  # fmt: skip


@pytest.mark.parametrize("precision", Precision)
def test_every_figure_grows_with_the_batch_on_every_device(network: Graph, precision: Precision) -> None:
    batches = [1, 2, 3, 5, 8, 16, 31, 64, 128, 500, 1024]
    devices = [device.name for device in load_catalog()]
    answers = predict(network, batches=batches, devices=devices, precision=precision)
    for start in range(0, len(answers), len(batches)):
        for name in ("latency_ms", "energy_j", "memory_mb"):
            figures = [getattr(answer, name) for answer in answers[start : start + len(batches)]]
            assert np.all(np.isfinite(figures))
            # Learned times of next to no work scatter a little around the launch, and the allocator's segments of 2 and
            # 20 MiB can serve a larger batch better.
            slack = 22.0 if name == "memory_mb" else 0.01 * np.array(figures[1:])
            assert np.all(np.diff(figures) >= -slack), (answers[start].device, name)


def test_parts_of_memory_add_up(network: Graph) -> None:
    for answer in predict(network, batches=[1, 64], devices=["A100", "P4"]):
        assert sum(answer.memory_parts_mb.values()) == pytest.approx(answer.memory_mb)
        assert set(answer.memory_parts_mb) == {"context", "weights", "activations", "workspace", "slack"}


def test_intervals_hold_the_prediction(network: Graph) -> None:
    for answer in predict(network, batches=[1, 64], devices=["A100", "RTX 4090"], precision=Precision.AMP):
        for name, (low, high) in answer.intervals.items():
            assert 0 < low < getattr(answer, name) < high


def test_operators_explain_exactly_the_latency(network: Graph) -> None:
    explanation = PhysicsPredictor.load().explain(
        network, batch=16, device=find_device("A100"), conditions=Conditions()
    )
    assert explanation.time_ms.sum() == pytest.approx(explanation.prediction.latency_ms)
    assert explanation.macs.sum() == explanation.prediction.macs
    (same,) = predict(network, batches=[16], devices=["A100"])
    assert same == explanation.prediction


def test_live_memory_of_operators_counts_the_copies_that_the_device_makes(builder: Any) -> None:
    """With TF32 convolutions turn channels last, which a P100 has no units for."""
    x = builder.input(builder.N, 64, 112, 112)
    builder.node(OpKind.CONV, [x, builder.weight(64, 64, 3, 3)], builder.N, 64, 112, 112, padding=(1, 1))
    graph = builder.graph()

    def highest_mb(device: str) -> float:
        explanation = PhysicsPredictor.load().explain(
            graph, batch=8, device=find_device(device), conditions=Conditions()
        )
        parts = explanation.prediction.memory_parts_mb
        most = float(explanation.live_mb.max())
        # What libraries keep is no tensor, and neither is what is reserved beyond need.
        assert most <= parts["weights"] + parts["activations"] + parts["workspace"]
        assert most >= parts["weights"] + parts["activations"]
        return most

    image_mb = 8 * 64 * 112 * 112 * 4 / 2**20
    assert highest_mb("P100") == pytest.approx(2 * image_mb, rel=0.1)
    assert highest_mb("A100") >= 3 * image_mb


def test_an_architecture_with_networks_of_its_own_is_answered_by_them(network: Graph) -> None:
    """Traces of an H200 and an H100 are behind calls and steps of today's libraries on their architecture."""
    step = {"mode": Mode.TRAINING, "optimizer": Optimizer.SGD}

    def answer(device: str = "H200", **changed: Any) -> Prediction:
        (found,) = predict(network, batches=[512], devices=[device], **{"precision": Precision.AMP, **changed})
        return found

    own, other = answer(), answer("H100 PCIe")
    assert {own.predictor.name, other.predictor.name} == {"additive-1"}
    assert all(_OF_HOPPER in found.predictor.labels for found in (own, other))
    assert any("No whole model was measured on H100 PCIe" in warning for warning in other.warnings)
    images_last = {"layout": Layout.NHWC}
    for changed in (
        {},
        images_last,
        step,
        step | images_last,
        {"runtime": Runtime.CUDA_GRAPH},
        {"device": "H100"},
        *({"precision": each} for each in (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)),
    ):
        assert _OF_HOPPER in answer(**changed).predictor.labels
        assert not any("No whole model" in warning for warning in answer(**changed).warnings)
    for changed in ({"runtime": Runtime.COMPILE}, {"software": Software(torch=(2, 3))}):
        assert "dippm" not in answer(**changed).predictor.labels


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.AMP])
@pytest.mark.parametrize("device", ["H20", "H100 PCIe", "H200 NVL"])
def test_networks_of_an_architecture_answer_near_what_they_were_trained_on_in_a_wider_interval(
    network: Graph, device: str, precision: Precision
) -> None:
    """Labels of two cards are behind calls of today's libraries on others of Hopper, and behind no older ones."""
    (answer,) = predict(network, batches=[512], devices=[device], precision=precision)
    assert answer.predictor.name == "additive-1"
    assert _OF_HOPPER in answer.predictor.labels
    assert any(f"No whole model was measured on {device}" in warning for warning in answer.warnings)
    _, high = answer.intervals["latency_ms"]
    # What a card of an architecture is off of which another one was measured.
    assert high / answer.latency_ms >= 1.14
    (older,) = predict(network, batches=[512], devices=[device], precision=precision, software=Software(torch=(2, 3)))
    assert "dippm" not in older.predictor.labels


def test_a_device_without_labels_gets_a_wider_interval_and_a_warning(network: Graph) -> None:
    seen, unseen = predict(network, batches=[512], devices=["RTX 4090", "A100"], precision=Precision.AMP)

    def width(answer: Prediction) -> float:
        low, high = answer.intervals["latency_ms"]
        return high / low

    assert width(unseen) > width(seen)
    assert any("No whole model was measured on A100-SXM4-40GB" in warning for warning in unseen.warnings)
    assert not any("No whole model" in warning for warning in seen.warnings)


def test_an_unknown_operator_widens_the_interval_and_is_named(network: Graph) -> None:
    nodes = tuple(
        replace(node, kind=OpKind.UNKNOWN, source_op="MyOp") if node.kind is OpKind.BATCH_NORM else node
        for node in network.nodes
    )
    strange = replace(network, nodes=nodes, unsupported_ops={"MyOp": 2})
    known, unknown = (predict(graph, batches=[512], devices=["A100"])[0] for graph in (network, strange))
    ratios = [answer.intervals["latency_ms"][1] / answer.latency_ms for answer in (known, unknown)]
    assert ratios[1] > ratios[0]
    assert any("MyOp (2)" in warning for warning in unknown.warnings)
    assert unknown.model.unsupported_ops == {"MyOp": 2}


def test_a_small_batch_says_that_the_host_counts(network: Graph) -> None:
    small, large = predict(network, batches=[1, 4096], devices=["H100"])
    assert any("host" in warning for warning in small.warnings)
    assert not any("waits for the host" in warning for warning in large.warnings)


@pytest.mark.parametrize("device", ["A100", "T4"])
def test_more_batch_never_lowers_an_end_of_the_interval(network: Graph, device: str) -> None:
    """The host's speed is not known; it matters less and less, which makes no call faster."""
    answers = predict(network, batches=[2**power for power in range(14)], devices=[device])
    for end in (0, 1):
        ends = [answer.intervals["latency_ms"][end] for answer in answers]
        assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(ends))
    first, last = (answers[place].intervals["latency_ms"] for place in (0, -1))
    assert first[1] / first[0] > 1.5 * last[1] / last[0]


def test_a_captured_graph_is_faster_at_small_batch(network: Graph) -> None:
    (eager,) = predict(network, batches=[1], devices=["A100"])
    (captured,) = predict(network, batches=[1], devices=["A100"], runtime=Runtime.CUDA_GRAPH)
    assert captured.latency_ms < eager.latency_ms


def test_what_does_not_fit_says_so_and_gets_no_slice(network: Graph) -> None:
    (answer,) = predict(network, batches=[2**20], devices=["A100"])
    assert (answer.mig, answer.mig_name) == (None, "too large")
    assert any("does not fit" in warning for warning in answer.warnings)


def test_cached_memory_that_can_be_given_back_needs_no_larger_slice(network: Graph) -> None:
    largest = find_device("A30").mig_profiles[-1]
    (answer,) = predict(network, batches=[12_500], devices=["A30"], precision=Precision.AMP)
    assert answer.memory_mb is not None
    assert answer.needed_mb is not None
    assert answer.needed_mb[1] < largest.memory_mb < answer.memory_mb
    assert answer.mig == largest.name


def test_a_fixed_batch_is_kept(network: Graph) -> None:
    fixed = replace(network, fixed_batch=4, fixed_batch_reason="It says so.")
    with pytest.raises(UnsupportedError, match="It says so") as caught:
        predict(fixed, batches=[4, 8], devices=["A100"])
    assert caught.value.code == "graph.fixed_batch"
    assert predict(fixed, batches=[4], devices=["A100"])[0].batch == 4


def test_a_mig_slice_is_a_device(network: Graph) -> None:
    whole, part = predict(network, batches=[256], devices=["A100", "1g.5gb@A100"])
    assert part.latency_ms > 2 * whole.latency_ms
    assert (part.mig, part.mig_name) == (None, "is a slice")
    (without,) = predict(network, batches=[256], devices=["T4"])
    assert (without.mig, without.mig_name) == (None, "no MIG")


def test_a_model_that_runs_nothing_is_refused(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    builder.node(OpKind.VIEW, [x], builder.N, 4, alias_of=x)
    with pytest.raises(UnsupportedError) as caught:
        predict(builder.graph(), batches=[1], devices=["A100"])
    assert caught.value.code == "graph.empty"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("runtime", [Runtime.EAGER, Runtime.CUDA_GRAPH, Runtime.COMPILE])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP, Precision.FP16])
def test_operators_without_elements_take_what_the_call_takes(
    builder: Any, precision: Precision, runtime: Runtime
) -> None:
    x = builder.input(builder.N, 4)
    builder.node(OpKind.LINEAR, [x, builder.weight(0, 4)], builder.N, 0)
    devices = ["A100", "RTX 3090", "RTX 4090", "H100"]
    for answer in predict(builder.graph(), batches=[1, 8], devices=devices, precision=precision, runtime=runtime):
        assert 0.0 < answer.latency_ms < 0.2
        assert answer.energy_j > 0.0
        for name, (low, high) in answer.intervals.items():
            assert low <= getattr(answer, name) <= high


def test_a_format_that_a_device_lacks_is_said_and_widens(network: Graph) -> None:
    (lacking,) = predict(network, batches=[512], devices=["T4"], precision=Precision.BF16)
    (having,) = predict(network, batches=[512], devices=["T4"], precision=Precision.FP16)
    (said,) = (warning for warning in lacking.warnings if "no unit for bf16" in warning)
    assert said.endswith("It has one for fp16, which --precision takes.")
    assert not any("no unit" in warning for warning in having.warnings)
    # A P100 has neither.
    (older,) = predict(network, batches=[512], devices=["P100"], precision=Precision.BF16)
    assert any("no unit for bf16" in warning and "for fp16" not in warning for warning in older.warnings)
    ratios = [p.intervals["latency_ms"][1] / p.latency_ms for p in (lacking, having)]
    assert ratios[0] > ratios[1]


def test_a_device_without_tf32_says_so(network: Graph) -> None:
    for device, is_said in (("T4", True), ("A100", False)):
        (answer,) = predict(network, batches=[8], devices=[device], precision=Precision.TF32)
        assert any("no unit for tf32: this is FP32" in warning for warning in answer.warnings) is is_said


def test_autocast_is_named_by_its_format_where_a_device_lacks_it(network: Graph) -> None:
    (answer,) = predict(network, batches=[8], devices=["T4"], precision=Precision.AMP_BF16)
    assert any("no unit for bf16:" in warning for warning in answer.warnings)


def test_what_was_measured_in_eager_alone_is_less_sure_elsewhere(network: Graph) -> None:
    (eager,) = predict(network, batches=[4096], devices=["A100"])
    (captured,) = predict(network, batches=[4096], devices=["A100"], runtime=Runtime.CUDA_GRAPH)
    widths = [p.intervals["latency_ms"][1] / p.latency_ms for p in (eager, captured)]
    assert widths[1] > widths[0]


def test_casts_draw_energy(network: Graph) -> None:
    from dippm.predictors.prepared_graph import CompiledGraphs, PreparedGraphs

    conditions = Conditions(precision=Precision.AMP)
    prepared = PreparedGraphs.of(
        CompiledGraphs.of([network], conditions, DEFAULT_SOFTWARE), batches=[8], conditions=conditions
    )
    nodes = (prepared.at.bytes_read + prepared.at.bytes_written).sum()
    assert prepared.traffic_bytes.sum() > nodes


def test_operators_without_measurements_widen_the_interval_and_are_named(builder: Any) -> None:
    x = builder.input(builder.N, 100_000)
    builder.node(OpKind.SORT, [x], builder.N, 100_000)
    (answer,) = predict(builder.graph(), batches=[512], devices=["A100"])
    _, high = answer.intervals["latency_ms"]
    assert high / answer.latency_ms > math.sqrt(7.0)
    assert any("sort" in warning for warning in answer.warnings)


def test_a_training_step_takes_longer_and_holds_gradients_and_state(network: Graph) -> None:
    training = {"mode": Mode.TRAINING, "optimizer": Optimizer.ADAM}
    (forward,) = predict(network, batches=[64], devices=["A100"])
    (step,) = predict(network, batches=[64], devices=["A100"], **training)
    assert step.step_time_ms == step.latency_ms > 2 * forward.latency_ms
    assert step.macs > 2 * forward.macs
    assert step.energy_j > 2 * forward.energy_j
    parts = step.memory_parts_mb
    assert list(parts) == ["context", "weights", "gradients", "optimizer", "activations", "workspace", "slack"]
    assert sum(parts.values()) == pytest.approx(step.memory_mb)
    assert parts["optimizer"] == pytest.approx(2 * parts["weights"], rel=0.01)


def test_steps_whose_gradients_are_added_take_as_many_times_as_long(network: Graph) -> None:
    training = {"mode": Mode.TRAINING, "optimizer": Optimizer.SGD}
    (one,) = predict(network, batches=[64], devices=["A100"], **training)
    (four,) = predict(network, batches=[64], devices=["A100"], **training, accumulation=4)
    assert 3.5 * one.latency_ms < four.latency_ms < 4.5 * one.latency_ms
    assert four.memory_mb >= one.memory_mb


def test_an_optimizer_that_nobody_measured_is_named(network: Graph) -> None:
    answers = {
        optimizer: predict(network, batches=[8], devices=["RTX 3090"], mode=Mode.TRAINING, optimizer=optimizer)[0]
        for optimizer in (Optimizer.MOMENTUM, Optimizer.ADAMW)
    }
    named = {optimizer: any("adamw" in text for text in answer.warnings) for optimizer, answer in answers.items()}
    assert named == {Optimizer.MOMENTUM: False, Optimizer.ADAMW: True}


_OLD = Software(torch=(1, 12), cuda=(11, 3))


def test_older_software_holds_more_beside_tensors(network: Graph) -> None:
    today, old = (
        predict(network, batches=[8], devices=["RTX 3090"], software=software)[0]
        for software in (DEFAULT_SOFTWARE, _OLD)
    )
    assert old.memory_parts_mb["context"] == pytest.approx(1708)
    assert old.memory_parts_mb["weights"] == today.memory_parts_mb["weights"]
    # Each call of a convolution looked for its kernel before PyTorch 2.0.
    assert old.latency_ms > today.latency_ms
    assert (today.software, old.software) == (DEFAULT_SOFTWARE, _OLD)


def test_what_is_held_beside_tensors_is_less_sure_where_it_was_not_measured(network: Graph) -> None:
    measured, elsewhere = predict(
        network, batches=[8], devices=["RTX 3090", "A100"], software=_OLD, mode=Mode.TRAINING,
        optimizer=Optimizer.MOMENTUM, precision=Precision.AMP,
    )  # fmt: skip

    def doubt(answer: Prediction) -> float:
        low, high = answer.intervals["memory_mb"]
        return high - low

    assert doubt(elsewhere) > doubt(measured) + 1000


def test_gradients_stay_before_two(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 1000)
    for _ in range(4):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1000, 1000)], n, 1000)
        x = builder.node(OpKind.GELU, [x], n, 1000)
    graph = builder.graph(x)
    before, since = (
        predict(
            graph, batches=[2048], devices=["A100"], mode=Mode.TRAINING, optimizer=Optimizer.MOMENTUM,
            software=Software(torch=torch, cuda=(11, 7)),
        )[0].memory_parts_mb
        for torch in ((1, 13), (2, 0))
    )  # fmt: skip
    assert before["context"] == since["context"]
    assert before["gradients"] == pytest.approx(4 * 4e6 / 2**20)
    assert since["gradients"] < before["gradients"] / 2


def test_attention_writes_its_scores_before_two(builder: Any) -> None:
    n = builder.N
    query, key, value = (builder.input(n, 8, 1024, 64) for _ in range(3))
    builder.node(OpKind.ATTENTION, [query, key, value], n, 8, 1024, 64)
    graph = builder.graph()
    before, since = (
        predict(graph, batches=[16], devices=["A100"], software=Software(torch=torch, cuda=(11, 7)))[0]
        for torch in ((1, 13), (2, 0))
    )
    scores_mb = 16 * 8 * 1024 * 1024 * 4 / 2**20
    assert before.memory_parts_mb["activations"] > since.memory_parts_mb["activations"] + scores_mb
    assert before.latency_ms > since.latency_ms
    assert before.model == since.model
    # The graph is kept with the software that it was laid out for.
    assert predict(graph, batches=[16], devices=["A100"])[0].memory_mb < before.memory_mb


def test_software_is_named_where_it_is_not_the_default(network: Graph) -> None:
    (plain,) = predict(network, batches=[8], devices=["RTX 4090"])
    assert not any("torch" in warning for warning in plain.warnings)
    (labelled,) = predict(network, batches=[8], devices=["RTX 4090"], software=Software(torch=(2, 4)))
    assert "It holds for torch 2.4." in labelled.warnings
    (other,) = predict(network, batches=[8], devices=["RTX 4090"], software=_OLD)
    assert any("torch 1.12+cu113" in warning and "measured with torch 2.4" in warning for warning in other.warnings)


def test_no_interval_on_an_unmeasured_card_is_narrower_than_what_was_seen_on_one_left_out(network: Graph) -> None:
    """The network's correction is trusted less on a sibling of the measured cards, least on another architecture."""

    def width(name: str, **changes: Any) -> float:
        conditions = Conditions(precision=Precision.AMP, **changes)
        (answer,) = PhysicsPredictor.load().predict(
            network, batches=[4096], devices=[find_device(name)], conditions=conditions
        )
        assert answer.predictor.name == "additive-1"
        return math.log(answer.intervals["latency_ms"][1] / answer.latency_ms)

    sibling, other = width("A10"), width("T4")
    assert sibling >= 0.14
    assert other >= 0.26
    # Of compiled models one card was measured: no other was ever left out.
    assert width("RTX 3090", runtime=Runtime.COMPILE) >= 0.26


@pytest.mark.parametrize(
    "changes", [{"precision": Precision.FP32}, {"precision": Precision.TF32}, {"layout": Layout.NHWC}], ids=str
)
def test_what_no_network_knows_of_compiled_models_is_summed(network: Graph, changes: dict[str, Any]) -> None:
    predictor, device = PhysicsPredictor.load(), find_device("A100")
    eager, compiled = (
        predictor.predict(network, batches=[4096], devices=[device], conditions=Conditions(runtime=runtime, **changes))[
            0
        ]
        for runtime in (Runtime.EAGER, Runtime.COMPILE)
    )
    assert compiled.predictor.name == eager.predictor.name == "physics-0"
    assert compiled.latency_ms < eager.latency_ms
    narrow, wide = (math.log(each.intervals["latency_ms"][1] / each.latency_ms) for each in (eager, compiled))
    assert wide == pytest.approx(math.hypot(narrow, 0.27), abs=0.01)


def test_compiled_convolutions_cost_the_same_however_their_images_are_asked_for(network: Graph) -> None:
    """The compiler turns them to channels last itself."""
    nchw, nhwc = (
        predict(network, batches=[1, 256], devices=["RTX 4090"], precision=Precision.AMP, runtime=Runtime.COMPILE,
                layout=layout)
        for layout in Layout
    )  # fmt: skip
    assert [answer.predictor.name for answer in (*nchw, *nhwc)] == ["additive-1"] * 4
    assert [answer.latency_ms for answer in nhwc] == [answer.latency_ms for answer in nchw]
    assert nhwc[-1].intervals["latency_ms"][1] > nchw[-1].intervals["latency_ms"][1]


def test_compiled_convolutions_in_groups_are_not_turned(builder: Any) -> None:
    n = builder.N
    grouped = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 32}
    x = builder.input(n, 64, 32, 32)
    for _ in range(3):
        x = builder.node(OpKind.CONV, [x, builder.weight(64, 2, 3, 3)], n, 64, 32, 32, **grouped)
    (answer,) = predict(
        builder.graph(), batches=[256], devices=["RTX 4090"], precision=Precision.AMP, runtime=Runtime.COMPILE,
        layout=Layout.NHWC,
    )  # fmt: skip
    assert answer.predictor.name == "physics-0"


@pytest.mark.parametrize("name", ["RTX 3090", "A100", "H100", "T4"])
@pytest.mark.parametrize("precision", [Precision.AMP, Precision.FP32])
def test_a_compiled_step_is_the_eager_one_less_what_fusion_saves(
    network: Graph, name: str, precision: Precision
) -> None:
    """Where networks correct the eager step, both are corrected by the same factor."""
    predictor, device = PhysicsPredictor.load(), find_device(name)
    eager, compiled = (
        predictor.predict(
            network,
            batches=[1024, 4096],
            devices=[device],
            conditions=Conditions(
                mode=Mode.TRAINING, optimizer=Optimizer.SGD, runtime=runtime, precision=precision, layout=Layout.NHWC
            ),
        )
        for runtime in (Runtime.EAGER, Runtime.COMPILE)
    )
    for slow, fast in zip(eager, compiled, strict=True):
        assert 0.3 * slow.latency_ms < fast.latency_ms < slow.latency_ms
        assert slow.memory_parts_mb["weights"] == fast.memory_parts_mb["weights"]
        assert fast.memory_mb < slow.memory_mb
        low, high = fast.intervals["memory_mb"]
        assert low < 0.95 * fast.memory_mb
        assert high > 1.05 * fast.memory_mb
        low, high = fast.intervals["latency_ms"]
        assert math.log(high / fast.latency_ms) >= 0.27
        assert low < fast.latency_ms
        assert any("No compiled training step was measured" in warning for warning in fast.predictor.warnings)


def test_a_compiled_step_is_explained_by_its_kernels(network: Graph) -> None:
    conditions = Conditions(
        mode=Mode.TRAINING, optimizer=Optimizer.ADAM, runtime=Runtime.COMPILE, precision=Precision.AMP, accumulation=2
    )
    explained = PhysicsPredictor.load().explain(network, batch=256, device=find_device("A100"), conditions=conditions)
    assert explained.time_ms.sum() == pytest.approx(explained.prediction.latency_ms)
    assert len(set(explained.kernel.tolist())) < len(explained.kernel)


def test_software_that_cannot_run_is_refused(network: Graph) -> None:
    with pytest.raises(UnsupportedError, match=r"CUDA 11\.8") as caught:
        predict(network, batches=[1], devices=["A100", "H100"], software=Software(torch=(1, 13)))
    assert caught.value.code == "software.impossible"


def test_a_release_still_to_come_is_said(network: Graph) -> None:
    (prediction,) = predict(network, batches=[1], devices=["A100"], software=Software(torch=(9, 9)))
    assert any("newer than any release" in warning for warning in prediction.warnings)


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"precision": Precision.AMP},
        {"precision": Precision.AMP, "runtime": Runtime.COMPILE},
        {"precision": Precision.AMP, "mode": Mode.TRAINING, "optimizer": Optimizer.MOMENTUM},
        {"precision": Precision.AMP, "runtime": Runtime.COMPILE, "layout": Layout.NHWC},
        {"mode": Mode.TRAINING, "optimizer": Optimizer.ADAM},
        {"mode": Mode.TRAINING, "optimizer": Optimizer.ADAM, "runtime": Runtime.COMPILE, "layout": Layout.NHWC},
    ],
    ids=str,
)
def test_several_graphs_get_what_each_gets(
    network: Graph, builder: Any, conditions: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than are laid out together, of three kinds.
    monkeypatch.setattr("dippm.predictors.prepared_graph._AT_ONCE", 200)
    x = builder.input(builder.N, 30)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(700, 30), builder.weight(700)], builder.N, 700)
    builder.node(OpKind.LAYER_NORM, [x, builder.weight(700)], builder.N, 700, axes=(1,))
    wide = builder.graph()
    graphs = [network, *([wide, replace(network, source="other", has_lifetimes=False)] * 7)]
    question = {
        "batches": [1, 48],
        "devices": [find_device(name) for name in ("A100", "RTX 4090")],
        "conditions": Conditions(**conditions),
    }
    predictor = PhysicsPredictor.load()
    together = predictor.predict_each(graphs, **question)
    assert len(together) == len(graphs)
    alone = {graph.source: predictor.predict(graph, **question) for graph in (network, graphs[2])}
    alone_wide = predictor.predict(wide, **question)
    for place, (graph, answers) in enumerate(zip(graphs, together, strict=True)):
        expected = alone_wide if place % 2 else alone[graph.source]
        for answer, same in zip(answers, expected, strict=True):
            assert answer.model == same.model
            for name in ("latency_ms", "energy_j", "memory_mb"):
                assert getattr(answer, name) == pytest.approx(getattr(same, name), rel=1e-6)
                assert answer.intervals[name] == pytest.approx(same.intervals[name], rel=1e-6)
            rounded = {"latency_ms": 0.0, "energy_j": 0.0, "intervals": {}}
            assert replace(answer, **rounded) == replace(same, **rounded)


def test_graphs_are_laid_out_together_up_to_a_size(network: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, seen = PhysicsPredictor.load(), []
    prepare = predictor._prepare

    def count(graphs: list[Graph], **question: Any) -> Any:
        seen.append(len(graphs))
        return prepare(graphs, **question)

    monkeypatch.setattr(predictor, "_prepare", count)
    monkeypatch.setattr("dippm.predictors.prepared_graph._AT_ONCE", 5 * len(network.nodes))
    graphs = [replace(network) for _ in range(7)]
    for batches, sizes in (([1], [5, 2]), ([1, 2], [2, 2, 2, 1]), (list(range(1, 10)), [1] * 7)):
        seen.clear()
        predictor.predict_each(graphs, batches=batches, devices=[find_device("A100")], conditions=Conditions())
        assert seen == sizes


def test_of_several_graphs_none_is_kept(network: Graph) -> None:
    predictor = PhysicsPredictor.load()
    several = [replace(network) for _ in range(3)]
    predictor.predict_each(
        several, batches=[1], devices=[find_device("RTX 3090")], conditions=Conditions(precision=Precision.AMP)
    )
    kept = [member.source for compiled in predictor._recent for member in compiled.members]
    assert not any(graph is held for graph in several for held in kept)


def test_a_compiled_step_keeps_the_scores_of_a_large_vocabulary_in_sixteen_bits(builder: Any) -> None:
    """Scores and their gradient, 2 bytes each; before torch 2.4 also zeros of 4 for the loss, and the softmax of 2."""
    words, batch = 50_000, 4096
    x = builder.input(builder.N, 64)
    builder.node(OpKind.LINEAR, [x, builder.weight(words, 64)], builder.N, words)
    graph = builder.graph()
    before, after = (
        predict(
            graph,
            batches=[batch],
            devices=["A100"],
            software=Software.parse(f"torch {release}"),
            precision=Precision.AMP_BF16,
            mode=Mode.TRAINING,
            runtime=Runtime.COMPILE,
            optimizer=Optimizer.SGD,
        )[0].memory_parts_mb["activations"]
        for release in ("2.3", "2.8")
    )
    assert after == pytest.approx((2 + 2) * words * batch / 2**20, rel=0.03)
    assert before == pytest.approx((2 + 2 + 4) * words * batch / 2**20, rel=0.03)


def test_todays_software_is_told_to_drive_no_card_before_turing(network: Graph) -> None:
    old, new = predict(network, batches=[8], devices=["V100", "T4"])
    dropped = [[text for text in each.predictor.warnings if "CUDA 13" in text] for each in (old, new)]
    assert (len(dropped[0]), dropped[1]) == (1, [])
    (named,) = predict(network, batches=[8], devices=["V100"], software=Software.parse("torch 2.13+cu126"))
    assert not any("CUDA 13" in text for text in named.predictor.warnings)
    assert [str(each.software) for each in (old, new)] == ["torch 2.13+cu126", "torch 2.13+cu130"]
    assert "torch 2.13+cu126" in dropped[0][0]
    # It is the same answer, told without the reason.
    assert set(old.predictor.warnings) - set(dropped[0]) == set(named.predictor.warnings)
    assert (old.memory_mb, old.latency_ms, old.software) == (named.memory_mb, named.latency_ms, named.software)


def test_todays_release_without_its_cuda_is_no_other_software(network: Graph) -> None:
    today, named = (
        predict(network, batches=[8], devices=["A100"], software=software)[0]
        for software in (DEFAULT_SOFTWARE, replace(DEFAULT_SOFTWARE, cuda=None))
    )
    assert named.predictor.warnings == today.predictor.warnings
    assert named.latency_ms == today.latency_ms


def test_old_software_says_what_is_known_of_its_time(network: Graph) -> None:
    (old,) = predict(network, batches=[8], devices=["A100"], software=Software.parse("torch 1.12"))
    assert any("looking for convolutions" in text for text in old.predictor.warnings)
    waits = "CUDA before 11.8, which is assumed; no other factor is known."
    for given, precision, is_said in (
        ("torch 2.0", Precision.FP16, True),
        ("torch 2.0+cu118", Precision.FP16, False),
        ("torch 2.0", Precision.FP32, False),
    ):
        (answer,) = predict(network, batches=[8], devices=["A100"], precision=precision, software=Software.parse(given))
        assert any(text.endswith(waits) for text in answer.predictor.warnings) is is_said


@pytest.mark.parametrize("device", ["H100", "A100"])
def test_a_model_in_16_bits_has_one_answer_whatever_32_bits_it_is_asked_for_in(builder: Any, device: str) -> None:
    n, half = builder.N, DType.FLOAT16
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 64, 28, 28, dtype=half)
    for _ in range(3):
        x = builder.node(
            OpKind.CONV, [x, builder.weight(64, 64, 3, 3, dtype=half)], n, 64, 28, 28, dtype=half, **square
        )
    graph = builder.graph()
    answers = [
        predict(graph, batches=[64], devices=[device], precision=precision, runtime=Runtime.CUDA_GRAPH)[0]
        for precision in (Precision.FP32, Precision.FP32_STRICT, Precision.TF32)
    ]
    assert len({(answer.latency_ms, answer.energy_j) for answer in answers}) == 1
    assert answers[1].intervals == answers[0].intervals
    assert answers[1].warnings == answers[0].warnings


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("is_open", [True, False])
def test_intervals_are_open_above_where_a_loop_may_run_more_often(builder: Any, mode: Mode, *, is_open: bool) -> None:
    """A training step's backward nodes belong to the loop as their forward nodes do."""
    n, mark = builder.N, {MOST_RUNS: 1000.0} if is_open else {}
    x = builder.input(n, 1024)
    for _ in range(4):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1024, 1024)], n, 1024, **mark)
    optimizer = Optimizer.MOMENTUM if mode is Mode.TRAINING else None
    (answer,) = predict(builder.graph(), batches=[4096], devices=["A100"], mode=mode, optimizer=optimizer)
    for name, figure in (("latency_ms", answer.latency_ms), ("energy_j", answer.energy_j)):
        low, high = answer.intervals[name]
        assert figure is not None
        assert low < figure
        assert high > 500 * figure if is_open else high < 10 * figure
    assert any("1,000 times the loop's part" in warning for warning in answer.predictor.warnings) == is_open


def test_only_the_part_of_a_loop_is_open(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 4096)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], n, 4096)
    builder.node(OpKind.RELU, [x], n, 4096, **{MOST_RUNS: 1000.0})
    (answer,) = predict(builder.graph(), batches=[4096], devices=["A100"])
    high = answer.intervals["latency_ms"][1]
    assert 5 * answer.latency_ms < high < 200 * answer.latency_ms
