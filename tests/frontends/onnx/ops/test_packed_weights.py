"""Weights of a few bits: how large they are in memory, and which kernels unpack them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from dippm.graph import DType, OpKind


@pytest.mark.parametrize(("bits", "stored", "dtype"), [(4, 16, DType.UINT4), (8, 32, DType.UINT8), (2, 8, DType.UINT2)])
def test_a_packed_weight_has_the_sizes_that_it_stands_for(one, bits: int, stored: int, dtype: DType) -> None:
    weights = {"w": np.zeros((7, 2, stored), np.uint8), "s": np.zeros(14, np.float32)}
    options = {"inputs": {"x": ["N", 5, 64]}, "weights": weights, "domain": "com.microsoft"}
    graph = one("MatMulNBits", "x w s", K=64, N=7, bits=bits, block_size=32, **options)
    assert [node.kind for node in graph.nodes] == [OpKind.DEQUANTIZE, OpKind.LINEAR]
    packed = graph.tensors[graph.nodes[0].inputs[0]]
    assert (packed.dtype, [dim.fixed for dim in packed.shape]) == (dtype, [7, 64])
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "5", "7"]
    assert "quantised" in graph.warnings[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 3}, "2, 4 or 8 bits"),
        ({"K": 60}, "columns meet"),
        ({"N": 0}, "columns meet"),
        ({"N": 9}, "too small"),
    ],
)
def test_what_does_not_fit_its_weight(refused, changes: dict[str, int], said: str) -> None:
    weights = {"w": np.zeros((7, 2, 16), np.uint8), "s": np.zeros(14, np.float32)}
    options = {"inputs": {"x": ["N", 5, 64]}, "weights": weights, "domain": "com.microsoft"}
    assert said in refused(
        "MatMulNBits", "x w s", **({"K": 64, "N": 7, "bits": 4, "block_size": 32} | changes), **options
    )


def test_four_bits_of_bitsandbytes(one, shapes) -> None:
    weights = {"w": np.zeros(224, np.uint8), "s": np.zeros(7, np.float32)}
    options = {"inputs": {"x": ["N", 64]}, "weights": weights, "domain": "com.microsoft"}
    assert shapes(one("MatMulBnb4", "x w s", K=64, N=7, quant_type=1, block_size=64, **options)) == [["N", "7"]]


def test_rows_of_a_packed_table(one) -> None:
    weights = {"t": np.zeros((100, 16), np.uint8), "s": np.zeros((100, 1), np.float32)}
    options = {"inputs": {"i": ["N", 6]}, "dtypes": {"i": TensorProto.INT64}, "domain": "com.microsoft"}
    graph = one("GatherBlockQuantized", "t i s", weights=weights, bits=4, block_size=32, **options)
    assert [node.kind for node in graph.nodes] == [OpKind.EMBEDDING, OpKind.DEQUANTIZE]
    rows, numbers = (graph.tensors[node.outputs[0]] for node in graph.nodes)
    assert (rows.dtype, numbers.dtype) == (DType.UINT4, DType.FLOAT32)
    assert [str(dim) for dim in numbers.shape] == ["N", "6", "32"]
