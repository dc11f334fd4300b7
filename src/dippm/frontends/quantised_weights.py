"""Weights of a quantised checkpoint: in how many bits they are stored, and a graph that holds and reads them so.

GPTQ, AWQ, bitsandbytes, FP8, MXFP4 and compressed-tensors store the weights of linear layers in few bits, with scales
beside them. A product reads both as they are stored, unless its library unpacks them first (``costs/packings.py``), and
multiplies in the type of the activations, also where a kernel of FP8 would be faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dippm.costs.packings import PACKED_BY
from dippm.errors import UnsupportedError, UsageError, quote
from dippm.frontends.module_patterns import check_patterns, is_of_module
from dippm.graph import DType, Graph, Node, OpKind, TensorRole, TensorSpec, fixed_shape
from dippm.graph.linear_layers import find_multiplied_weights, find_output_layers, find_stacks, is_of_layer

__all__ = [
    "DEQUANTISED",
    "WEIGHT_FORMATS",
    "WeightFormat",
    "find_weight_format",
    "parse_weight_format",
    "predicted_as_before",
    "quantise_layers",
    "quantised_anew",
    "refuse_quantised",
    "store_weights",
    "trained_as_before",
]

#: How weights are quantised, by the name that users write, as the configuration of a checkpoint says it.
WEIGHT_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "nf4-double": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "fp8": {"quant_method": "fp8"},
    "mxfp4": {"quant_method": "mxfp4"},
}
#: In place of a format: a checkpoint that is published quantised is to be as it was before that.
DEQUANTISED = "dequantised"

_TYPES = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}
_SCALE_BITS = 16
# bitsandbytes: one number in FP32 for 64 weights, or with double quantisation one of 8 bits, and FP32 for 256 of those.
_BNB_SCALES, _BNB_DOUBLE_SCALES = 32 / 64, 8 / 64 + 32 / (64 * 256)
# Microscaling: an exponent of 8 bits for 32 weights. NVIDIA's: a scale in FP8 for 16.
_MX_SCALES, _NVFP4_SCALES = 8 / 32, 8 / 16
_FP8_BLOCK = [128, 128]
# How compressed-tensors lays out a type of so many bits. Unless they are packed, integers take a byte each.
_COMPRESSED = {
    ("pack-quantized", "int", 4): DType.UINT4,
    ("pack-quantized", "int", 8): DType.UINT8,
    ("int-quantized", "int", 4): DType.INT8,
    ("int-quantized", "int", 8): DType.INT8,
    ("naive-quantized", "int", 4): DType.INT8,
    ("naive-quantized", "int", 8): DType.INT8,
    ("naive-quantized", "float", 8): DType.FLOAT8,
    ("float-quantized", "float", 8): DType.FLOAT8,
    ("nvfp4-pack-quantized", "float", 4): DType.FLOAT4,
}
# Where nobody says what stays as it is.
_USUAL_SKIPS = ("lm_head",)
_SKIP_LISTS = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "ignored_layers")
# They change which weights are stored in how many bits, and nothing here follows them.
_NOT_FOLLOWED = (
    "dynamic",
    "modules_in_block_to_quantize",
    "modules_to_convert",
    "llm_int8_has_fp16_weight",
    "dequantize",
)
_PRODUCTS = (OpKind.LINEAR, OpKind.MATMUL)
_WEIGHT, _SCALES = 1, 3
_PACKED = frozenset({DType.UINT2, DType.UINT4, DType.UINT8, DType.INT8, DType.FLOAT8, DType.FLOAT4})


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightFormat:
    """How quantised weights are stored.

    Args:
        method: Name of the method, such as ``"gptq"``.
        dtype: Element type.
        scale_bits: Bits of scales and zero points for each weight.
        skipped: Patterns of the names of modules whose weights are not quantised: whole components in a row, ``*``
            within one of them, or ``re:`` and a regular expression that fits from the beginning of a component.
        packing: The kernels that multiply with them, one of :data:`~dippm.costs.packings.PACKINGS`; empty where
            none of those.
    """

    method: str
    dtype: DType
    scale_bits: float
    skipped: tuple[str, ...]
    packing: str = ""

    @property
    def is_of_bitsandbytes(self) -> bool:
        """Whether bitsandbytes stores them."""
        return self.method == "bitsandbytes"

    @property
    def is_trainable(self) -> bool:
        """Whether adapters can be trained beside them: transformers trains nothing beside weights in MXFP4."""
        return self.method != "mxfp4"

    @property
    def described(self) -> str:
        """What a prediction of a checkpoint that is published so rests on."""
        kernels = (
            " Without kernels of MXFP4 (Triton 3.4, compute capability 7.5) transformers makes them bfloat16, which "
            "takes four times the memory."
            if self.method == "mxfp4"
            else ""
        )
        # What products with packed weights do is said where their time is.
        read = "" if self.packing else ", and read so by every product. No such model was measured"
        return (
            f"The checkpoint's weights are quantised ({self.method}): they are counted as stored, in {self.bits:.3g} "
            f"bits each{read}.{kernels}"
        )

    @property
    def bits(self) -> float:
        """Bits of a weight with its share of scales and zero points."""
        return self.dtype.bits + self.scale_bits

    def skips(self, name: str) -> bool:
        """Whether the weight of this name stays as it is."""
        return any(is_of_module(name, pattern) for pattern in self.skipped)


def parse_weight_format(settings: Mapping[str, Any]) -> WeightFormat | None:
    """Read the ``quantization_config`` of a checkpoint; None where its method, bits or patterns cannot be followed.

    Args:
        settings: As it stands in the file, which need not be trusted.
    """
    method = str(settings.get("quant_method", ""))
    if any(settings.get(name) for name in _NOT_FOLLOWED):
        return None
    usual = () if settings.get("lm_head") is True else _USUAL_SKIPS
    try:
        dtype, scale_bits = _READERS[method](settings)
        skipped = tuple(_listed_patterns(settings))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return WeightFormat(
        method=method,
        dtype=dtype,
        scale_bits=scale_bits,
        skipped=(*skipped, *usual),
        packing=_packing(method, dtype, settings),
    )


def _packing(method: str, dtype: DType, settings: Mapping[str, Any]) -> str:
    """The kernels that the library runs by default."""
    if method == "gptq" and dtype is DType.UINT4:
        return "exllama"
    if method != "bitsandbytes":
        return ""
    if dtype is DType.INT8:
        # Columns with outliers are multiplied by themselves, unless the threshold is zero.
        return "bitsandbytes-8bit" if settings.get("llm_int8_threshold") == 0.0 else "bitsandbytes-8bit-split"
    return "bitsandbytes-4bit-nested" if settings.get("bnb_4bit_use_double_quant") else "bitsandbytes-4bit"


def find_weight_format(name: str) -> WeightFormat | None:
    """A format by its name, see :data:`WEIGHT_FORMATS`; None for :data:`DEQUANTISED`.

    Raises:
        UsageError: ``weights.unknown``.
    """
    asked = name.strip().lower() if isinstance(name, str) else quote(name)
    if asked == DEQUANTISED:
        return None
    found = WEIGHT_FORMATS.get(asked)
    stored = None if found is None else parse_weight_format(found)
    if stored is None:
        raise UsageError(
            f"The weights must be stored as one of {', '.join(WEIGHT_FORMATS)}, or be {DEQUANTISED}. Got "
            f"{quote(name)} instead.",
            code="weights.unknown",
        )
    return stored


def predicted_as_before(method: object) -> str:
    """What a prediction of a checkpoint that is published quantised does not tell, where its weights are taken whole.

    Args:
        method: How it is quantised.
    """
    return (
        f"The checkpoint's weights are published quantised ({method}). They are predicted as they were before that: "
        "the quantised model takes less memory, and less time to read them."
    )


def quantised_anew(published: WeightFormat) -> str:
    """What is told of a checkpoint that is published quantised and predicted with its weights stored in another way."""
    return (
        f"The checkpoint's weights are published quantised ({published.method}): they are taken as they were before "
        "that, and then stored as asked. No library does both by itself."
    )


def trained_as_before(published: WeightFormat) -> str:
    """What is told of a training step of a checkpoint that is published quantised."""
    return (
        f"The checkpoint's weights are published quantised ({published.method}): the step is that of the model as it "
        "was before that."
    )


def quantise_layers(graph: Graph, stored: WeightFormat) -> Graph:
    """The graph with the weights of its linear layers stored so, but those of the last, which write its outputs.

    Args:
        graph: A model whose weights are not quantised.
        stored: How they are to be stored.

    Raises:
        UnsupportedError: ``weights.quantised`` where they are, ``weights.no_layers`` where there is no such layer.
    """
    refuse_quantised(graph)
    quantised = store_weights(graph, stored, kept=find_output_layers(graph))
    if quantised.tensors == graph.tensors:
        raise UnsupportedError(
            f"'{graph.source}' has no linear layers but its last whose weights could be quantised.",
            code="weights.no_layers",
            cure="Leave the format of the weights out.",
        )
    return quantised


def refuse_quantised(graph: Graph) -> None:
    """Refuse a model whose weights are quantised in its file: what they were before that is not known.

    Raises:
        UnsupportedError: ``weights.quantised``.
    """
    multiplied = find_multiplied_weights(graph)
    packed = next(
        (
            each
            for index, each in enumerate(graph.tensors)
            if each.dtype in _PACKED and (each.role is TensorRole.PARAMETER or index in multiplied)
        ),
        None,
    )
    if packed is not None:
        raise UnsupportedError(
            f"Weights of '{graph.source}' are quantised already: '{packed.name}' is {packed.dtype.value}.",
            code="weights.quantised",
            cure="Leave the format of the weights out.",
        )


def _listed_patterns(settings: Mapping[str, Any]) -> list[str]:
    listed = [settings[name] for name in _SKIP_LISTS if settings.get(name) is not None]
    patterns = [each for names in listed for each in ([names] if isinstance(names, str) else _list(names))]
    check_patterns(patterns)
    return patterns


def _list(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"{value!r} is no list of names")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no positive whole number")
    return value


def _read_groups(settings: Mapping[str, Any]) -> tuple[DType, float]:
    """GPTQ and AWQ: a scale and a zero point for each group of a column, or for the whole of it."""
    bits = _count(settings["bits"] if "bits" in settings else settings["w_bit"])
    group = settings["group_size"] if "group_size" in settings else settings["q_group_size"]
    return _TYPES[bits], 0.0 if group == -1 else (_SCALE_BITS + bits) / _count(group)


def _read_bitsandbytes(settings: Mapping[str, Any]) -> tuple[DType, float]:
    """In whatever type four bits are packed (``bnb_4bit_quant_storage``), they stay four."""
    in_4bit, in_8bit = (
        any(settings.get(name) is True for name in (f"load_in_{bits}bit", f"_load_in_{bits}bit")) for bits in (4, 8)
    )
    if in_4bit == in_8bit:
        raise ValueError("must be in either 4 or 8 bits")
    if in_8bit:
        return DType.INT8, 0.0
    return DType.UINT4, _BNB_DOUBLE_SCALES if settings.get("bnb_4bit_use_double_quant") else _BNB_SCALES


def _read_fp8(settings: Mapping[str, Any]) -> tuple[DType, float]:
    if settings.get("expert_dtype", "fp8") != "fp8":
        raise ValueError("experts of another type")
    block = settings.get("weight_block_size")
    rows, columns = map(_count, _FP8_BLOCK if block is None else block)
    return DType.FLOAT8, 32 / (rows * columns)


def _read_mxfp4(_: Mapping[str, Any]) -> tuple[DType, float]:
    return DType.FLOAT4, _MX_SCALES


def _read_compressed(settings: Mapping[str, Any]) -> tuple[DType, float]:
    """compressed-tensors: one group, of all linear layers."""
    (group,) = settings["config_groups"].values()
    if group["targets"] != ["Linear"] or (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise ValueError("must be dense weights of all linear layers")
    scheme, layout = group["weights"], group.get("format") or settings["format"]
    dtype = _COMPRESSED[layout, scheme.get("type", "int"), _count(scheme["num_bits"])]
    if dtype is DType.FLOAT4:
        return dtype, _NVFP4_SCALES
    size = scheme.get("group_size")
    return dtype, 0.0 if size in (None, -1) else _SCALE_BITS / _count(size)


_READERS = {
    "gptq": _read_groups,
    "awq": _read_groups,
    "bitsandbytes": _read_bitsandbytes,
    "fp8": _read_fp8,
    "mxfp4": _read_mxfp4,
    "compressed-tensors": _read_compressed,
}


def store_weights(graph: Graph, stored: WeightFormat, *, kept: frozenset[int] = frozenset()) -> Graph:
    """The graph with the weights of its products as a quantised checkpoint stores them.

    A weight that an embedding reads as well stays as it is. So do, with bitsandbytes, stacks of matrices, such as all
    experts of a layer: it replaces modules that are linear layers, and nothing else
    (``transformers/integrations/bitsandbytes.py``, release 5.23).

    Args:
        graph: The model as it was before quantisation.
        stored: How its weights are stored.
        kept: Weights that stay as they are as well.
    """
    owners = [index if tensor.alias_of is None else tensor.alias_of for index, tensor in enumerate(graph.tensors)]
    embedded = {owners[node.inputs[0]] for node in graph.nodes if node.kind is OpKind.EMBEDDING}
    chosen = (
        {
            owners[node.inputs[_WEIGHT]]
            for node in graph.nodes
            if node.kind in _PRODUCTS and _is_quantised(graph.tensors[owners[node.inputs[_WEIGHT]]], stored)
        }
        - embedded
        - kept
    )
    whole = chosen & find_stacks(graph) if stored.is_of_bitsandbytes else frozenset()
    chosen -= whole
    tensors = [
        replace(tensor, dtype=stored.dtype) if owner in chosen else tensor
        for tensor, owner in zip(graph.tensors, owners, strict=True)
    ]
    scales: dict[int, int] = {}
    for owner in sorted(chosen) if stored.scale_bits else ():
        scales[owner] = len(tensors)
        tensors.append(_scales_of(graph.tensors[owner], stored))

    def add_scales(node: Node) -> Node:
        if node.kind not in _PRODUCTS or owners[node.inputs[_WEIGHT]] not in chosen:
            return node
        attributes = {**node.attributes, PACKED_BY: stored.packing} if stored.packing else node.attributes
        own = scales.get(owners[node.inputs[_WEIGHT]])
        if own is None:
            return replace(node, attributes=attributes)
        absent = (-1,) * (_SCALES - len(node.inputs))
        return replace(node, inputs=(*node.inputs, *absent, own), attributes=attributes)

    warnings = graph.warnings
    if whole:
        warnings += (
            f"Of its weights {len(whole)} are stacks of matrices, such as experts, and are not quantised: bitsandbytes "
            "quantises linear layers alone.",
        )
    return replace(graph, tensors=tuple(tensors), nodes=tuple(map(add_scales, graph.nodes)), warnings=warnings)


def _is_quantised(tensor: TensorSpec, stored: WeightFormat) -> bool:
    return is_of_layer(tensor) and len(tensor.shape) > 1 and not stored.skips(tensor.name)


def _scales_of(weight: TensorSpec, stored: WeightFormat) -> TensorSpec:
    count = math.ceil(math.prod(size.fixed for size in weight.shape) * stored.scale_bits / 8)
    return TensorSpec(name=f"{weight.name}_scales", shape=fixed_shape(count), dtype=DType.UINT8, role=TensorRole.BUFFER)
