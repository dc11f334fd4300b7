"""Fused operators mean what their parts mean: compared with PyTorch's own results on real numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.frontends.torch.expansions import EXPANSIONS  # noqa: E402


def test_multi_head_attention() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(2, 5, 12)
    with torch.inference_mode():
        expected, weights = layer(x, x, x)
        arguments = (12, 3, layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)
        fused, _ = EXPANSIONS["_native_multi_head_attention"](x, x, x, *arguments, None, False)
        slow, scores = EXPANSIONS["_native_multi_head_attention"](x, x.clone(), x, *arguments)
    torch.testing.assert_close(fused, expected)
    assert slow.shape == expected.shape
    assert scores.shape == weights.shape


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        12, 3, dim_feedforward=20, batch_first=True, norm_first=norm_first, activation=activation
    ).eval()
    attend = layer.self_attn
    x = torch.randn(2, 5, 12)
    with torch.inference_mode():
        result = EXPANSIONS["_transformer_encoder_layer_fwd"](
            x, 12, 3, attend.in_proj_weight, attend.in_proj_bias, attend.out_proj.weight, attend.out_proj.bias,
            activation == "gelu", norm_first, layer.norm1.eps, layer.norm1.weight, layer.norm1.bias,
            layer.norm2.weight, layer.norm2.bias, layer.linear1.weight, layer.linear1.bias, layer.linear2.weight,
            layer.linear2.bias,
        )  # fmt: skip
        torch.testing.assert_close(result, layer(x))
