"""At the published configurations the builders give models of the published sizes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
if find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

from dippm.datasets.recipes.architectures.hf_classes import (  # noqa: E402
    build_bert,
    build_gpt2,
    build_llama,
    build_vit,
)
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops  # noqa: E402

import_torchvision_ops()

_BASE = {"hidden": 768, "layers": 12, "heads": 12, "intermediate": 3072}
Count = Callable[[torch.nn.Module], int]


@pytest.mark.parametrize(("head", "millions"), [(False, 109482240), (True, 109514298)])
def test_bert_base(head: bool, millions: int, parameters: Count) -> None:
    module = build_bert(**_BASE, vocabulary=30522, positions=512, head=head)
    assert parameters(module) == millions


@pytest.mark.parametrize("head", [False, True])
def test_gpt2_small_shares_its_table_with_the_head(head: bool, parameters: Count) -> None:
    module = build_gpt2(**_BASE, vocabulary=50257, positions=1024, head=head)
    assert parameters(module) == 124439808
    assert module.config.use_cache is False


def test_llama_2_of_seven_billion(parameters: Count) -> None:
    arguments = {"hidden": 4096, "layers": 32, "heads": 32, "intermediate": 11008}
    module = build_llama(**arguments, key_value_heads=32, vocabulary=32000, positions=4096, head=True)
    assert parameters(module) == 6738415616


def test_llama_shares_keys_and_values_among_heads() -> None:
    module = build_llama(
        hidden=64, layers=1, heads=8, key_value_heads=2, intermediate=96, vocabulary=100, positions=32, head=False
    )
    attention = module.layers[0].self_attn
    assert (attention.q_proj.out_features, attention.k_proj.out_features) == (64, 16)


def test_vit_base(parameters: Count) -> None:
    module = build_vit(**_BASE, image_size=224, patch_size=16)
    assert parameters(module) == 86567656
