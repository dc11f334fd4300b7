"""Operators that networks leave the plain sum's time."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.precision import MATRIX_KINDS, Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.devices import find_device
from dippm.features.physical import PhysicalPlan
from dippm.graph import DType, Graph, OpKind
from dippm.predictors.unseen_kernels import is_emulated, is_unseen


def _layer(builder: Any, *, dtype: DType = DType.FLOAT32, **attributes: Any) -> Graph:
    x, weight = builder.input(builder.N, 8, dtype=dtype), builder.weight(8, 8, dtype=dtype)
    y = builder.node(OpKind.LINEAR, [x, weight], builder.N, 8, dtype=dtype, **attributes)
    return builder.graph(builder.node(OpKind.RELU, [y], builder.N, 8, dtype=dtype))  # type: ignore[no-any-return]


def _unseen(graph: Graph, precision: Precision, *, knows_fp32: bool = False) -> list[bool]:
    physical = PhysicalPlan.from_graph(graph, precision)
    return is_unseen(physical, knows_fp32=knows_fp32)[physical.class_of].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        (DType.FLOAT32, Precision.AMP, False),
        (DType.FLOAT64, Precision.AMP, True),
        (DType.FLOAT64, Precision.FP16, False),  # it is converted
        (DType.COMPLEX64, Precision.FP16, True),
    ],
)
def test_types_as_they_are_run(builder: Any, dtype: DType, precision: Precision, expected: bool) -> None:
    assert _unseen(_layer(builder, dtype=dtype), precision) == [expected, expected]


def test_products_that_are_kept_from_the_only_autocast_that_is_known(new_builder: Any) -> None:
    kept = _layer(new_builder(), is_uncast=True)
    assert _unseen(kept, Precision.AMP) == [True, False]
    assert _unseen(kept, Precision.AMP, knows_fp32=True) == [False, False]


def test_gradients_of_such_products_are_as_unseen_as_they_and_no_others(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(8, 8)], n, 8, is_uncast=True)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(16, 8)], n, 16)
    builder.node(OpKind.MATMUL, [x, builder.weight(16, 32)], n, 32, is_raised=True)
    step = make_training_graph(builder.graph(), TrainingSettings(precision=Precision.AMP))
    physical = PhysicalPlan.from_graph(step, Precision.AMP)
    unseen = is_unseen(physical, knows_fp32=False)[physical.class_of]
    products = [
        (step.graph.tensors[node.outputs[0]].dtype, bool(own))
        for node, own in zip(step.graph.nodes, unseen, strict=True)
        if node.kind in MATRIX_KINDS
    ]
    # Forward: kept, cast, raised; then two gradients of each but the first, whose input has none.
    full, half = DType.FLOAT32, DType.FLOAT16
    assert products[:3] == [(full, True), (half, False), (full, False)]
    assert products[-1] == (full, True)
    assert not any(own for _, own in products[3:-1])


def test_a_wide_recurrent_layer(builder: Any) -> None:
    n, hidden = builder.N, 256
    sizes = {"hidden_size": hidden, "num_layers": 1, "num_directions": 1, "batch_first": True}
    builder.node(OpKind.LSTM, [builder.input(n, 4, 8)], n, 4, hidden, **sizes)
    assert _unseen(builder.graph(), Precision.AMP) == [True]


@pytest.mark.parametrize(
    ("kernel", "groups", "expected"), [(11, 64, False), (13, 64, True), (13, 1, False), (3, 64, False)]
)
@pytest.mark.parametrize("is_training", [False, True])
def test_wide_filters_of_one_channel_each(
    builder: Any, kernel: int, groups: int, expected: bool, is_training: bool
) -> None:
    n, weight = builder.N, builder.weight(64, 64 // groups, kernel)
    x = builder.node(OpKind.RELU, [builder.input(n, 64, 100)], n, 64, 100)
    builder.node(
        OpKind.CONV, [builder.node(OpKind.LINEAR, [x, builder.weight(100, 100)], n, 64, 100), weight], n, 64, 100,
        groups=groups, kernel=(kernel,), stride=(1,), dilation=(1,), padding=(kernel // 2,),
    )  # fmt: skip
    graph = builder.graph()
    step = make_training_graph(graph, TrainingSettings(precision=Precision.AMP)) if is_training else graph
    physical = PhysicalPlan.from_graph(step, Precision.AMP)
    unseen = is_unseen(physical, knows_fp32=False)[physical.class_of]
    nodes = step.graph.nodes if is_training else step.nodes
    kinds = {str(node.kind) for node, own in zip(nodes, unseen, strict=True) if own}
    own_kinds = {"conv", "conv_transpose", "conv_weight_grad"} if is_training else {"conv"}
    assert kinds == (own_kinds if expected else set())


@pytest.mark.parametrize(
    ("device", "own", "expected"), [("T4", True, True), ("T4", False, False), ("A100", True, False)]
)
def test_products_in_bf16_without_units_for_it(builder: Any, device: str, own: bool, expected: bool) -> None:
    graph = _layer(builder, **({"lowers_to": "bfloat16"} if own else {}))
    physical = PhysicalPlan.from_graph(graph, Precision.AMP)
    assert is_emulated(physical, find_device(device))[physical.class_of].tolist() == [expected, False]


@pytest.mark.parametrize(("knows_fp32", "expected"), [(False, {OpKind.SCATTER}), (True, set())])
def test_the_gradient_of_a_table_beside_runs_of_image_models(
    builder: Any, knows_fp32: bool, expected: set[OpKind]
) -> None:
    n = builder.N
    rows = builder.node(
        OpKind.EMBEDDING, [builder.weight(1000, 64), builder.input(n, 10, dtype=DType.INT64)], n, 10, 64
    )
    builder.node(OpKind.LINEAR, [rows, builder.weight(8, 64)], n, 10, 8)
    step = make_training_graph(builder.graph(), TrainingSettings(precision=Precision.AMP))
    physical = PhysicalPlan.from_graph(step, Precision.AMP)
    unseen = is_unseen(physical, knows_fp32=knows_fp32)[physical.class_of]
    assert {node.kind for node, own in zip(step.graph.nodes, unseen, strict=True) if own} == expected
