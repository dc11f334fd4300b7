"""The closed vocabulary of operators, with what each kind's node must carry.

A kind says which computation a node is, never how a framework spells it. Conventions that the cost rules rely on
(input order, then attributes; shapes are those of the tensors, in NCHW order for images whatever the memory layout):

=================== ==================================== ===================================================
kind                inputs                               attributes
=================== ==================================== ===================================================
CONV                x, weight [Co, Ci/g, *k], bias?      kernel, stride, dilation, padding (tuples), groups
CONV_TRANSPOSE      x, weight [Ci, Co/g, *k], bias?      the same
LINEAR              x [..., K], weight, bias?            (N is the last dimension of the output)
MATMUL              a [..., M, K], b [..., K, N]         contracted (K; only where a's last dimension is not K),
                                                         equation (until it is laid out: letters of a, b and result)
ATTENTION           q, k, v [B, H, L, E], mask?          is_causal, has_dropout, is_by_head, is_time_first (how q lies)
LSTM GRU RNN        x, then states and weights           hidden_size, num_layers, num_directions, batch_first,
                                                         is_reversed (one direction, from the end), has_dropout,
                                                         variant (what tells it from a plain layer, such as other
                                                         activations)
EMBEDDING           weight [V, E], indices, offsets?     is_sparse (only where its gradient is)
*_NORM              x, scale?, bias?, mean?, var?        groups (GROUP_NORM), axes_size (elements normalised over),
                                                         is_training (BATCH_NORM by the batch's own statistics)
MAX_POOL AVG_POOL   x                                    kernel, stride, padding
GLOBAL_POOL         x                                    output_size (adaptive pooling; 1x1 is the common case)
SOFTMAX REDUCE      x                                    axes (tuple, non-negative), function (REDUCE: "mean", ...)
SCATTER             x, index, values                     function, reduction ("mean", "amax"; of values that meet,
                                                         where they are not added)
SORT                x                                    function ("sort", "topk", ...), axes (that of its rows)
RESIZE              x                                    mode
FFT                 x                                    axes (of x), parts (2 where its last dimension holds the real
                                                         and the imaginary parts)
DROPOUT             x                                    (outputs the result and the mask, one byte an element)
UNARY BINARY        x (, y)                              function ("exp", "maximum", "where", ...)
VIEW                x                                    function; launches no kernel, output aliases the input
COPY                x                                    function; a copy in other order or layout
FILL                -                                    writes its output, reads nothing of size
CONTROL_FLOW        whatever flows in                    function ("if", "loop", "scan")
CONV_WEIGHT_GRAD    gradient of the output, x            those of the convolution, is_transposed
*_GRAD              gradient of the output, then what    function (the kind whose gradient it is), and that
                    the forward pass has saved           kind's attributes
OPTIMIZER           what it updates, then what it reads  function, updated (how many of the inputs it updates)
UNKNOWN             anything                             flops_per_element (of the first input, where known;
                                                         else costed by its bytes, reported as unsupported)
any                 those above                          most_runs (how many times as often as in the graph it may
                                                         run, in a loop that is not written out to its end)
=================== ==================================== ===================================================
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "ACTIVATION_KINDS",
    "ARITHMETIC_KINDS",
    "CONTRACTION_KINDS",
    "NORM_KINDS",
    "RECURRENT_KINDS",
    "TRAINING_KINDS",
    "OpKind",
]


class OpKind(StrEnum):
    """What a node computes."""

    CONV = "conv"
    CONV_TRANSPOSE = "conv_transpose"
    LINEAR = "linear"
    MATMUL = "matmul"
    ATTENTION = "attention"
    LSTM = "lstm"
    GRU = "gru"
    RNN = "rnn"
    EMBEDDING = "embedding"
    BATCH_NORM = "batch_norm"
    LAYER_NORM = "layer_norm"
    GROUP_NORM = "group_norm"
    INSTANCE_NORM = "instance_norm"
    RMS_NORM = "rms_norm"
    LOCAL_RESPONSE_NORM = "local_response_norm"
    MAX_POOL = "max_pool"
    AVG_POOL = "avg_pool"
    GLOBAL_POOL = "global_pool"
    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    REDUCE = "reduce"
    CUMULATIVE = "cumulative"
    SORT = "sort"
    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    PRELU = "prelu"
    ELU = "elu"
    GELU = "gelu"
    SILU = "silu"
    MISH = "mish"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    SOFTPLUS = "softplus"
    HARD_SWISH = "hard_swish"
    HARD_SIGMOID = "hard_sigmoid"
    CLIP = "clip"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    POW = "pow"
    UNARY = "unary"
    BINARY = "binary"
    CAST = "cast"
    COPY = "copy"
    CONCAT = "concat"
    PAD = "pad"
    RESIZE = "resize"
    GATHER = "gather"
    SCATTER = "scatter"
    GRID_SAMPLE = "grid_sample"
    FFT = "fft"
    FILL = "fill"
    RANDOM = "random"
    DROPOUT = "dropout"
    QUANTIZE = "quantize"
    DEQUANTIZE = "dequantize"
    VIEW = "view"
    CONV_WEIGHT_GRAD = "conv_weight_grad"
    ATTENTION_GRAD = "attention_grad"
    RECURRENT_GRAD = "recurrent_grad"
    NORM_GRAD = "norm_grad"
    SOFTMAX_GRAD = "softmax_grad"
    POOL_GRAD = "pool_grad"
    ELEMENTWISE_GRAD = "elementwise_grad"
    OPTIMIZER = "optimizer"
    CONTROL_FLOW = "control_flow"
    UNKNOWN = "unknown"


CONTRACTION_KINDS = frozenset({OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.LINEAR, OpKind.MATMUL, OpKind.ATTENTION})
RECURRENT_KINDS = frozenset({OpKind.LSTM, OpKind.GRU, OpKind.RNN})
NORM_KINDS = frozenset(
    {
        OpKind.BATCH_NORM,
        OpKind.LAYER_NORM,
        OpKind.GROUP_NORM,
        OpKind.INSTANCE_NORM,
        OpKind.RMS_NORM,
        OpKind.LOCAL_RESPONSE_NORM,
    }
)
ACTIVATION_KINDS = frozenset(
    {
        OpKind.RELU,
        OpKind.LEAKY_RELU,
        OpKind.PRELU,
        OpKind.ELU,
        OpKind.GELU,
        OpKind.SILU,
        OpKind.MISH,
        OpKind.SIGMOID,
        OpKind.TANH,
        OpKind.SOFTPLUS,
        OpKind.HARD_SWISH,
        OpKind.HARD_SIGMOID,
        OpKind.CLIP,
    }
)
ARITHMETIC_KINDS = frozenset({OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.POW})
TRAINING_KINDS = frozenset(
    {
        OpKind.CONV_WEIGHT_GRAD,
        OpKind.ATTENTION_GRAD,
        OpKind.RECURRENT_GRAD,
        OpKind.NORM_GRAD,
        OpKind.SOFTMAX_GRAD,
        OpKind.POOL_GRAD,
        OpKind.ELEMENTWISE_GRAD,
        OpKind.OPTIMIZER,
    }
)
"""Kinds that only a training step has."""
