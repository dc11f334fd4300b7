"""Builders over transformers' classes, from configurations: random weights, nothing downloaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

__all__ = ["build_bert", "build_gpt2", "build_llama", "build_vit"]


def _transformers(name: str) -> Any:
    return getattr(import_module("transformers"), name)


def _make(name: str, config: Any) -> nn.Module:
    module: nn.Module = _transformers(name)(config)
    return module


def build_bert(
    *, hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int, positions: int, head: bool
) -> nn.Module:
    """BERT, with the head of masked language modelling or with its pooler alone."""
    config = _transformers("BertConfig")(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
    )
    return _make("BertForMaskedLM" if head else "BertModel", config)


def build_gpt2(
    *, hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int, positions: int, head: bool
) -> nn.Module:
    """GPT-2, with or without its language-model head; reads a whole sequence, keeps no cache."""
    config = _transformers("GPT2Config")(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        n_inner=intermediate,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _make("GPT2LMHeadModel" if head else "GPT2Model", config)


def build_llama(
    *,
    hidden: int,
    layers: int,
    heads: int,
    key_value_heads: int,
    intermediate: int,
    vocabulary: int,
    positions: int,
    head: bool,
) -> nn.Module:
    """A decoder as Llama's: rotary positions, gated layers, grouped key and value heads; keeps no cache."""
    config = _transformers("LlamaConfig")(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=positions,
        use_cache=False,
    )
    return _make("LlamaForCausalLM" if head else "LlamaModel", config)


def build_vit(
    *, hidden: int, layers: int, heads: int, intermediate: int, image_size: int, patch_size: int
) -> nn.Module:
    """ViT as transformers has it, with a classifier."""
    config = _transformers("ViTConfig")(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        image_size=image_size,
        patch_size=patch_size,
        num_labels=1000,
    )
    return _make("ViTForImageClassification", config)
