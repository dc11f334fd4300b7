"""Weights of a quantised checkpoint: in how many bits they are stored, and a graph that holds and reads them so.

GPTQ, AWQ, bitsandbytes, FP8, MXFP4 and compressed-tensors store the weights of linear layers in few bits, with scales
beside them. A product reads both as they are stored, and multiplies in the type of the activations, also where a kernel
of FP8 would be faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from dippm.graph import DType, Graph, Node, OpKind, TensorRole, TensorSpec, fixed_shape

__all__ = ["WeightFormat", "parse_weight_format", "store_weights"]

_TYPES = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}
_SCALE_BITS = 16
# bitsandbytes: one number in FP32 for 64 weights, or with double quantisation one of 8 bits, and FP32 for 256 of those.
_BNB_SCALES, _BNB_DOUBLE_SCALES = 32 / 64, 8 / 64 + 32 / (64 * 256)
# Microscaling: an exponent of 8 bits for 32 weights.
_MX_SCALES = 8 / 32
_FP8_BLOCK = (128, 128)
# Where nobody says what stays as it is.
_USUAL_SKIPS = ("lm_head",)
_PRODUCTS = (OpKind.LINEAR, OpKind.MATMUL)
_WEIGHT, _SCALES = 1, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFormat:
    """How quantised weights are stored.

    Args:
        method: Name of the method, such as ``"gptq"``.
        dtype: Element type.
        scale_bits: Bits of scales and zero points for each weight.
        skipped: Patterns of the names of modules whose weights are not quantised, ``re:`` before a regular expression.
    """

    method: str
    dtype: DType
    scale_bits: float
    skipped: tuple[str, ...]

    @property
    def bits(self) -> float:
        """Bits of a weight with its share of scales and zero points."""
        return self.dtype.bits + self.scale_bits

    def skips(self, name: str) -> bool:
        """Whether the weight of this name stays as it is."""
        return any(
            re.search(pattern[3:], name) if pattern.startswith("re:") else fnmatch(name, f"*{pattern}*")
            for pattern in self.skipped
        )


def parse_weight_format(settings: Mapping[str, Any]) -> WeightFormat | None:
    """Read the ``quantization_config`` of a checkpoint; None for a method or a number of bits that is not known."""
    method = str(settings.get("quant_method", ""))
    try:
        dtype, scale_bits = _READERS[method](settings)
        skipped = tuple(_listed_patterns(settings))
    except (KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError, OverflowError, re.error):
        return None
    return WeightFormat(method=method, dtype=dtype, scale_bits=scale_bits, skipped=(*skipped, *_USUAL_SKIPS))


def _listed_patterns(settings: Mapping[str, Any]) -> list[str]:
    named = [settings.get(name) or () for name in ("modules_to_not_convert", "llm_int8_skip_modules", "ignore")]
    patterns = [str(each) for names in named for each in names]
    for pattern in patterns:
        if pattern.startswith("re:"):
            re.compile(pattern[3:])
    return patterns


def _read_groups(settings: Mapping[str, Any]) -> tuple[DType, float]:
    """GPTQ and AWQ: a scale and a zero point for each group of a column, or for the whole of it."""
    bits = int(settings["bits"] if "bits" in settings else settings["w_bit"])
    group = int(settings["group_size"] if "group_size" in settings else settings["q_group_size"])
    return _TYPES[bits], (_SCALE_BITS + bits) / group if group > 0 else 0.0


def _read_bitsandbytes(settings: Mapping[str, Any]) -> tuple[DType, float]:
    if not (settings.get("load_in_4bit") or settings.get("_load_in_4bit")):
        return DType.INT8, 0.0
    return DType.UINT4, _BNB_DOUBLE_SCALES if settings.get("bnb_4bit_use_double_quant") else _BNB_SCALES


def _read_fp8(settings: Mapping[str, Any]) -> tuple[DType, float]:
    rows, columns = settings.get("weight_block_size") or _FP8_BLOCK
    return DType.FLOAT8, 32 / (int(rows) * int(columns))


def _read_mxfp4(_: Mapping[str, Any]) -> tuple[DType, float]:
    return DType.UINT4, _MX_SCALES


def _read_compressed(settings: Mapping[str, Any]) -> tuple[DType, float]:
    """compressed-tensors: the widest of its groups of layers."""
    schemes = [group["weights"] for group in settings["config_groups"].values()]
    scheme = max(schemes, key=lambda each: int(each["num_bits"]))
    bits, group = int(scheme["num_bits"]), int(scheme.get("group_size") or 0)
    dtype = DType.FLOAT8 if (scheme.get("type"), bits) == ("float", DType.FLOAT8.bits) else _TYPES[bits]
    return dtype, _SCALE_BITS / group if group > 0 else 0.0


_READERS = {
    "gptq": _read_groups,
    "awq": _read_groups,
    "bitsandbytes": _read_bitsandbytes,
    "fp8": _read_fp8,
    "mxfp4": _read_mxfp4,
    "compressed-tensors": _read_compressed,
}


def store_weights(graph: Graph, stored: WeightFormat) -> Graph:
    """The graph with the weights of its products as a quantised checkpoint stores them.

    A weight that an embedding reads as well stays as it is.

    Args:
        graph: The model as it was before quantisation.
        stored: How its weights are stored.
    """
    owners = [index if tensor.alias_of is None else tensor.alias_of for index, tensor in enumerate(graph.tensors)]
    embedded = {owners[node.inputs[0]] for node in graph.nodes if node.kind is OpKind.EMBEDDING}
    chosen = {
        owners[node.inputs[_WEIGHT]]
        for node in graph.nodes
        if node.kind in _PRODUCTS and _is_quantised(graph.tensors[owners[node.inputs[_WEIGHT]]], stored)
    } - embedded
    tensors = [
        replace(tensor, dtype=stored.dtype) if owner in chosen else tensor
        for tensor, owner in zip(graph.tensors, owners, strict=True)
    ]
    scales: dict[int, int] = {}
    for owner in sorted(chosen) if stored.scale_bits else ():
        scales[owner] = len(tensors)
        tensors.append(_scales_of(graph.tensors[owner], stored))

    def add_scales(node: Node) -> Node:
        if node.kind not in _PRODUCTS or owners[node.inputs[_WEIGHT]] not in scales:
            return node
        absent = (-1,) * (_SCALES - len(node.inputs))
        return replace(node, inputs=(*node.inputs, *absent, scales[owners[node.inputs[_WEIGHT]]]))

    return replace(graph, tensors=tuple(tensors), nodes=tuple(map(add_scales, graph.nodes)))


def _is_quantised(tensor: TensorSpec, stored: WeightFormat) -> bool:
    return tensor.role is TensorRole.PARAMETER and len(tensor.shape) > 1 and not stored.skips(tensor.name)


def _scales_of(weight: TensorSpec, stored: WeightFormat) -> TensorSpec:
    count = math.ceil(math.prod(size.fixed for size in weight.shape) * stored.scale_bits / 8)
    return TensorSpec(name=f"{weight.name}_scales", shape=fixed_shape(count), dtype=DType.UINT8, role=TensorRole.BUFFER)
