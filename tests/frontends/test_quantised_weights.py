"""Weights in few bits: what their configuration says, and what a graph then holds and reads."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs import Precision, Workload
from dippm.frontends.quantised_weights import WeightFormat, parse_weight_format, store_weights
from dippm.graph import DType, Graph, OpKind, TensorRole

_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("settings", "dtype", "bits"),
    [
        # 4 bits, and 16 + 4 for each group.
        (_AWQ, DType.UINT4, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, DType.UINT4, 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, DType.UINT8, 8.0),
        ({"quant_method": "gptq", "bits": 2, "group_size": 64}, DType.UINT2, 2 + 18 / 64),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, DType.UINT4, 4.5),
        # Published for double quantisation: 0.127 bits.
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            DType.UINT4,
            4.127,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, DType.INT8, 8.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, DType.FLOAT8, 8 + 32 / 16384),
        ({"quant_method": "fp8"}, DType.FLOAT8, 8 + 32 / 16384),
        ({"quant_method": "mxfp4"}, DType.UINT4, 4.25),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}},
                    "b": {"weights": {"num_bits": 8, "type": "float", "group_size": None}},
                },
            },
            DType.FLOAT8,
            8.0,
        ),
    ],
)
def test_formats(settings: dict[str, Any], dtype: DType, bits: float) -> None:
    found = parse_weight_format(settings)
    assert found is not None
    assert found.dtype is dtype
    assert found.bits == pytest.approx(bits, abs=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"quant_method": "unheard of"},
        {"quant_method": "gptq"},
        {"quant_method": "gptq", "bits": 3, "group_size": 128},
        {"quant_method": "gptq", "bits": "four", "group_size": 128},
        {"quant_method": "awq", "bits": float("inf"), "group_size": 128},
        {"quant_method": "fp8", "weight_block_size": [0, 0]},
        {"quant_method": "fp8", "weight_block_size": 5},
        {"quant_method": "compressed-tensors", "config_groups": []},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}},
        {**_AWQ, "modules_to_not_convert": 7},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"a": {"weights": {"num_bits": 4}}},
            "ignore": ["re:("],
        },
    ],
)
def test_what_is_not_known_is_none(settings: dict[str, Any]) -> None:
    assert parse_weight_format(settings) is None


def test_what_stays_as_it_is() -> None:
    found = parse_weight_format(
        {**_AWQ, "modules_to_not_convert": ["layers.*.router", "vision"], "ignore": ["re:mlp$"]}
    )
    assert found is not None
    for name in ("model.layers.3.router.weight", "vision.proj.weight", "lm_head.weight", "block.mlp"):
        assert found.skips(name)
    for name in ("model.layers.3.q_proj.weight", "block.mlp.up.weight"):
        assert not found.skips(name)


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    """A layer, one whose weight is turned round, and a head that shares its weight with the embedding."""
    tokens = builder.input(builder.N, 5, dtype=DType.INT64)
    table, layer, turned = builder.weight(1000, 256), builder.weight(512, 256), builder.weight(512, 256)
    x = builder.node(OpKind.EMBEDDING, [table, tokens], builder.N, 5, 256)
    x = builder.node(OpKind.LINEAR, [x, layer], builder.N, 5, 512)
    view = builder.node(OpKind.VIEW, [turned], 512, 256, alias_of=turned, function="transpose")
    x = builder.node(OpKind.MATMUL, [x, view], builder.N, 5, 256)
    return builder.graph(builder.node(OpKind.LINEAR, [x, table], builder.N, 5, 1000))


_FORMAT = WeightFormat(method="awq", dtype=DType.UINT4, scale_bits=0.25, skipped=())


def test_products_hold_and_read_what_is_stored(graph: Graph) -> None:
    stored = store_weights(graph, _FORMAT)
    before, after = (Workload.from_graph(each, Precision.BF16).at([1]) for each in (graph, stored))
    weights = 512 * 256
    # Two bytes each become half a byte, and a quarter of a bit for the scales.
    saved = weights * 2 - weights // 2 - weights * 0.25 / 8
    assert (before.bytes_read - after.bytes_read)[0].tolist() == [0, saved, 0, saved, 0]
    assert (before.macs == after.macs).all()
    assert (before.flops == after.flops).all()
    assert stored.parameter_count == graph.parameter_count
    kinds = [tensor.dtype for tensor in stored.tensors if tensor.role is TensorRole.PARAMETER]
    assert kinds == [DType.FLOAT32, DType.UINT4, DType.UINT4]
    assert sum(tensor.role is TensorRole.BUFFER for tensor in stored.tensors) == 2


def test_without_scales_there_are_none(graph: Graph) -> None:
    stored = store_weights(graph, WeightFormat(method="gptq", dtype=DType.UINT8, scale_bits=0.0, skipped=()))
    assert len(stored.tensors) == len(graph.tensors)
    assert stored.nodes == graph.nodes


def test_skipped_weights_stay(graph: Graph) -> None:
    names = [tensor.name for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER]
    every = WeightFormat(method="awq", dtype=DType.UINT4, scale_bits=0.25, skipped=tuple(names))
    assert store_weights(graph, every) == graph
