"""Operators that PyTorch runs as several others, as those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

__all__ = [
    "DERIVED_WHOLE",
    "EXPANSIONS",
    "KEEP_ARGUMENTS",
    "drop_out",
    "is_attention_fused",
    "is_linear_whole",
    "linear_of_copy",
]

_MATRIX = 2
_SAMPLES_AND_HEADS = 4
_SUM = 2
# TensorCompare.cpp: elements are looked for one by one among fewer than ten times their number to this power.
_FEW_TESTS, _FEW_TESTS_GROWTH = 10.0, 0.145
# Place of the number of groups behind stride, padding and dilation.
_DEFORMED_GROUPS = 6
# PyTorch's own way to run an operator as others, where that is not what autograd sees.
_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd


def _native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,  # noqa: ARG001 - names are the operator's
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fast path of ``nn.MultiheadAttention`` in evaluation mode."""
    batch, length = query.shape[:2]

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(batch, x.shape[1], num_head, embed_dim // num_head).transpose(1, 2)

    if query is key and key is value:
        q, k, v = (heads(part) for part in F.linear(query, qkv_weight, qkv_bias).chunk(3, dim=-1))
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        q, k, v = (
            heads(F.linear(x, weight, bias))
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
    if not need_weights:
        attended = F.scaled_dot_product_attention(q, k, v)
        scores = query.new_empty((0,))
    else:
        probabilities = torch.softmax(torch.matmul(q, k.transpose(-2, -1)), dim=-1)
        attended = torch.matmul(probabilities, v)
        scores = probabilities.mean(dim=1) if average_attn_weights else probabilities
    return F.linear(attended.transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias), scores


def _transformer_encoder_layer_fwd(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """The fast path of ``nn.TransformerEncoderLayer`` in evaluation mode."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        return _native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights=False
        )[0]

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(F.layer_norm(src, (embed_dim,), norm_weight_1, norm_bias_1, eps))
        return x + feed_forward(F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps))
    x = F.layer_norm(src + attend(src), (embed_dim,), norm_weight_1, norm_bias_1, eps)
    return F.layer_norm(x + feed_forward(x), (embed_dim,), norm_weight_2, norm_bias_2, eps)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Loss.cpp: one loss for each sample, then their mean by label (1) or their sum (2).

    PyTorch's own composition fills a tensor with lengths that are given as numbers, and one without data takes none.
    """
    scores = log_probs if log_probs.dim() > _MATRIX else log_probs.unsqueeze(1)
    read, labels = (x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in (input_lengths, target_lengths))
    losses: torch.Tensor = torch.ops.aten._ctc_loss(scores, targets, read, labels, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0.0, losses)
    if reduction == 1:
        return (losses / labels.clamp_min(1)).mean()
    if reduction == _SUM:
        return losses.sum()
    return losses if scores is log_probs else losses.squeeze(0)


def _addbmm(
    total: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """A sum of products as one product over the samples as well.

    PyTorch runs one product for each sample; how many nodes those are would depend on the batch.
    """
    rows = first.transpose(0, 1).reshape(first.shape[1], -1)
    return torch.addmm(total, rows, second.reshape(-1, second.shape[-1]), beta=beta, alpha=alpha)


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The softmax of attention that is written out: it gives zeros where no key may be looked at."""
    result: torch.Tensor = torch.ops.aten._safe_softmax.default._op_dk(_EXPLICIT, x, dim, dtype)
    return result


def _bilinear(
    input1: torch.Tensor, input2: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """A bilinear layer as ``aten::_trilinear`` runs it: feature by feature, two products and a sum for each."""
    first, second = input1.reshape(-1, input1.shape[-1]), input2.reshape(-1, input2.shape[-1], 1)
    zeros = first.new_zeros(first.shape[0], weight.shape[0])
    # PyTorch adds in place; what is put together here instead can be differentiated.
    features = [
        column + torch.bmm(torch.mm(first, matrix).unsqueeze(1), second).squeeze(1)
        for column, matrix in zip(zeros.unsqueeze(2).unbind(1), weight, strict=True)
    ]
    result = torch.cat(features, dim=1).view(*input1.shape[:-1], weight.shape[0])
    return result if bias is None else result + bias


def _euclidean_distance(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """Distances of all rows to all others, ``cdist`` of many rows: by one product of what they are extended to."""
    squares = [x.pow(2).sum(-1, keepdim=True) for x in (x1, x2)]
    ones = [torch.ones_like(square) for square in squares]
    left = torch.cat([x1 * -2, squares[0], ones[0]], dim=-1)
    right = torch.cat([x2, ones[1], squares[1]], dim=-1)
    return left.matmul(right.mT).clamp_min_(0).sqrt_()


def _is_in(
    elements: torch.Tensor | float, tests: torch.Tensor | float, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """Which elements are among others: each beside each where those are few, as ``aten::isin`` decides it, else sorted.

    PyTorch sorts both together and leaves out what is there twice, whose number depends on values.
    """
    del assume_unique  # it spares PyTorch the search for what is there twice
    known = next(item for item in (elements, tests) if isinstance(item, torch.Tensor))
    wanted, among = (
        item if isinstance(item, torch.Tensor) else torch.full((), item, device=known.device)
        for item in (elements, tests)
    )
    if among.numel() < _FEW_TESTS * wanted.numel() ** _FEW_TESTS_GROWTH:
        found = (wanted.unsqueeze(-1) == among.reshape(-1)).any(-1)
    else:
        ordered = among.reshape(-1).sort().values
        places = torch.searchsorted(ordered, wanted).clamp(max=ordered.numel() - 1)
        found = ordered[places] == wanted
    return ~found if invert else found


def _lstm_cell(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of an LSTM on a GPU: two products, and one kernel for all gates."""
    hidden, cell = states
    gates = x.matmul(w_ih.t()), hidden.matmul(w_hh.t())
    after: torch.Tensor
    after, cell, _ = torch.ops.aten._thnn_fused_lstm_cell.default(*gates, cell, b_ih, b_hh)
    return after, cell


def _gru_cell(
    x: torch.Tensor,
    hidden: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of a GRU on a GPU, likewise."""
    gates = x.matmul(w_ih.t()), hidden.matmul(w_hh.t())
    after: torch.Tensor = torch.ops.aten._thnn_fused_gru_cell.default(*gates, hidden, b_ih, b_hh)[0]
    return after


def _deformed_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    _mask: torch.Tensor,
    bias: torch.Tensor,
    *window: Any,
) -> torch.Tensor:
    """A convolution at learned offsets as torchvision runs it: samples in columns, their product, and the bias."""
    groups = int(window[_DEFORMED_GROUPS])
    taps = weight.shape[2] * weight.shape[3]
    samples, (high, wide) = x.shape[0], offset.shape[2:]
    # Of the places only their number counts: two for each tap and pixel, whichever channels share them.
    places = offset.as_strided((samples, taps * high, wide, 2), (offset.stride(0), 2 * wide, 2, 1))
    columns = F.grid_sample(x, places, align_corners=False)
    columns = columns.view(samples, groups, -1, high * wide)
    product = torch.matmul(weight.view(groups, weight.shape[0] // groups, -1), columns)
    return product.view(samples, weight.shape[0], high, wide) + bias.view(1, -1, 1, 1)


def _singular_values(A: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:  # noqa: N803 - the operator's own
    """Without the vectors, which PyTorch computes where a gradient goes back, and where tensors are not its own."""
    values: torch.Tensor = torch.ops.aten._linalg_svd(A, False, False, driver=driver)[1]
    return values


def _symmetric_values(A: torch.Tensor, UPLO: str = "L") -> torch.Tensor:  # noqa: N803
    """Eigenvalues without vectors, as singular values are."""
    values: torch.Tensor = torch.ops.aten._linalg_eigh(A, UPLO, False)[0]
    return values


EXPANSIONS: Mapping[str, Callable[..., Any]] = {
    "_safe_softmax": _safe_softmax,
    "bilinear": _bilinear,
    "addbmm": _addbmm,
    "ctc_loss": _ctc_loss,
    "affine_grid_generator": partial(torch.ops.aten.affine_grid_generator.default._op_dk, _EXPLICIT),
    "lift_fresh_copy": torch.ops.aten.lift_fresh.default,
    "isin": _is_in,
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "_euclidean_dist": _euclidean_distance,
    "_native_multi_head_attention": _native_multi_head_attention,
    "_transformer_encoder_layer_fwd": _transformer_encoder_layer_fwd,
    "deform_conv2d": _deformed_convolution,
    "linalg_svdvals": _singular_values,
    "linalg_eigvalsh": _symmetric_values,
}

# Expansions that a model in training keeps whole: their derivative is that of one operator, which keeps its result or
# computes more than is asked for, and a deformable convolution makes its columns again.
DERIVED_WHOLE = frozenset({"_safe_softmax", "deform_conv2d", "linalg_svdvals", "linalg_eigvalsh"})

#: What autograd sees as one function that keeps nothing but its arguments.
KEEP_ARGUMENTS = frozenset({"bilinear"})


def is_attention_fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, enable_gqa: bool = False
) -> bool:
    """Whether a GPU runs this attention as one kernel.

    PyTorch's fused kernels take samples and heads in front of the last two dimensions, the same samples of all three,
    and fewer heads of keys than of queries only where that is asked for (``sdp_utils_cpp.h``: ``check_tensor_shapes``,
    ``check_batch_size_and_num_heads_dense``). Everything else runs written out, with its scores in memory.
    """
    shapes = [tensor.shape for tensor in (query, key, value)]
    if any(len(shape) != _SAMPLES_AND_HEADS for shape in shapes):
        return False
    samples, heads = {shape[0] for shape in shapes}, {shape[1] for shape in shapes[0 if not enable_gqa else 1 :]}
    return len(samples) == len(heads) == 1


def is_linear_whole(x: torch.Tensor) -> bool:
    """Whether a linear layer reads this input where it lies."""
    return x.dim() <= _MATRIX or x.is_contiguous()


def linear_of_copy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A linear layer on rows that are not contiguous, which PyTorch copies first.

    It then adds the bias in a kernel of its own. That kernel is left out, so that a batch of 1, where every transposed
    input counts as contiguous, has the same operators but for the copy.
    """
    return F.linear(x.contiguous(), weight, bias)


def drop_out(
    func: Any, name: str, x: torch.Tensor, share: float, is_active: bool, *, is_in_place: bool
) -> torch.Tensor:
    """Dropout as it runs on a GPU: one kernel that also writes the mask, unless it works in place.

    Args:
        func: The operator.
        name: Its name.
        x: What it reads.
        share: Which part of it is dropped.
        is_active: Whether anything is.
        is_in_place: Whether it writes over what it reads.
    """
    if not is_active or share == 0 or not x.numel():
        return x
    if name == "dropout" and not is_in_place and share < 1:
        result: torch.Tensor = torch.ops.aten.native_dropout.default(x, share, True)[0]
    else:
        result = func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, x, share, is_active)
    return result
