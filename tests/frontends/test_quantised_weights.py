"""Weights in few bits: what their configuration says, and what a graph then holds and reads."""

from __future__ import annotations

from typing import Any

import pytest

import dippm
from dippm.costs import Precision, Workload
from dippm.costs.packings import PACKED_BY
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.quantised_weights import (
    WEIGHT_FORMATS,
    WeightFormat,
    find_weight_format,
    parse_weight_format,
    quantise_layers,
    store_weights,
)
from dippm.graph import DType, Graph, OpKind, TensorRole

_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
_GPTQ = {**_AWQ, "quant_method": "gptq"}
_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
_NF4 = WeightFormat(method="bitsandbytes", dtype=DType.UINT4, scale_bits=0.5, skipped=(), packing="bitsandbytes-4bit")


def _compressed(layout: str, **weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it: one group, of all linear layers."""
    groups = {"group_0": {"targets": ["Linear"], "weights": {"type": "int", "num_bits": 4, **weights}}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}


def _targets(*targets: list[str]) -> dict[str, Any]:
    """compressed-tensors with a group for each list of targets."""
    weights = {"type": "int", "num_bits": 4, "group_size": 128}
    groups = {str(index): {"targets": names, "weights": weights} for index, names in enumerate(targets)}
    return {**_compressed("pack-quantized"), "config_groups": groups}


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
        ({"quant_method": "mxfp4"}, DType.FLOAT4, 4.25),
        # A type to pack in changes nothing.
        ({**_BNB, "bnb_4bit_quant_storage": "bfloat16"}, DType.UINT4, 4.5),
        ({**_BNB, "load_in_8bit": False, "_load_in_4bit": True, "_load_in_8bit": False}, DType.UINT4, 4.5),
        (_compressed("pack-quantized", group_size=128), DType.UINT4, 4 + 16 / 128),
        (_compressed("pack-quantized", num_bits=8, group_size=None), DType.UINT8, 8.0),
        (_compressed("int-quantized", num_bits=8, group_size=-1), DType.INT8, 8.0),
        # Not packed, each takes a byte.
        (_compressed("int-quantized"), DType.INT8, 8.0),
        (_compressed("naive-quantized", type="float", num_bits=8), DType.FLOAT8, 8.0),
        (_compressed("float-quantized", type="float", num_bits=8), DType.FLOAT8, 8.0),
        (_compressed("nvfp4-pack-quantized", type="float", group_size=16), DType.FLOAT4, 4.5),
        ({**_compressed("float-quantized", type="float", num_bits=8), "sparsity_config": {}}, DType.FLOAT8, 8.0),
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
        # No positive whole numbers.
        {**_GPTQ, "bits": 4.9},
        {**_GPTQ, "bits": "4"},
        {**_GPTQ, "bits": -4},
        {**_GPTQ, "group_size": 0},
        {**_GPTQ, "group_size": -2},
        {**_GPTQ, "group_size": 64.5},
        {**_GPTQ, "group_size": True},
        {"quant_method": "fp8", "weight_block_size": [-1, 5]},
        {"quant_method": "fp8", "weight_block_size": [128.5, 128]},
        {"quant_method": "fp8", "weight_block_size": []},
        _compressed("pack-quantized", group_size=-5),
        _compressed("pack-quantized", num_bits=4.5),
        # Not said in how many bits.
        {"quant_method": "bitsandbytes"},
        {"quant_method": "bitsandbytes", "load_in_8bit": False},
        {"quant_method": "bitsandbytes", "load_in_8bit": "no"},
        {**_BNB, "load_in_8bit": True},
        # No names.
        {**_AWQ, "modules_to_not_convert": 7},
        {**_AWQ, "modules_to_not_convert": {"lm_head": 1}},
        {**_AWQ, "modules_to_not_convert": ""},
        {**_AWQ, "modules_to_not_convert": [""]},
        {**_AWQ, "modules_to_not_convert": ["lm_head", 5]},
        {**_AWQ, "modules_to_not_convert": [["lm_head"]]},
        {**_AWQ, "modules_to_not_convert": ["layers.(1|2)"]},
        {**_AWQ, "modules_to_not_convert": ["model..mlp"]},
        # Weights that are stored in other ways than the rest.
        {**_GPTQ, "dynamic": {"-:.*mlp.*": {}}},
        {**_GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"]]},
        {"quant_method": "fp8", "modules_to_convert": ["model.embed_tokens"]},
        {"quant_method": "fp8", "expert_dtype": "fp4"},
        {"quant_method": "mxfp4", "dequantize": True},
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_has_fp16_weight": True},
        _targets(["Embedding"]),
        _targets(["re:.*self_attn.*"]),
        _targets(["Linear"], ["re:.*down_proj"]),
        _targets(),
        {**_targets(["Linear"]), "sparsity_config": {"format": "sparse-24-bitmask"}},
        _compressed("dense"),
        _compressed("marlin-24"),
        _compressed("float-quantized", num_bits=8),
        _compressed("pack-quantized", num_bits=3),
    ],
)
def test_what_is_not_known_is_none(settings: dict[str, Any]) -> None:
    assert parse_weight_format(settings) is None


@pytest.mark.parametrize("settings", [{**_GPTQ, "dynamic": {}}, {**_GPTQ, "modules_in_block_to_quantize": None}])
def test_a_setting_without_content_changes_nothing(settings: dict[str, Any]) -> None:
    assert parse_weight_format(settings) == parse_weight_format(_GPTQ)


@pytest.mark.parametrize("name", ["modules_to_not_convert", "llm_int8_skip_modules", "ignore", "ignored_layers"])
def test_one_name_need_not_be_listed(name: str) -> None:
    found = parse_weight_format({**_AWQ, name: "router"})
    assert found is not None
    assert found.skips("model.layers.0.mlp.router.weight")
    assert not found.skips("model.layers.0.self_attn.o.weight")


def test_a_head_may_be_quantised() -> None:
    found = parse_weight_format({**_GPTQ, "lm_head": True})
    assert found is not None
    assert not found.skips("lm_head.weight")


def test_patterns_that_are_not_followed_make_the_format_unknown() -> None:
    assert parse_weight_format({**_AWQ, "ignore": ["re:(a*)*b"]}) is None


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


@pytest.mark.parametrize(
    ("name", "bits"),
    [("nf4", 4.5), ("NF4-double", 4.127), ("int8", 8.0), ("int4", 4 + 20 / 128), (" fp8 ", 8.002), ("mxfp4", 4.25)],
)
def test_formats_go_by_names(name: str, bits: float) -> None:
    found = find_weight_format(name)
    assert found is not None
    assert found.bits == pytest.approx(bits, abs=1e-3)


def test_none_of_them_is_the_model_before_it_was_quantised() -> None:
    assert find_weight_format("Dequantised") is None


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=", ".join(WEIGHT_FORMATS)) as caught:
        find_weight_format("q4_k_m")
    assert caught.value.code == "weights.unknown"


def test_all_layers_but_the_last_are_quantised_once(builder: Any) -> None:
    n = builder.N
    x, first, last = builder.input(n, 64), builder.weight(64, 64), builder.weight(10, 64)
    x = builder.node(OpKind.RELU, [builder.node(OpKind.LINEAR, [x, first], n, 64)], n, 64)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, last], n, 10))
    quantised = quantise_layers(graph, _NF4)
    assert [quantised.tensors[index].dtype for index in (first, last)] == [DType.UINT4, DType.FLOAT32]
    for again in ("int8", "dequantised"):
        with pytest.raises(UnsupportedError) as caught:
            dippm.load(quantised, weights=again)
        assert caught.value.code == "weights.quantised"
    assert dippm.load(graph, weights="dequantised") == graph


def test_a_table_of_bytes_beside_them_is_no_quantised_weight(builder: Any) -> None:
    n = builder.N
    table, first = builder.weight(64, dtype=DType.UINT8, role=TensorRole.BUFFER), builder.weight(64, 64)
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), first], n, 64)
    x = builder.node(OpKind.ADD, [x, builder.node(OpKind.CAST, [table], 64)], n, 64)
    last = builder.weight(10, 64)
    graph = builder.graph(builder.node(OpKind.LINEAR, [x, last], n, 10))
    tensors = quantise_layers(graph, _NF4).tensors
    stored = [tensors[index].dtype for index in (table, first, last)]
    assert stored == [DType.UINT8, DType.UINT4, DType.FLOAT32]


def test_a_model_without_such_layers_is_refused(builder: Any) -> None:
    n = builder.N
    graph = builder.graph(builder.node(OpKind.LINEAR, [builder.input(n, 8), builder.weight(4, 8)], n, 4))
    with pytest.raises(UnsupportedError) as caught:
        quantise_layers(graph, _NF4)
    assert caught.value.code == "weights.no_layers"


@pytest.mark.parametrize(
    ("settings", "packing"),
    [
        (_BNB, "bitsandbytes-4bit"),
        ({**_BNB, "bnb_4bit_use_double_quant": True}, "bitsandbytes-4bit-nested"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes-8bit-split"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 0.0}, "bitsandbytes-8bit"),
        (_GPTQ, "exllama"),
        ({**_GPTQ, "bits": 8}, ""),
        (_AWQ, ""),
        ({"quant_method": "fp8"}, ""),
    ],
)
def test_products_are_marked_with_the_kernels_of_their_library(
    builder: Any, settings: dict[str, Any], packing: str
) -> None:
    n = builder.N
    x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(64, 64)], n, 64)
    builder.node(OpKind.MATMUL, [x, x], n, 64)
    stored = parse_weight_format(settings)
    assert stored is not None
    layer, other = store_weights(builder.graph(), stored).nodes
    assert (layer.attributes.get(PACKED_BY, ""), other.attributes.get(PACKED_BY, "")) == (packing, "")


def test_bitsandbytes_leaves_stacks_of_matrices_as_they_are(builder: Any) -> None:
    n = builder.N
    x, layer, experts = builder.input(n, 8, 64), builder.weight(64, 64), builder.weight(8, 64, 64)
    y = builder.node(OpKind.LINEAR, [x, layer], n, 8, 64)
    builder.node(OpKind.MATMUL, [y, experts], n, 8, 64)
    for settings, stacked, count in ((_BNB, DType.FLOAT32, 1), (_GPTQ, DType.UINT4, 0)):
        stored = parse_weight_format(settings)
        assert stored is not None
        graph = store_weights(builder.graph(), stored)
        assert [graph.tensors[index].dtype for index in (layer, experts)] == [DType.UINT4, stacked]
        assert len([warning for warning in graph.warnings if "stacks of matrices" in warning]) == count
