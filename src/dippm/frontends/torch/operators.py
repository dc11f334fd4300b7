"""Which kind of operator each aten operator is, as data.

Keys are names of operators without overload and without the underscore of the in-place form. Operators that are
compositions of others (``aten.matmul``, ``aten.reshape``, ...) are taken apart by PyTorch itself before this table is
asked, except those of ``KEPT_WHOLE``. Views need no entry: they are known by their storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dippm.costs.training_step.elementwise_gradients import LOSSES
from dippm.graph import OpKind

__all__ = ["KEPT_WHOLE", "OPERATORS", "OpRule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRule:
    """How an aten operator becomes a node.

    Args:
        kind: The node's kind.
        function: The node's ``function`` attribute, or "" for none.
        inputs: Names of the arguments that are the node's inputs, in the kind's order; None for every tensor
            argument in the operator's own order.
        attributes: Name of the builder in :mod:`dippm.frontends.torch.attributes`, or "" for none.
    """

    kind: OpKind
    function: str = ""
    inputs: tuple[str, ...] | None = None
    attributes: str = ""


def _named(kind: OpKind, names: str) -> dict[str, OpRule]:
    return {name: OpRule(kind=kind, function=name.strip("_")) for name in names.split()}


def _plain(kind: OpKind, names: str) -> dict[str, OpRule]:
    return {name: OpRule(kind=kind) for name in names.split()}


_BINARY_FUNCTIONS = {
    "maximum": "maximum", "minimum": "minimum", "fmax": "maximum", "fmin": "minimum", "where": "where",
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor", "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "__and__": "bitwise_and", "__or__": "bitwise_or",
    "__xor__": "bitwise_xor", "__lshift__": "shift_left", "__rshift__": "shift_right",
    "bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right", "remainder": "remainder",
    "fmod": "remainder", "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "lerp": "lerp",
    "masked_fill": "where", "floor_divide": "floor_divide", "logaddexp": "logaddexp", "polar": "polar",
    "complex": "complex", "xlogy": "xlogy", "nextafter": "nextafter", "gcd": "gcd", "dist": "dist", "lcm": "lcm",
    "linalg_cross": "cross", "heaviside": "heaviside", "ldexp": "ldexp", "logaddexp2": "logaddexp2", "igamma": "igamma",
    "igammac": "igammac", "special_xlog1py": "xlog1py", "special_zeta": "zeta", "addr": "addr",
}  # fmt: skip

_REDUCE_FUNCTIONS = {
    "mean": "mean", "sum": "sum", "nansum": "sum", "amax": "max", "amin": "min", "max": "max", "min": "min",
    "prod": "prod", "var": "var", "std": "std", "var_mean": "var_mean", "std_mean": "std_mean", "all": "all",
    "any": "any", "argmax": "argmax", "argmin": "argmin", "logsumexp": "logsumexp", "norm": "norm",
    "linalg_vector_norm": "norm", "aminmax": "aminmax", "count_nonzero": "count_nonzero", "median": "median",
    "nanmedian": "median", "mode": "mode", "_is_all_true": "all",
}  # fmt: skip

# Bessel functions and polynomials, whose kernels evaluate a series for each element.
_SPECIAL_UNARY = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx i0e i1e log_ndtr modified_bessel_i0 modified_bessel_i1 "
    "modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0 scaled_modified_bessel_k1 "
    "spherical_bessel_j0"
)
_SPECIAL_BINARY = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h "
    "hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t "
    "shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w"
)

# Views that a program without aliases, as a functional export makes it, copies.
_COPIED_VIEWS = (
    "alias as_strided detach diagonal expand narrow permute select slice split split_with_sizes squeeze t transpose "
    "unbind unfold unsqueeze view"
)

# No kind of their own: they are nodes of which the operations are known.
_DECOMPOSITIONS = {
    "linalg_cholesky_ex": "cholesky", "cholesky": "cholesky", "linalg_ldl_factor_ex": "ldl", "linalg_lu": "lu",
    "linalg_lu_factor_ex": "lu", "_linalg_det": "lu", "_linalg_slogdet": "lu", "linalg_inv_ex": "inverse",
    "cholesky_inverse": "cholesky_inverse", "_linalg_solve_ex": "solve", "linalg_lu_solve": "solve_factored",
    "cholesky_solve": "solve_factored", "linalg_householder_product": "householder", "geqrf": "householder",
    "linalg_qr": "qr", "_linalg_eigh": "eigh", "linalg_eig": "eig", "_linalg_svd": "svd", "linalg_pinv": "pinv",
    "linalg_matrix_exp": "exponential", "linalg_lstsq": "least_squares",
}  # fmt: skip

OPERATORS: Mapping[str, OpRule] = {
    "convolution": OpRule(kind=OpKind.CONV, inputs=("input", "weight", "bias"), attributes="convolution"),
    "_convolution": OpRule(kind=OpKind.CONV, inputs=("input", "weight", "bias"), attributes="convolution"),
    "deform_conv2d": OpRule(kind=OpKind.CONV, inputs=("input", "weight", "bias"), attributes="deformed_convolution"),
    "linear": OpRule(kind=OpKind.LINEAR, inputs=("input", "weight", "bias")),
    "addmm": OpRule(kind=OpKind.MATMUL, inputs=("mat1", "mat2", "self")),
    "addmv": OpRule(kind=OpKind.MATMUL, inputs=("mat", "vec", "self")),
    "baddbmm": OpRule(kind=OpKind.MATMUL, inputs=("batch1", "batch2", "self")),
    "mm": OpRule(kind=OpKind.MATMUL, inputs=("self", "mat2")),
    "bmm": OpRule(kind=OpKind.MATMUL, inputs=("self", "mat2")),
    "_grouped_mm": OpRule(kind=OpKind.MATMUL, inputs=("self", "mat2")),
    "grouped_mm_fallback": OpRule(kind=OpKind.MATMUL, inputs=("input", "weight")),  # transformers'
    **{
        name: OpRule(kind=OpKind.MATMUL, inputs=("self", "mat2", "bias"))
        for name in ("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
    },
    "_int_mm": OpRule(kind=OpKind.MATMUL, inputs=("self", "mat2")),
    # Scales stand where a bias does: the same kernel applies them to what it writes.
    "_weight_int8pack_mm": OpRule(kind=OpKind.LINEAR, inputs=("self", "mat2", "scales")),
    **{
        name: OpRule(kind=OpKind.LINEAR, inputs=("self", "mat2", "qScaleAndZeros"))
        for name in ("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu")
    },
    **{
        name: OpRule(kind=OpKind.UNKNOWN, attributes=f"decomposition_{counted}")
        for name, counted in _DECOMPOSITIONS.items()
    },
    **{name: OpRule(kind=OpKind.UNKNOWN, attributes="distances") for name in ("_cdist_forward", "_pdist_forward")},
    "linalg_solve_triangular": OpRule(kind=OpKind.MATMUL, inputs=("self", "B"), attributes="triangular_solve"),
    "mv": OpRule(kind=OpKind.MATMUL, inputs=("self", "vec")),
    "dot": OpRule(kind=OpKind.MATMUL, inputs=("self", "tensor")),
    "vdot": OpRule(kind=OpKind.MATMUL, inputs=("self", "other")),
    "scaled_dot_product_attention": OpRule(
        kind=OpKind.ATTENTION, inputs=("query", "key", "value", "attn_mask"), attributes="attention"
    ),
    "lstm": OpRule(kind=OpKind.LSTM, attributes="recurrent"),
    "gru": OpRule(kind=OpKind.GRU, attributes="recurrent"),
    "rnn_tanh": OpRule(kind=OpKind.RNN, attributes="recurrent"),
    "rnn_relu": OpRule(kind=OpKind.RNN, attributes="recurrent"),
    "embedding": OpRule(kind=OpKind.EMBEDDING, inputs=("weight", "indices"), attributes="lookup"),
    **{
        name: OpRule(kind=OpKind.EMBEDDING, inputs=("weight", "indices", "offsets"), attributes="lookup")
        for name in ("_embedding_bag", "_embedding_bag_forward_only")
    },
    "batch_norm": OpRule(
        kind=OpKind.BATCH_NORM,
        inputs=("input", "weight", "bias", "running_mean", "running_var"),
        attributes="batch_norm",
    ),
    # What decompositions of an exported program make of it.
    **{
        name: OpRule(
            kind=OpKind.BATCH_NORM,
            inputs=("input", "weight", "bias", "running_mean", "running_var"),
            attributes=attributes,
        )
        for attributes, names in {
            "batch_norm": "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
            "cudnn_batch_norm miopen_batch_norm",
            "per_channel": "_native_batch_norm_legit_no_training _batch_norm_no_update",
            "batch_norm_of_batch": "_batch_norm_with_update _batch_norm_with_update_functional",
        }.items()
        for name in names.split()
    },
    "instance_norm": OpRule(
        kind=OpKind.INSTANCE_NORM,
        inputs=("input", "weight", "bias", "running_mean", "running_var"),
        attributes="per_channel",
    ),
    "native_layer_norm": OpRule(
        kind=OpKind.LAYER_NORM, inputs=("input", "weight", "bias"), attributes="normalized_shape"
    ),
    "native_group_norm": OpRule(kind=OpKind.GROUP_NORM, inputs=("input", "weight", "bias"), attributes="group_norm"),
    "rms_norm": OpRule(kind=OpKind.RMS_NORM, inputs=("input", "weight"), attributes="normalized_shape"),
    "max_pool1d": OpRule(kind=OpKind.MAX_POOL, inputs=("self",), attributes="pool"),
    "max_pool2d_with_indices": OpRule(kind=OpKind.MAX_POOL, inputs=("self",), attributes="pool"),
    "max_pool3d_with_indices": OpRule(kind=OpKind.MAX_POOL, inputs=("self",), attributes="pool"),
    **{
        name: OpRule(kind=OpKind.MAX_POOL, inputs=("self",), attributes="fractional_pool")
        for name in ("fractional_max_pool2d", "fractional_max_pool3d")
    },
    "avg_pool1d": OpRule(kind=OpKind.AVG_POOL, inputs=("self",), attributes="pool"),
    "avg_pool2d": OpRule(kind=OpKind.AVG_POOL, inputs=("self",), attributes="pool"),
    "avg_pool3d": OpRule(kind=OpKind.AVG_POOL, inputs=("self",), attributes="pool"),
    "adaptive_avg_pool1d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "adaptive_avg_pool2d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "adaptive_avg_pool3d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "_adaptive_avg_pool2d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "_adaptive_avg_pool3d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "adaptive_max_pool2d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "adaptive_max_pool3d": OpRule(kind=OpKind.GLOBAL_POOL, inputs=("self",), attributes="output_size"),
    "_softmax": OpRule(kind=OpKind.SOFTMAX, attributes="axes"),
    "_safe_softmax": OpRule(kind=OpKind.SOFTMAX, attributes="axes"),
    "_log_softmax": OpRule(kind=OpKind.LOG_SOFTMAX, attributes="axes"),
    **{
        name: OpRule(kind=OpKind.REDUCE, function=function, inputs=("self",), attributes="axes")
        for name, function in _REDUCE_FUNCTIONS.items()
    },
    # The loss of a model that takes its labels.
    **{
        name: OpRule(kind=OpKind.GATHER, function="nll_loss", inputs=("self", "target"))
        for name in ("nll_loss_forward", "nll_loss2d_forward")
    },
    **{name: OpRule(kind=OpKind.REDUCE, function=name, inputs=("self", "target")) for name in sorted(LOSSES)},
    **_named(OpKind.CUMULATIVE, "cumsum cumprod logcumsumexp cummax cummin"),
    **_named(OpKind.SORT, "msort unique_dim unique_consecutive _unique2 searchsorted bucketize histc bincount"),
    **{
        name: OpRule(kind=OpKind.SORT, function=name, attributes="row")
        for name in ("sort", "topk", "kthvalue", "argsort")
    },
    "nms": OpRule(kind=OpKind.SORT, function="nms"),
    **_plain(OpKind.RELU, "relu"),
    **_plain(OpKind.LEAKY_RELU, "leaky_relu"),
    "rrelu_with_noise": OpRule(kind=OpKind.LEAKY_RELU, inputs=("self",)),
    **_plain(OpKind.PRELU, "_prelu_kernel prelu"),
    **_plain(OpKind.ELU, "elu celu selu"),
    **_plain(OpKind.GELU, "gelu"),
    **_plain(OpKind.SILU, "silu"),
    **_plain(OpKind.MISH, "mish"),
    **_plain(OpKind.SIGMOID, "sigmoid"),
    **_plain(OpKind.TANH, "tanh"),
    **_plain(OpKind.SOFTPLUS, "softplus"),
    **_plain(OpKind.HARD_SWISH, "hardswish"),
    **_plain(OpKind.HARD_SIGMOID, "hardsigmoid"),
    **_plain(OpKind.CLIP, "clamp clamp_min clamp_max hardtanh relu6 clip"),
    **_plain(OpKind.ADD, "add"),
    **_plain(OpKind.SUB, "sub rsub"),
    **_plain(OpKind.MUL, "mul"),
    **_plain(OpKind.DIV, "div true_divide"),
    **_plain(OpKind.POW, "pow"),
    **_named(OpKind.BINARY, "addcmul addcdiv threshold _weight_norm_interface"),
    **{name: OpRule(kind=OpKind.BINARY, function=function) for name, function in _BINARY_FUNCTIONS.items()},
    "_thnn_fused_lstm_cell": OpRule(
        kind=OpKind.BINARY,
        function="lstm_cell",
        inputs=("input_gates", "hidden_gates", "cx", "input_bias", "hidden_bias"),
    ),
    "_thnn_fused_gru_cell": OpRule(
        kind=OpKind.BINARY,
        function="gru_cell",
        inputs=("input_gates", "hidden_gates", "hx", "input_bias", "hidden_bias"),
    ),
    **_named(
        OpKind.UNARY,
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal abs neg sign sgn sin cos tan asin acos atan "
        "sinh cosh asinh acosh atanh erf erfc erfinv floor ceil round trunc frac logical_not bitwise_not isnan isinf "
        "isneginf isposinf isfinite log_sigmoid_forward hardshrink softshrink nan_to_num logit lgamma digamma angle "
        "real imag special_i0 special_i1 sinc glu conj_physical _conj_physical positive deg2rad rad2deg signbit i0 "
        "frexp polygamma mvlgamma",
    ),
    **{f"special_{name}": OpRule(kind=OpKind.UNARY, function=name) for name in _SPECIAL_UNARY.split()},
    **{f"special_{name}": OpRule(kind=OpKind.BINARY, function=name) for name in _SPECIAL_BINARY.split()},
    **{f"{name}_copy": OpRule(kind=OpKind.COPY, function=f"{name}_copy") for name in _COPIED_VIEWS.split()},
    **_plain(OpKind.CAST, "_to_copy"),
    **_named(
        OpKind.COPY,
        "clone copy contiguous repeat tile flip roll rot90 pixel_shuffle pixel_unshuffle channel_shuffle "
        "native_channel_shuffle im2col col2im unfold_backward tril triu _reshape_copy repeat_interleave block_diag "
        "tril_indices triu_indices renorm trace diag_embed _pin_memory",
    ),
    **_plain(OpKind.CONCAT, "cat stack concat _chunk_cat"),
    **_named(
        OpKind.PAD,
        "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d _pad_circular",
    ),
    **{
        name: OpRule(kind=OpKind.RESIZE, function=mode, inputs=("self",))
        for mode, names in {
            "nearest": "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
            "_upsample_nearest_exact2d _upsample_nearest_exact3d",
            "linear": "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa",
            "cubic": "upsample_bicubic2d _upsample_bicubic2d_aa",
        }.items()
        for name in names.split()
    },
    **_named(OpKind.GATHER, "gather index _unsafe_index index_select take masked_select nonzero roi_align roi_pool"),
    **_named(OpKind.GATHER, "nonzero_static"),
    **_named(OpKind.GATHER, "ps_roi_align ps_roi_pool"),
    **_named(
        OpKind.SCATTER,
        "scatter scatter_add index_put _unsafe_index_put _index_put_impl index_add index_copy index_fill "
        "masked_scatter select_scatter slice_scatter one_hot diagonal_scatter as_strided_scatter put max_unpool2d "
        "max_unpool3d",
    ),
    **{
        name: OpRule(kind=OpKind.SCATTER, function=name, attributes="reduction")
        for name in ("scatter_reduce", "index_reduce")
    },
    **_plain(OpKind.GRID_SAMPLE, "grid_sampler_2d grid_sampler_3d"),
    **{
        f"_{name}": OpRule(kind=OpKind.FFT, function=name, attributes="axes")
        for name in ("fft_r2c", "fft_c2r", "fft_c2c")
    },
    **_named(
        OpKind.FILL,
        "zeros ones full empty arange linspace logspace eye scalar_tensor zeros_like ones_like full_like empty_like "
        "new_zeros new_ones new_full new_empty empty_strided new_empty_strided fill zero empty_permuted "
        "hann_window hamming_window",
    ),
    **_named(
        OpKind.RANDOM,
        "rand rand_like randn randn_like randint randint_like randperm bernoulli multinomial uniform normal "
        "exponential random poisson cauchy geometric log_normal",
    ),
    "native_dropout": OpRule(kind=OpKind.DROPOUT, inputs=("input",)),
    **_named(OpKind.QUANTIZE, "quantize_per_tensor quantize_per_channel fake_quantize_per_tensor_affine"),
    **_named(OpKind.QUANTIZE, "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"),
    **_named(OpKind.DEQUANTIZE, "dequantize"),
}

# Compositions that stay one node: they have a kind of their own, and on a GPU they run as one or a few kernels that
# their parts do not describe.
KEPT_WHOLE = frozenset(
    {
        "linear",
        "scaled_dot_product_attention",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "batch_norm",
        "instance_norm",
        "rms_norm",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
    }
)
