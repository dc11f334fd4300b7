from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from dippm.errors import UsageError
from dippm.frontends.transformers_settings import refuse_unknown_settings

if find_spec("torch") is None or find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)


def _check(config: str, options: dict[str, Any]) -> None:
    import transformers

    refuse_unknown_settings("hf:mine", getattr(transformers, config)(**options), options)


@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        ("BertConfig", {"num_hiden_layers": 3}, "'num_hiden_layers'. The nearest: num_hidden_layers"),
        ("BertConfig", {"zzzzz": 3}, "'zzzzz'. Leave it out."),
        ("GPT2Config", {"n_embd": 64, "n_layerr": 2}, "'n_layerr'. The nearest: n_layer"),
        ("GPT2Config", {"hiden_size": 64}, "hidden_size"),
        ("CLIPConfig", {"text_config": {"num_hiden_layers": 3}}, "The nearest: text_config.num_hidden_layers"),
        ("CLIPConfig", {"image_size": 64}, "The nearest: vision_config.image_size"),
    ],
)
def test_a_setting_that_is_not_there_is_refused_with_the_nearest(
    config: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        _check(config, options)
    assert caught.value.code == "zoo.option_unknown"
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("BertConfig", {"num_hidden_layers": 3, "num_labels": 7, "attn_implementation": "eager"}),
        ("GPT2Config", {"num_hidden_layers": 3, "use_cache": False, "bos_token_id": 0, "torch_dtype": "float32"}),
        ("MistralConfig", {"head_dim": 32, "rope_theta": 1e6, "sliding_window": None}),
        ("CLIPConfig", {"text_config": {"num_hidden_layers": 3}, "vision_config": {"image_size": 64}}),
        ("Qwen2VLConfig", {"hidden_size": 64}),
    ],
)
def test_what_a_configuration_or_its_parts_take_is_taken(config: str, options: dict[str, Any]) -> None:
    _check(config, options)
