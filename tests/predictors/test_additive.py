from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dippm.costs.captured_time import waited_us
from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.software import Software
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError
from dippm.features.physical import COLUMNS, PhysicalPlan
from dippm.graph import DType, Graph, OpKind
from dippm.models.additive import AdditiveNetwork
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import AdditiveArtefact, Regime

_DEVICE = find_device("RTX 3090")


_COMPILED = Regime(mode=Mode.INFERENCE, runtime=Runtime.COMPILE)


def _make(
    *regimes: Mode | Regime,
    members: int = 2,
    correction: float = 0.3,
    own: dict[str, AdditivePredictor] | None = None,
    **changes: Any,
) -> AdditivePredictor:
    tensors = {
        "scale.mean": np.zeros(len(COLUMNS), np.float32),
        "scale.factor": np.ones(len(COLUMNS), np.float32),
        "novelty.mean": np.zeros(len(COLUMNS), np.float32),
        "novelty.basis": np.eye(len(COLUMNS), 2, dtype=np.float32),
        "novelty.known": np.zeros((3, 2), np.float32),
    }
    for member in range(members):
        torch.manual_seed(member)
        network = AdditiveNetwork(inputs=len(COLUMNS), width=8)
        torch.nn.init.normal_(network.output.weight, std=correction)
        tensors |= {f"member{member}.{name}": values.numpy() for name, values in network.state_dict().items()}
    artefacts = []
    for each in regimes:
        regime = each if isinstance(each, Regime) else Regime(mode=each)
        values: dict[str, Any] = {
            "mode": regime.mode,
            "runtime": regime.runtime,
            "columns": COLUMNS,
            "members": members,
            "rates": Rates(),
            "distances": (0.5, 1.0),
            "half_widths": (0.1, 0.2),
            "measured": {"devices": [_DEVICE.name], "precisions": ["amp"], "layouts": ["nchw"]},
            "test": {},
            "settings": {},
            "provenance": {},
        }
        artefacts.append((AdditiveArtefact(**{**values, **changes}), tensors))
    return AdditivePredictor(artefacts, load_kernel_model(), own=own or {})


def _plan(graph: Graph, software: str) -> KernelPlan:
    work = Workload.from_graph(graph, Precision.AMP)
    return KernelPlan.from_workload(work, software=Software.parse(software))


@pytest.fixture(name="network")
def _network(builder: Any) -> Graph:
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 3, 64, 64)
    for channels_in, channels in ((3, 64), (64, 64), (64, 64)):
        x = builder.node(OpKind.CONV, [x, builder.weight(channels, channels_in, 3, 3)], n, channels, 64, 64, **square)
        x = builder.node(OpKind.RELU, [x], n, channels, 64, 64)
    x = builder.node(OpKind.GLOBAL_POOL, [x], n, 64, 1, 1, output_size=(1, 1))
    x = builder.node(OpKind.VIEW, [x], n, 64, alias_of=x, function="view")
    return builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(10, 64)], n, 10))


def test_shares_add_up_to_the_prediction(network: Graph) -> None:
    predictor = _make(Mode.INFERENCE)
    times = predictor.break_down(network, [1, 64, 512], _DEVICE, Conditions(precision=Precision.AMP))
    assert times.share_ms.shape == (3, len(network.nodes))
    assert (times.share_ms >= 0).all()
    assert times.share_ms.sum(axis=1).tolist() == times.latency_ms.tolist()
    assert (
        predictor.predict_ms(network, [1, 64, 512], _DEVICE, Conditions(precision=Precision.AMP)).tolist()
        == times.latency_ms.tolist()
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_kernels_that_are_known_give_the_same(network: Graph, mode: Mode) -> None:
    conditions = Conditions(precision=Precision.AMP, mode=mode)
    step = make_training_graph(network, TrainingSettings(precision=Precision.AMP)) if mode is Mode.TRAINING else None
    if step is None:
        kernels = KernelPlan.from_workload(Workload.from_graph(network, Precision.AMP))
    else:
        work = Workload.from_graph(step.graph, step.precision)
        kernels = KernelPlan.from_workload(work, is_backward=step.phase == Phase.BACKWARD)
    predictor = _make(mode)
    expected = predictor.break_down(network if step is None else step, [4, 256], _DEVICE, conditions)
    phase, repeats = (None, np.ones(len(network.nodes))) if step is None else (step.phase, step.times)
    physical = PhysicalPlan.from_kernels(kernels, phase=phase, times=repeats)
    at = kernels.work.at([4, 256])
    (times,) = predictor.break_down_kernels(physical, at, _DEVICE, conditions, host=Rates())
    assert times.share_ms.tolist() == expected.share_ms.tolist()
    assert times.busy_ms.tolist() == expected.busy_ms.tolist()


def test_batches_do_not_know_each_other(network: Graph) -> None:
    predictor = _make(Mode.INFERENCE)
    together = predictor.predict_ms(network, [4, 256], _DEVICE, Conditions())
    alone = [float(predictor.predict_ms(network, [batch], _DEVICE, Conditions())[0]) for batch in (4, 256)]
    assert together.tolist() == pytest.approx(alone, rel=1e-5)


def test_large_batches_are_bound_by_the_device_and_small_ones_by_the_host(network: Graph) -> None:
    predictor = _make(Mode.INFERENCE, correction=0.0)
    small, large = (predictor.break_down(network, [batch], _DEVICE, Conditions()) for batch in (1, 1024))
    assert small.busy_ms.sum() < 0.5 * small.latency_ms[0]
    assert large.busy_ms.sum() > 0.95 * large.latency_ms[0]
    captured = predictor.predict_ms(network, [1], _DEVICE, Conditions(runtime=Runtime.CUDA_GRAPH))
    assert captured[0] == pytest.approx(small.busy_ms.sum() + 0.02)


def test_accumulation_repeats_all_but_the_update(network: Graph) -> None:
    predictor = _make(Mode.TRAINING)
    once, thrice = (
        predictor.break_down(
            make_training_graph(network, TrainingSettings(precision=Precision.AMP, accumulation=count)),
            [256],
            _DEVICE,
            Conditions(precision=Precision.AMP, mode=Mode.TRAINING),
        )
        for count in (1, 3)
    )
    assert thrice.latency_ms[0] == pytest.approx(3 * once.latency_ms[0], rel=0.05)


def test_one_network_of_one_mode_does_not_answer_for_the_other(network: Graph) -> None:
    predictor = _make(Mode.TRAINING)
    with pytest.raises(UnsupportedError) as caught:
        predictor.predict_ms(network, [1], _DEVICE, Conditions())
    assert caught.value.code == "additive.regime"
    with pytest.raises(UnsupportedError) as caught:
        predictor.predict_ms(network, [1], _DEVICE, Conditions(mode=Mode.TRAINING))
    assert caught.value.code == "additive.graph"


def test_compiled_models_have_networks_of_their_own(network: Graph) -> None:
    conditions = Conditions(precision=Precision.AMP, runtime=Runtime.COMPILE)
    with pytest.raises(UnsupportedError) as caught:
        _make(Mode.INFERENCE).predict_ms(network, [1], _DEVICE, conditions)
    assert caught.value.code == "additive.regime"
    both = _make(Mode.INFERENCE, _COMPILED)
    assert both.artefact(conditions).regime == _COMPILED
    assert both.predict_ms(network, [256], _DEVICE, conditions)[0] > 0.0


@pytest.mark.parametrize(
    ("device", "changes", "covered", "measured"),
    [
        ("RTX 3090", {}, True, True),
        ("RTX 3090", {"precision": Precision.AMP_BF16}, True, False),
        ("V100", {}, True, False),
        ("V100", {"precision": Precision.AMP_BF16}, False, False),
        ("H100", {}, True, False),
        ("P100", {}, False, False),
        ("RTX 3090", {"precision": Precision.FP32}, False, False),
        ("RTX 3090", {"layout": Layout.NHWC}, False, False),
        ("RTX 3090", {"runtime": Runtime.CUDA_GRAPH}, True, False),
        ("RTX 3090", {"runtime": Runtime.COMPILE}, False, False),
        ("RTX 3090", {"mode": Mode.TRAINING}, False, False),
    ],
)
def test_what_the_networks_answer_for(device: str, changes: dict[str, Any], covered: bool, measured: bool) -> None:
    predictor = _make(Mode.INFERENCE)
    conditions = Conditions(**{"precision": Precision.AMP, **changes})
    assert predictor.covers(find_device(device), conditions) is covered
    assert predictor.is_measured(find_device(device), conditions) is measured


def test_a_card_is_a_sibling_only_of_several() -> None:
    card, conditions = find_device("A10"), Conditions(precision=Precision.AMP)
    assert not _make(Mode.INFERENCE).is_sibling(card, conditions)
    measured = {"devices": [_DEVICE.name, "GeForce RTX 4090"], "precisions": ["amp"], "layouts": ["nchw"]}
    both = _make(Mode.INFERENCE, measured=measured)
    assert both.is_sibling(card, conditions)
    assert not both.is_sibling(find_device("A100"), conditions)


def test_corrections_fade_behind_what_was_calibrated_where_the_architecture_is_not_known(network: Graph) -> None:
    known, unknown = _DEVICE, find_device("A100")
    plain = _make(Mode.INFERENCE, correction=0.0)
    near, far = (_make(Mode.INFERENCE, distances=(0.1, last)) for last in (1e6, 1e-6))
    conditions = Conditions(precision=Precision.AMP)

    def busy_ms(predictor: AdditivePredictor, device: DeviceSpec) -> list[float]:
        return list(predictor.break_down(network, [4, 256], device, conditions).busy_ms.ravel())

    assert busy_ms(far, unknown) == pytest.approx(busy_ms(plain, unknown), rel=1e-6)
    assert busy_ms(near, unknown) != pytest.approx(busy_ms(plain, unknown), rel=1e-2)
    assert busy_ms(far, known) == busy_ms(near, known) != pytest.approx(busy_ms(plain, known), rel=1e-2)


def test_the_architecture_of_a_single_card_is_known() -> None:
    alone, conditions = _make(Mode.INFERENCE), Conditions(precision=Precision.AMP)
    assert alone.knows_architecture(find_device("A10"), conditions)
    assert not alone.knows_architecture(find_device("A100"), conditions)


def test_a_better_card_is_the_slowest_whose_architecture_has_networks(network: Graph) -> None:
    conditions, shipped = Conditions(precision=Precision.AMP), AdditivePredictor.load()
    plan = _plan(network, "torch 2.11")
    known = shipped.of_better_card(find_device("A100"), conditions, plan)
    assert known is not None
    networks, card = known
    assert card.name == "H100 80GB HBM3"
    assert networks is shipped.on(card, conditions, plan)
    pcie = shipped.of_better_card(find_device("A100-PCIE-40GB"), conditions, plan)
    assert pcie is not None
    assert pcie[1].name == "H100 PCIe"
    # It has a higher clock; there are no networks of compiled models; cuDNN 8 has other kernels.
    assert shipped.of_better_card(find_device("RTX 5090"), conditions, plan) is None
    compiled = Conditions(precision=Precision.AMP, runtime=Runtime.COMPILE)
    assert shipped.of_better_card(find_device("A100"), compiled, plan) is None
    assert shipped.of_better_card(find_device("A100"), conditions, _plan(network, "torch 2.1")) is None


def test_halves_are_alike(network: Graph) -> None:
    predictor = _make(Mode.INFERENCE)
    times = [
        float(predictor.predict_ms(network, [256], _DEVICE, Conditions(precision=precision))[0])
        for precision in (Precision.AMP, Precision.AMP_BF16)
    ]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("dtype", [DType.COMPLEX64, DType.COMPLEX128, DType.FLOAT64])
def test_types_that_no_model_of_the_training_has_keep_the_time_of_their_kernels(builder: Any, dtype: DType) -> None:
    x, weight = builder.input(builder.N, 512, 512, dtype=dtype), builder.weight(512, 512, dtype=dtype)
    graph = builder.graph(builder.node(OpKind.MATMUL, [x, weight], builder.N, 512, 512, dtype=dtype))
    conditions = Conditions(precision=Precision.AMP)
    plain, corrected = (
        _make(Mode.INFERENCE, correction=size).break_down(graph, [64], _DEVICE, conditions) for size in (0.0, 0.3)
    )
    assert corrected.busy_ms.tolist() == plain.busy_ms.tolist()


def test_an_architecture_is_answered_by_its_own_networks_where_they_were_trained(network: Graph) -> None:
    hopper = _make(Mode.INFERENCE)
    predictor = _make(Mode.INFERENCE, Mode.TRAINING, own={"9.0": hopper})
    amp, step = Conditions(precision=Precision.AMP), Conditions(precision=Precision.AMP, mode=Mode.TRAINING)
    work = Workload.from_graph(network, Precision.AMP)
    today, before = KernelPlan.from_workload(work), KernelPlan.from_workload(work, software=Software.parse("torch 2.3"))
    h200 = find_device("H200")
    assert predictor.on(h200, amp, today) is hopper
    assert predictor.on(h200, replace(amp, runtime=Runtime.CUDA_GRAPH), today) is hopper
    for device, conditions, kernels in (
        (_DEVICE, amp, today),
        (h200, step, today),
        (h200, Conditions(precision=Precision.TF32), today),
        (h200, replace(amp, layout=Layout.NHWC), today),
        (h200, replace(amp, runtime=Runtime.COMPILE), today),
        (h200, amp, before),
    ):
        assert predictor.on(device, conditions, kernels) is predictor


@pytest.mark.parametrize("runtimes", [[], ["eager", "cuda-graph"]])
def test_captured_calls_count_as_measured_where_they_were(runtimes: list[str]) -> None:
    measured = {"devices": [_DEVICE.name], "precisions": ["amp"], "layouts": ["nchw"], "runtimes": runtimes}
    predictor = _make(Mode.INFERENCE, measured=measured)
    captured = Conditions(precision=Precision.AMP, runtime=Runtime.CUDA_GRAPH)
    assert predictor.is_measured(_DEVICE, captured) is bool(runtimes)
    assert predictor.is_measured(_DEVICE, replace(captured, runtime=Runtime.EAGER))


@pytest.mark.parametrize(("architectures", "more", "wait_us"), [(("9.0",), 1.009, 1.0), ((), 1.0, None)])
def test_calls_take_longer_than_the_least_that_networks_of_an_architecture_learned(
    architectures: tuple[str, ...], more: float, wait_us: float | None, network: Graph
) -> None:
    def break_down(runtime: str, architectures: tuple[str, ...]) -> LatencyBreakdown:
        conditions = Conditions.parse(precision="amp", runtime=runtime)
        return _make(Mode.INFERENCE, architectures=architectures).break_down(network, [8], _DEVICE, conditions)

    def busy_us(runtime: str, architectures: tuple[str, ...]) -> np.ndarray[Any, Any]:
        return 1e3 * break_down(runtime, architectures).busy_ms[0]

    kernels = KernelPlan.from_workload(Workload.from_graph(network, Precision.AMP))
    launched = (~kernels.work.sizes.is_kind(OpKind.VIEW)).astype(np.float64)
    # Casts of autocast are kernels too.
    np.add.at(launched, kernels.work.types.casts.node, 1.0)
    assert launched.min() == 0.0
    assert launched.max() > 1.0
    least_us, captured_us, eager_us = (
        busy_us("cuda-graph", ()),
        busy_us("cuda-graph", architectures),
        busy_us("eager", architectures),
    )
    assert captured_us == pytest.approx(more * least_us)
    waits_us = 0.0 if wait_us is None else wait_us - waited_us(captured_us / np.maximum(launched, 1.0))
    assert eager_us - captured_us == pytest.approx(waits_us * launched, abs=1e-6)
    paused_us = 1e3 * np.broadcast_to(break_down("eager", architectures).paused_ms, (1, len(launched)))[0]
    assert paused_us == pytest.approx(waits_us * launched, abs=1e-6)
    assert not np.any(break_down("cuda-graph", architectures).paused_ms)
