"""Mixtures of experts in one operator: the work of the chosen experts alone."""

from __future__ import annotations

import numpy as np
import pytest

import dippm
from dippm.graph import OpKind

WIDTH, INNER, EXPERTS = 16, 24, 4


def stack(rows: int, columns: int) -> np.ndarray:
    return np.zeros((EXPERTS, rows, columns), np.float32)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("is_turned", [False, True])
def test_each_token_meets_the_experts_that_it_chooses(one, shapes, k: int, is_turned: bool) -> None:
    first, second = (INNER, WIDTH), (WIDTH, INNER)
    weights = {"a": stack(*first), "b": stack(*second)}
    if is_turned:
        weights = {name: each.transpose(0, 2, 1) for name, each in weights.items()}
    inputs = {"x": ["N", WIDTH], "r": ["N", EXPERTS]}
    graph = one("MoE", "x r a - b", inputs=inputs, weights=weights, domain="com.microsoft", k=k)
    assert graph.unsupported_ops == {}
    assert shapes(graph) == [["N", str(WIDTH)]]
    assert graph.parameter_count == 2 * EXPERTS * WIDTH * INNER
    assert dippm.predict(graph, batch=5, device="A100").macs == 5 * k * 2 * WIDTH * INNER


@pytest.mark.parametrize(
    ("names", "weights", "attributes", "products"),
    [
        ("x r a - b - c", {"a": stack(INNER, WIDTH), "c": stack(INNER, WIDTH)}, {"activation_type": "silu"}, 3),
        ("x r a - b", {"a": stack(2 * INNER, WIDTH)}, {"activation_type": "swiglu", "swiglu_fusion": 1}, 3),
        ("x r a - b", {"a": stack(INNER, WIDTH)}, {"activation_type": "identity"}, 2),
    ],
)
def test_gates_are_part_of_the_work(one, names: str, weights: dict, attributes: dict, products: int) -> None:
    inputs = {"x": ["N", WIDTH], "r": ["N", EXPERTS]}
    weights = weights | {"b": stack(WIDTH, INNER)}
    graph = one("MoE", names, inputs=inputs, weights=weights, domain="com.microsoft", k=2, **attributes)
    assert dippm.predict(graph, batch=1, device="A100").macs == 2 * products * WIDTH * INNER
    kinds = [node.kind for node in graph.nodes]
    assert (OpKind.SILU in kinds) is (products == 3)


@pytest.mark.parametrize(
    ("attributes", "bits", "is_old"),
    [
        ({}, 4, False),
        ({"expert_weight_bits": 8}, 8, False),
        ({"expert_weight_bits": 8, "fc2_expert_weight_bits": 4, "fc1_expert_weight_bits": 4}, 4, False),
        ({"quant_type": "fp4"}, 4, False),
        ({"quant_type": "fp8"}, 8, False),
        ({}, 4, True),
    ],
)
def test_packed_experts_are_those_of_the_model_that_they_were_made_from(one, attributes, bits, is_old) -> None:
    first, second = ((WIDTH, INNER), (INNER, WIDTH)) if is_old else ((INNER, WIDTH), (WIDTH, INNER))
    each = 8 // bits
    weights = {
        "a": np.zeros((EXPERTS, first[0], first[1] // each), np.uint8),
        "b": np.zeros((EXPERTS, second[0], second[1] // each), np.uint8),
        "s": np.ones((EXPERTS, INNER), np.float32),
        "t": np.ones((EXPERTS, WIDTH), np.float32),
        "c": np.zeros((EXPERTS, INNER), np.float32),
    }
    inputs = {"x": ["N", WIDTH], "r": ["N", EXPERTS]}
    graph = one("QMoE", "x r a s c b t", inputs=inputs, weights=weights, domain="com.microsoft", k=2, **attributes)
    assert graph.unsupported_ops == {}
    assert graph.parameter_count == EXPERTS * (2 * WIDTH * INNER + INNER)
    assert [node.kind for node in graph.nodes].count(OpKind.DEQUANTIZE) == 2
    answer = dippm.predict(graph, batch=5, device="A100")
    assert answer.macs == 5 * 2 * 2 * WIDTH * INNER


@pytest.mark.parametrize(
    ("change", "said"), [({"k": 5}, "5 of 4 experts"), ({"a": stack(INNER, 17)}, "columns meet weights")]
)
def test_what_does_not_fit_is_refused(refused, change: dict, said: str) -> None:
    weights = {"a": change.pop("a", stack(INNER, WIDTH)), "b": stack(WIDTH, INNER)}
    inputs = {"x": ["N", WIDTH], "r": ["N", EXPERTS]}
    assert said in refused("MoE", "x r a - b", inputs=inputs, weights=weights, domain="com.microsoft", **change)


def test_packed_experts_of_other_bits_are_refused(refused) -> None:
    weights = {"a": np.zeros((EXPERTS, INNER, WIDTH), np.uint8), "s": np.ones((EXPERTS, INNER), np.float32)}
    inputs = {"x": ["N", WIDTH], "r": ["N", EXPERTS]}
    said = refused(
        "QMoE", "x r a s - a s", inputs=inputs, weights=weights, domain="com.microsoft", expert_weight_bits=3
    )
    assert "2, 4 or 8 bits" in said
