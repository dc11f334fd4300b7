"""What a prediction says that it cannot vouch for; the rest is tested where predictions are."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import dippm
from dippm.costs.conditions import Conditions, Runtime
from dippm.costs.kernels.model import load_kernel_model
from dippm.devices import find_device
from dippm.frontends.quantised_weights import parse_weight_format, store_weights
from dippm.graph import DType, Graph, OpKind, TensorRole
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.physics_warnings import warn_of_answer

_ROOM = find_device("A100").capacity_mb


@pytest.mark.parametrize(
    ("runtime", "busy_share", "copying_share", "interval_mb", "beginnings"),
    [
        ("cuda-graph", 0.8, 0.0, (0.0, _ROOM), ()),
        ("cuda-graph", 0.4, 0.0, (0.0, _ROOM), ("The launch of the captured graph is 60 % of the time.",)),
        ("eager", 1.0, 0.04, (0.0, _ROOM), ()),
        ("eager", 0.79, 0.0, (0.0, _ROOM), ("The device waits for the host 21 %",)),
        ("eager", 0.8, 0.0, (_ROOM, _ROOM + 1), ("It may not fit",)),
        ("eager", 0.5, 0.0, (_ROOM + 1, _ROOM + 2), ("The device waits for the host 50 %", "It does not fit")),
        ("eager", 1.0, 0.283, (0.0, _ROOM), ("28 % of the time goes to copying the cache",)),
        ("eager", 1.0, 0.0, (0.0, _ROOM), ()),
    ],
)
def test_what_follows_from_an_answer(
    builder: Any,
    runtime: str,
    busy_share: float,
    copying_share: float,
    interval_mb: tuple[float, float],
    beginnings: tuple[str, ...],
) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
    graph, device = builder.graph(), find_device("A100")
    warnings = warn_of_answer(
        graph,
        1,
        device,
        runtime=Runtime(runtime),
        busy_share=busy_share,
        copying_share=copying_share,
        head_share=0.09,
        needed_mb=interval_mb,
    )
    assert len(warnings) == len(beginnings)
    assert all(warning.startswith(beginning) for warning, beginning in zip(warnings, beginnings, strict=True))


@pytest.mark.parametrize(("device", "runtime", "said"), [
    ("H100", "eager", [False, True]), ("H100", "cuda-graph", [False, True]), ("H100", "compile", [False, False]),
    ("A100", "eager", [False, False]),
])  # fmt: skip
def test_heads_that_are_taken_to_run_as_plain_sums_are_told_of(
    builder: Any, device: str, runtime: str, said: list[bool]
) -> None:
    n = builder.N
    settings = {"kernel": (7, 7), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.RELU, [builder.input(n, 512, 7, 7)], n, 512, 7, 7)
    builder.node(OpKind.CONV, [x, builder.weight(4096, 512, 7, 7)], n, 4096, 1, 1, **settings)
    predictions = PhysicsPredictor.load().predict(
        builder.graph(),
        batches=[8, 16],
        devices=[find_device(device)],
        conditions=Conditions.parse(precision="amp", runtime=runtime),
    )
    assert [any("7 x 7 convolution" in warning for warning in each.warnings) for each in predictions] == said


@pytest.mark.parametrize(
    ("width", "role", "mode", "said"),
    [
        (1024, TensorRole.PARAMETER, "training", ["No gradient reaches 4 MiB of weights, 'unread' among them"]),
        (256, TensorRole.PARAMETER, "training", []),
        (1024, TensorRole.BUFFER, "training", []),
        (1024, TensorRole.PARAMETER, "inference", []),
    ],
)
def test_weights_that_get_no_gradient_are_told_of(
    builder: Any, width: int, role: TensorRole, mode: str, said: list[str]
) -> None:
    weight = builder.weight(width, width, role=role)
    builder.tensors[weight] = replace(builder.tensors[weight], name="unread")
    builder.weight(2)
    warnings = dippm.predict(_linear(builder, width=64), device="A100", mode=mode).warnings
    assert [warning.partition(":")[0] for warning in warnings if "gradient reaches" in warning] == said


def test_copies_of_a_cache_are_told_from_other_concatenations(builder: Any) -> None:
    past = builder.tensor(builder.N, 4096, 64, role=TensorRole.CACHE)
    token = builder.input(builder.N, 2048, 64)
    kept = builder.node(OpKind.CONCAT, [past, token], builder.N, 6144, 64)
    builder.tensors[kept] = replace(builder.tensors[kept], role=TensorRole.CACHE)
    builder.node(OpKind.CONCAT, [token, token], builder.N, 4096, 64)
    answer = PhysicsPredictor.load().explain(
        builder.graph(), batch=64, device=find_device("A100"), conditions=Conditions.parse()
    )
    share = answer.time_ms[0] / answer.prediction.latency_ms
    assert 0.4 < share < 0.8
    said = [warning for warning in answer.prediction.warnings if "copying the cache" in warning]
    assert [warning.partition(" ")[0] for warning in said] == [f"{100 * share:.0f}"]


@pytest.mark.parametrize(
    ("device", "is_said"),
    [
        ("T4", True), ("L4", True), ("A10", True), ("L40S", True),
        ("A100-SXM4-80GB", False), ("H100", False), ("RTX 4090", False), ("RTX 3090", False),
        # What the power was fitted on.
        ("A100-PCIE-40GB", False), ("A100-SXM4-40GB", False), ("A40", False), ("GTX 1080 Ti", False),
        ("Quadro RTX 6000", False), ("P100-PCIE-16GB", False), ("V100-PCIE-32GB", False),
    ],
)  # fmt: skip
def test_a_board_that_is_said_to_be_always_at_its_limit_says_so(builder: Any, device: str, is_said: bool) -> None:
    answer = dippm.predict(_linear(builder, width=4096), batch=65536, device=device)
    said = f"Energy takes {answer.device} to draw its power limit in every kernel that fills it: no measurement "
    said += "confirms that."
    assert (said in answer.warnings) is is_said
    # What the power rests on is said beside it, and first.
    if is_said:
        assert answer.warnings[answer.warnings.index(said) - 1].startswith("Energy comes from")
        assert answer.energy_j is not None
        limit_j = find_device(device).board_power_w * answer.latency_ms / 1e3
        assert answer.energy_j == pytest.approx(limit_j, rel=0.02)


def test_a_board_whose_own_power_was_measured_is_not_said_to_be_at_its_limit(builder: Any) -> None:
    shipped, device = Calibration.read(), find_device("T4")
    fitted = replace(shipped, power_devices=(device.name,))
    said = []
    for calibration in (shipped, fitted):
        predictor = PhysicsPredictor(
            calibration, load_kernel_model(), training=calibration, additive=AdditivePredictor.load()
        )
        (answer,) = predictor.predict(
            _linear(builder, width=64), batches=[8], devices=[device], conditions=Conditions()
        )
        said.append(sum(warning.startswith("Energy ") for warning in answer.warnings))
    assert said == [2, 0]


def _linear(builder: Any, *, width: int) -> Graph:
    builder.node(OpKind.LINEAR, [builder.input(builder.N, width), builder.weight(width, width)], builder.N, width)
    return builder.graph()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("stored", "precision", "is_said"),
    [
        (DType.FLOAT32, "bf16", True),
        (DType.FLOAT32, "fp16", True),
        (DType.FLOAT32, "amp", False),
        (DType.FLOAT32, "fp32", False),
        (DType.BFLOAT16, "bf16", False),
    ],
)
def test_a_reading_in_fp32_does_not_show_what_stays_so(
    builder: Any, stored: DType, precision: str, is_said: bool
) -> None:
    value, weight = builder.input(builder.N, 8, dtype=stored), builder.weight(8, 8, dtype=stored)
    builder.node(OpKind.LINEAR, [value, weight], builder.N, 8, dtype=stored)
    graph = builder.graph()
    for mode, keeps in product(("inference", "training"), (True, False)):
        warnings = dippm.predict(replace(graph, keeps_fp32_parts=keeps), precision=precision, mode=mode).warnings
        assert any("was read in float32" in warning for warning in warnings) is (keeps and is_said)


@pytest.mark.parametrize(
    ("device", "framework", "is_of_library", "said"),
    [
        ("H100", "pytorch", True, "kernels of FP8 may be faster."),
        ("H100", "onnx", False, "kernels of FP8 may be faster."),
        (
            "A100",
            "pytorch",
            True,
            "transformers, where it loads them, makes them bfloat16, which takes twice the memory.",
        ),
        ("A100", "pytorch", False, "what runs the model may make them 16 bits wide, which takes twice the memory."),
        ("A100", "onnx", False, "what runs the ONNX file may make them 16 bits wide, which takes twice the memory."),
        ("A100", "tensorflow", False, "what runs the model may make them 16 bits wide, which takes twice the memory."),
    ],
)
def test_weights_in_fp8_are_told(builder: Any, device: str, framework: str, is_of_library: bool, said: str) -> None:
    value, weight = builder.input(builder.N, 8, dtype=DType.BFLOAT16), builder.weight(8, 8, dtype=DType.FLOAT8)
    builder.node(OpKind.LINEAR, [value, weight], builder.N, 8, dtype=DType.BFLOAT16)
    graph = replace(builder.graph(), framework=framework, keeps_fp32_parts=is_of_library)
    (told,) = [warning for warning in dippm.predict(graph, device=device).warnings if "FP8" in warning]
    assert told.endswith(said)


@pytest.mark.parametrize(
    ("device", "stored", "said"),
    [
        ("H100", DType.FLOAT8, "No measurement stands behind the time of products in FP8."),
        ("A100", DType.FLOAT8, "has no rate of FP8: such products are timed as BF16."),
        ("H100", DType.INT8, None),
        ("A100", DType.BFLOAT16, None),
    ],
)
def test_products_in_fp8_are_told(builder: Any, device: str, stored: DType, said: str | None) -> None:
    value, weight = builder.input(builder.N, 8, dtype=stored), builder.weight(8, 8, dtype=stored)
    builder.node(OpKind.LINEAR, [value, weight], builder.N, 8, dtype=DType.BFLOAT16)
    (told,) = [[w for w in dippm.predict(builder.graph(), device=device).warnings if "FP8" in w]]
    assert len(told) == (said is not None)
    assert said is None or told[0].endswith(said)


@pytest.mark.parametrize(
    ("stored", "precision", "software", "said"),
    [
        (DType.FLOAT32, "amp", None, "run in FP32"),
        (DType.FLOAT32, "amp", "torch 2.5", "run in FP32"),
        (DType.FLOAT32, "amp", "torch 2.4", None),
        (DType.FLOAT32, "fp16", None, "are taken to run in fp16"),
        (DType.FLOAT32, "fp16", "torch 2.4", None),
        # A model that was read in its 16 bits has PyTorch's casts in its graph.
        (DType.FLOAT16, "fp16", None, "run in FP32"),
        (DType.FLOAT32, "fp32", None, None),
    ],
)
def test_attention_that_pytorch_computes_in_fp32_is_told(
    builder: Any, stored: DType, precision: str, software: str | None, said: str | None
) -> None:
    value, weight = builder.input(builder.N, 3, 4, 16, 16), builder.weight(16, 16, dtype=stored)
    value = builder.node(OpKind.LINEAR, [value, weight], builder.N, 3, 4, 16, 16)
    for _ in range(2):
        value = builder.node(OpKind.MATMUL, [value, value], builder.N, 3, 4, 16, 16, is_raised=True)
    given = {"software": software} if software else {}
    (answer,) = dippm.predict_each([builder.graph()], batch=4, device="RTX 3090", precision=precision, **given)
    told = [warning for warning in answer.warnings if "products of attention" in warning]
    assert len(told) == (said is not None)
    assert all(warning.startswith(f"2 products of attention {said}") for warning in told)


def _layers(builder: Any) -> Graph:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 2048), builder.weight(2048, 2048)], n, 2048)
    return builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(1024, 2048)], n, 1024))  # type: ignore[no-any-return]


def _said(graph: Graph, *words: str, **options: Any) -> list[bool]:
    warnings = dippm.predict(graph, **options).warnings
    return [any(word in warning for warning in warnings) for word in words]


def test_packed_weights_are_told_with_what_their_time_rests_on(builder: Any) -> None:
    graph = _layers(builder)
    words = ("stored as uint4: what their library takes", "and every product reads them so", "has them unpacked")
    assert _said(graph, *words) == [False, False, False]
    assert _said(graph, *words, weights="nf4") == [True, False, False]
    awq = parse_weight_format({"quant_method": "awq", "bits": 4, "group_size": 128})
    assert awq is not None
    assert _said(store_weights(graph, awq), *words) == [False, True, False]
    assert _said(store_weights(graph, awq), *words, mode="training", lora=4) == [False, False, True]


def test_a_cache_that_grows_beside_unpacked_weights_is_told(builder: Any, new_builder: Any) -> None:
    n = builder.N
    assert _said(_layers(new_builder()), "The memory is that of one token", weights="nf4") == [False]
    _layers(builder)
    cache = builder.weight(n, 7, 64, role=TensorRole.CACHE)
    builder.node(OpKind.CONCAT, [cache, builder.input(n, 1, 64)], n, 8, 64)
    graph = builder.graph()
    for weights, is_told in (("nf4", True), (None, False), ("fp8", False)):
        assert _said(graph, "The memory is that of one token", weights=weights) == [is_told]


def test_a_step_of_adapters_says_what_it_takes_for_granted(builder: Any) -> None:
    graph = _layers(builder)
    # The last layer, 2 Mi weights, has 16 bits and would have 32.
    words = ("no dropout", "makes them float32, which takes 4 MiB more")
    training: dict[str, Any] = {"mode": "training", "precision": "bf16"}
    assert _said(graph, *words, **training) == [False, False]
    assert _said(graph, *words, **training, lora=4) == [True, False]
    assert _said(graph, *words, **training, lora=4, weights="nf4") == [True, True]
    assert _said(graph, *words, mode="training", lora=4, weights="nf4") == [True, False]
    ends = [
        dippm.predict(graph, **training, lora=4, weights=each, optimizer="sgd").intervals["memory_mb"]
        for each in ("nf4", None)
    ]
    assert ends[0][1] - ends[0][0] == pytest.approx(ends[1][1] - ends[1][0] + 4.0, abs=1.0)


def test_copies_of_weights_are_no_longer_kept_under_inference_mode(builder: Any) -> None:
    x = builder.input(builder.N, 2048)
    for _ in range(8):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(2048, 2048)], builder.N, 2048)
    graph = builder.graph()
    # A copy takes 8 MiB in 16 bits.
    words = ("Memory is that under torch.inference_mode", "takes up to 64 MiB more")
    before, since = (dippm.predict(graph, precision="amp", software=each) for each in ("torch 2.10", "torch 2.11"))
    assert before.memory_parts_mb["activations"] - since.memory_parts_mb["activations"] == pytest.approx(7 * 8, abs=0.1)
    assert before.memory_mb - since.memory_mb >= 40
    calibration = Calibration.read()
    loose = sum(since.memory_parts_mb[part] for part in ("activations", "workspace", "slack"))
    above_mb = calibration.context_margins_mb(find_device(since.device), since.software)[1] + loose * (
        math.exp(calibration.memory_spread) - 1.0
    )
    assert since.intervals["memory_mb"][1] == pytest.approx(since.memory_mb + above_mb + 64.0)
    assert _said(graph, *words, precision="amp") == [True, True]
    for options in (
        {"precision": "amp", "software": "torch 2.10"},
        {"precision": "amp", "mode": "training"},
        {"precision": "amp", "runtime": "compile"},
        {"precision": "fp16"},
        {},
    ):
        assert _said(graph, *words, **options) == [False, False]


def test_a_mask_of_booleans_is_no_quantised_weight(builder: Any) -> None:
    n = builder.N
    mask = builder.weight(2048, dtype=DType.BOOL, role=TensorRole.BUFFER)
    x = builder.node(OpKind.LINEAR, [builder.input(n, 2048), builder.weight(2048, 2048)], n, 2048)
    x = builder.node(OpKind.MUL, [x, mask], n, 2048)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(1024, 2048)], n, 1024))
    assert _said(graph, "prepare_model_for_kbit_training", mode="training", precision="bf16", lora=4) == [False]


@pytest.mark.parametrize("rank", [2, 256])
def test_adapters_in_fp32_do_not_make_a_model_of_16_bits_one_of_32(builder: Any, rank: int) -> None:
    x = builder.input(builder.N, 64, dtype=DType.BFLOAT16)
    for width in (64, 8):
        weight = builder.weight(width, 64, dtype=DType.BFLOAT16)
        x = builder.node(OpKind.LINEAR, [x, weight], builder.N, width, dtype=DType.BFLOAT16)
    packed = dippm.load(builder.graph(), weights="nf4")
    step = dippm.predict(packed, mode="training", lora=rank, device="T4")
    assert step.conditions.precision == "bf16"
    assert any("runs in bfloat16" in warning for warning in step.warnings)


def test_experts_without_adapters_are_told_where_all_layers_are_asked_for(builder: Any) -> None:
    n, words = builder.N, "as one tensor get no adapter"
    x, layer = builder.input(n, 4, 64), builder.weight(64, 64)
    builder.tensors[layer] = replace(builder.tensors[layer], name="q_proj.weight")
    x = builder.node(OpKind.RELU, [builder.node(OpKind.LINEAR, [x, layer], n, 4, 64)], n, 4, 64)
    y = builder.node(OpKind.CONCAT, [x, x], n, 8, 64)
    assert _said(builder.graph(y), words, mode="training", lora=4) == [False]
    y = builder.node(OpKind.MATMUL, [x, builder.weight(4, 64, 64)], n, 4, 64)
    assert _said(builder.graph(y), words, mode="training", lora=4) == [True]
    assert _said(builder.graph(y), words, mode="training", lora="4:q_proj") == [False]


@pytest.mark.parametrize("device", ["A100-SXM4-40GB", "3g.20gb@A100-SXM4-40GB", "H100", "1g.10gb@H100", "A40"])
def test_what_the_power_was_fitted_on_is_not_told_of_other_boards(builder: Any, device: str) -> None:
    warnings = dippm.predict(_linear(builder, width=512), batch=64, device=device).warnings
    assert not any(warning.startswith("Energy comes from") for warning in warnings)


def test_how_many_boards_the_power_was_fitted_on(builder: Any) -> None:
    warnings = dippm.predict(_linear(builder, width=512), batch=64, device="L4").warnings
    count = len(Calibration.read().power_devices)
    assert f"Energy comes from a power model fitted on runs of {count} other boards." in warnings


@pytest.mark.parametrize(("precision", "has_cure"), [("fp32", False), ("amp", False), ("bf16", True)])
def test_a_part_that_asks_for_a_format_without_units_is_told_of(builder: Any, precision: str, has_cure: bool) -> None:
    n = builder.N
    builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(8, 8)], n, 8, lowers_to="bfloat16")
    answer = PhysicsPredictor.load().explain(
        builder.graph(), batch=4, device=find_device("T4"), conditions=Conditions.parse(precision=precision)
    )
    (said,) = (text for text in answer.prediction.warnings if "no unit for bf16" in text)
    # Another precision changes nothing where the model itself names the format.
    assert ("--precision" in said) is has_cure
