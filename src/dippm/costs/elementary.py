"""FLOPs of the operators that are not contractions: a count per element, by kind and function.

The counts are numbers of single-precision instructions of a usual GPU kernel, a transcendental function by its
expansion into hardware steps. Such operators are bound by memory on every GPU in use, so the counts serve the totals
that a user reads and the roofline of very narrow devices; they are conventions, not measurements. Operators that only
move or compare elements count no FLOPs for moving, one per comparison that yields a value (max, clip).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

import numpy as np

from dippm.costs.decompositions import flops_of
from dippm.costs.polynomial import FloatArray
from dippm.costs.sizes import GraphSizes
from dippm.graph import Attribute, OpKind
from dippm.graph.codes import tabulate

__all__ = ["flops_per_element", "window"]

_PER_OUTPUT = {
    OpKind.RELU: 1.0, OpKind.LEAKY_RELU: 2.0, OpKind.PRELU: 2.0, OpKind.ELU: 4.0, OpKind.GELU: 12.0, OpKind.SILU: 5.0,
    OpKind.MISH: 12.0, OpKind.SIGMOID: 4.0, OpKind.TANH: 6.0, OpKind.SOFTPLUS: 5.0, OpKind.HARD_SWISH: 5.0,
    OpKind.HARD_SIGMOID: 4.0, OpKind.CLIP: 2.0,
    OpKind.ADD: 1.0, OpKind.SUB: 1.0, OpKind.MUL: 1.0, OpKind.DIV: 1.0, OpKind.POW: 4.0,
    OpKind.BATCH_NORM: 2.0, OpKind.LOCAL_RESPONSE_NORM: 14.0, OpKind.QUANTIZE: 4.0, OpKind.DEQUANTIZE: 2.0,
    # A comparison and a scale; the random number is integer arithmetic.
    OpKind.DROPOUT: 2.0,
    # Four neighbours weighted, and where they lie.
    OpKind.GRID_SAMPLE: 18.0,
}  # fmt: skip
_PER_INPUT = {
    # Maximum, difference, exponential (two), sum, division.
    OpKind.SOFTMAX: 6.0, OpKind.LOG_SOFTMAX: 6.0,
    # Mean and variance in one pass (four), centre, scale, weight and bias.
    OpKind.LAYER_NORM: 8.0, OpKind.GROUP_NORM: 8.0, OpKind.INSTANCE_NORM: 8.0,
    # Square, sum, scale, weight.
    OpKind.RMS_NORM: 4.0,
    OpKind.REDUCE: 1.0, OpKind.CUMULATIVE: 1.0, OpKind.GLOBAL_POOL: 1.0,
}  # fmt: skip
_FUNCTIONS = {
    "exp": 2.0, "exp2": 1.0, "expm1": 4.0, "log": 2.0, "log2": 1.0, "log10": 2.0, "log1p": 4.0, "sqrt": 2.0,
    "rsqrt": 1.0, "reciprocal": 1.0, "sin": 4.0, "cos": 4.0, "tan": 8.0, "asin": 8.0, "acos": 8.0, "atan": 8.0,
    "atan2": 10.0, "sinh": 6.0, "cosh": 6.0, "asinh": 8.0, "acosh": 8.0, "atanh": 8.0, "erf": 10.0, "erfinv": 12.0,
    "hypot": 4.0, "fmod": 4.0, "remainder": 4.0, "addcmul": 3.0, "addcdiv": 3.0, "lerp": 3.0, "logsumexp": 4.0,
    "mean": 1.0, "var": 4.0, "std": 4.0, "norm": 2.0, "l2": 2.0, "vector_norm": 2.0, "sum_square": 2.0,
    "log_sum_exp": 4.0, "logaddexp": 6.0, "identity": 0.0, "where": 0.0,
}  # fmt: skip
_RESIZE = {"nearest": 0.0, "nearest-exact": 0.0, "linear": 3.0, "bilinear": 7.0, "trilinear": 15.0, "bicubic": 35.0,
           "cubic": 35.0}  # fmt: skip


_PER_OUTPUT_OF_KIND = tabulate(OpKind, lambda kind: _PER_OUTPUT.get(kind, 0.0))
_PER_INPUT_OF_KIND = tabulate(OpKind, lambda kind: _PER_INPUT.get(kind, 0.0))


def flops_per_element(sizes: GraphSizes) -> tuple[FloatArray, FloatArray]:
    """FLOPs of each node for each element of its first input, and for each of its first output, [n_nodes] each."""
    kind = sizes.arrays.kind
    per_input, per_output = _PER_INPUT_OF_KIND[kind], _PER_OUTPUT_OF_KIND[kind]
    # What has no function is at -1, the last place.
    of_functions = np.array([*(_FUNCTIONS.get(name, 1.0) for name in sizes.arrays.functions), 1.0])
    of_function = of_functions[sizes.arrays.function]
    per_output = np.where(sizes.is_kind(OpKind.UNARY, OpKind.BINARY), of_function, per_output)
    per_input = np.where(sizes.is_kind(OpKind.REDUCE), of_function, per_input)
    pools, resizes, transforms = (
        np.flatnonzero(sizes.is_kind(*kinds))
        for kinds in ((OpKind.MAX_POOL, OpKind.AVG_POOL), (OpKind.RESIZE,), (OpKind.FFT,))
    )
    per_output[pools] = sizes.read_attributes(pools, window)
    per_output[resizes] = sizes.read_attributes(resizes, lambda given: _RESIZE.get(str(given.get("mode", "")), 7.0))
    per_input[transforms] = [_per_number_transformed(sizes, position) for position in transforms.tolist()]
    decomposed = np.flatnonzero(sizes.is_kind(OpKind.UNKNOWN))
    per_input[decomposed] = sizes.read_attributes(decomposed, flops_of)
    return per_input, per_output


def _per_number_transformed(sizes: GraphSizes, position: int) -> float:
    """Cooley-Tukey: 5 n log2 n real operations for n numbers; where it does not say, along the last dimension."""
    node, source = sizes.nodes[position], sizes.inputs(np.array([position]), 0)
    axes, parts = node.attributes.get("axes", (-1,)), node.attributes.get("parts", 1)
    lengths = [sizes.dimension(source, axis)[0, 0] for axis in axes] if isinstance(axes, tuple) else []
    return 5.0 * sum(log2(max(length, 1.0)) for length in lengths) / (max(parts, 1) if isinstance(parts, int) else 1)


def window(attributes: Mapping[str, Attribute]) -> int:
    """Elements under one position of a pooling window; 1 where the node does not say."""
    size = 1
    kernel = attributes.get("kernel", ())
    for length in kernel if isinstance(kernel, tuple) else ():
        size *= length
    return size
