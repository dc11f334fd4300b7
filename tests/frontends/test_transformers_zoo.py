import logging
import re
from importlib.util import find_spec

import pytest

from dippm.costs.precision import Precision
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends import zoo
from dippm.frontends.named_checkpoints import load_checkpoints

if find_spec("torch") is None or find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)


@pytest.mark.parametrize("name", list(load_checkpoints("hf")))
def test_a_checkpoint_has_the_weights_that_it_is_published_with(name: str) -> None:
    module, _ = zoo.build(f"hf:{name}")
    assert sum(parameter.numel() for parameter in module.parameters()) == load_checkpoints("hf")[name].parameters


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B", None, "bfloat16"),
        ("Qwen/Qwen2.5-0.5B-Instruct#decode=8", None, "bfloat16"),
        ("Qwen/Qwen2.5-0.5B", Precision.FP32, "float32"),
        ("Qwen/Qwen2.5-0.5B", Precision.AMP, "float32"),
        ("Qwen/Qwen2.5-0.5B", Precision.FP16, "float16"),
        ("facebook/opt-125m", None, "float16"),
        ("openai-community/gpt2", None, "float32"),
        # A class is no checkpoint.
        ("OPTForCausalLM", None, "float32"),
    ],
)
def test_a_checkpoint_has_the_type_that_it_is_published_in_unless_another_is_asked_for(
    name: str, precision: Precision | None, expected: str
) -> None:
    module, _ = zoo.build(f"hf:{name}", precision=precision)
    assert {str(parameter.dtype) for parameter in module.parameters()} == {f"torch.{expected}"}


@pytest.mark.parametrize(
    ("name", "window", "positions"),
    [
        ("mistralai/Mistral-7B-v0.1", 4096, 32768),
        ("mistralai/Mistral-7B-v0.3", None, 32768),
        ("mistralai/Mistral-Nemo-Base-2407", None, 131072),
        ("microsoft/Phi-3-mini-4k-instruct", 2047, 4096),
        ("google/gemma-3-1b-pt", 512, 32768),
        ("deepseek-ai/DeepSeek-V3", None, 163840),
        ("Qwen/Qwen3-30B-A3B", None, 40960),
        ("Qwen/Qwen3-235B-A22B", None, 40960),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 131072),
        ("mistralai/Mistral-7B-Instruct-v0.1", 4096, 32768),
        ("mistralai/Mistral-7B-Instruct-v0.2", None, 32768),
        ("mistralai/Mistral-7B-Instruct-v0.3", None, 32768),
        # Not as long as what it was trained on from, and longer.
        ("Qwen/Qwen2.5-7B-Instruct", None, 32768),
        ("Qwen/Qwen3-4B-Instruct-2507", None, 262144),
        ("google/gemma-3-1b-it", 512, 32768),
        ("Qwen/Qwen3-8B-Base", None, 32768),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", None, 32768),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None, 131072),
        ("mistralai/Mistral-Small-24B-Instruct-2501", None, 32768),
        ("microsoft/Phi-3.5-mini-instruct", 262144, 131072),
        ("bigcode/starcoder2-7b", 4096, 16384),
    ],
)
def test_a_checkpoint_has_the_window_and_the_positions_that_it_is_published_with(
    name: str, window: int | None, positions: int
) -> None:
    config = zoo.build(f"hf:{name}")[0].config
    assert (getattr(config, "sliding_window", None), config.max_position_embeddings) == (window, positions)


@pytest.mark.parametrize(
    ("name", "entry", "value"),
    [
        # The weights of the experts that a token goes to are made to add up to 1.
        ("Qwen/Qwen3-30B-A3B", "norm_topk_prob", True),
        ("Qwen/Qwen3-235B-A22B", "norm_topk_prob", True),
        ("allenai/OLMoE-1B-7B-0924", "norm_topk_prob", False),
        ("microsoft/phi-2", "resid_pdrop", 0.1),
    ],
)
def test_a_checkpoint_has_the_operators_that_it_is_published_with(name: str, entry: str, value: float) -> None:
    assert getattr(zoo.build(f"hf:{name}")[0].config, entry) == value


def test_as_much_of_a_head_is_rotated_as_the_checkpoint_is_published_with() -> None:
    module = zoo.build("hf:phi-2", options={"num_hidden_layers": 1})[0]
    assert module.model.layers[0].self_attn.rotary_ndims == 32  # of 80
    module = zoo.build("hf:Phi-4-mini-instruct", options={"num_hidden_layers": 1})[0]
    assert module.model.rotary_emb.inv_freq.shape == (48,)  # pairs of 64


def test_a_cache_grows_with_the_text_where_the_checkpoint_has_no_window() -> None:
    step = zoo.build("hf:Mistral-7B-v0.3#decode=6000", options={"num_hidden_layers": 1})[0]
    assert step._filled_shapes[0][0][2] == 6000


@pytest.mark.parametrize("name", ["hf:openai-community/gpt2-medium", "hf:GPT2-Medium"])
def test_a_checkpoint_needs_neither_owner_nor_case(name: str) -> None:
    module, inputs = zoo.build(name)
    assert type(module).__name__ == "GPT2LMHeadModel"
    assert (inputs.named or {})["input_ids"].shape == (128,)


def test_short_names_are_unique_and_no_model_types() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    short = [name.rpartition("/")[2].lower() for name in load_checkpoints("hf")]
    assert len(set(short)) == len(short)
    # What both name is the same model.
    assert set(short) & set(CONFIG_MAPPING) == {"gpt2"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("hf:Llama-3.1-9B", "hf:Llama-3.1-8B"),
        ("hf:LlamaForCausalML", "hf:LlamaForCausalLM"),
        ("hf:qwen22#decode=5", "hf:qwen2"),
        ("hf:Llama-3-8B-Instruct", "hf:Meta-Llama-3-8B-Instruct"),
        ("hf:another/Llama-3.1-8B-Instruct", "hf:meta-llama/Llama-3.1-8B-Instruct"),
        ("hf:Qwen2.5-7B-Instruct-1M", "hf:Qwen2.5-7B-Instruct"),
    ],
)
def test_unknown_names_list_the_nearest_of_every_kind(name: str, near: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        zoo.build(name)
    assert caught.value.code == "zoo.unknown"
    assert re.search(rf"{re.escape(near)}[,.]( |$)", str(caught.value))


def test_a_class_may_begin_with_a_small_letter() -> None:
    options = {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2, "vocab_size": 200}
    module, _ = zoo.build("hf:xLSTMModel", options=options)
    assert type(module).__name__ == "xLSTMModel"


def test_an_unknown_name_lists_no_checkpoint_twice() -> None:
    with pytest.raises(UnsupportedError) as caught:
        zoo.build("hf:google/gemma-2-28b-it")
    near = re.findall(r"hf:([\w./-]+)[,.]", str(caught.value))
    assert len({name.rpartition("/")[2] for name in near}) == len(near) == 5


def test_a_model_type_at_a_step_has_its_head() -> None:
    module, inputs = zoo.build("hf:gpt2#prefill=9")
    assert type(module.model).__name__ == "GPT2LMHeadModel"
    assert (inputs.named or {})["input_ids"].shape == (9,)


def test_an_encoder_asked_for_a_step_is_told_so_by_the_error_alone() -> None:
    import transformers

    records: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    level = transformers.logging.get_verbosity()
    logger.addHandler(listener)
    try:
        with pytest.raises(UnsupportedError, match="is_decoder is False") as caught:
            zoo.build("hf:bert#decode=10")
    finally:
        logger.removeHandler(listener)
    assert caught.value.code == "generation.no_cache"
    assert [record.getMessage() for record in records] == []
    assert transformers.logging.get_verbosity() == level


def test_what_writes_no_text_alone_has_no_step() -> None:
    with pytest.raises(UnsupportedError, match="hf:clip has no cache") as caught:
        zoo.build("hf:clip#decode=8")
    assert caught.value.code == "generation.no_cache"


def test_a_spectrogram_has_the_size_that_the_model_has() -> None:
    _, inputs = zoo.build("hf:ASTForAudioClassification")
    assert (inputs.named or {})["input_values"].shape == (1024, 128)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(UsageError, match="num_hidden_layers"):
        zoo.build("hf:bert", options={"num_hiden_layers": 3})
    with pytest.raises(UsageError, match="n_layer"):
        zoo.build("hf:gpt2-medium", options={"n_layerss": 3})


@pytest.mark.parametrize("options", [{"hidden_size": 128, "num_attention_heads": 5}, {"vocab_size": "many"}])
def test_options_that_do_not_go_together_are_told(options: dict[str, object]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        zoo.build("hf:bert", options=options)
    assert caught.value.code == "zoo.build_failed"
    for name, value in options.items():
        assert f"{name}={value!r}" in str(caught.value)


def test_a_class_whose_package_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    class Missing(type):
        def __getattribute__(cls, name: str) -> object:
            if not name.startswith("_"):
                raise ImportError("\nThingModel requires the things library but it was not found.")
            return super().__getattribute__(name)

    class ThingModel(metaclass=Missing):
        pass

    monkeypatch.setattr(transformers, "ThingModel", ThingModel, raising=False)
    with pytest.raises(UnsupportedError, match=r"things library.*Install that package") as caught:
        zoo.build("hf:ThingModel")
    assert caught.value.code == "zoo.build_failed"


def test_a_class_without_sizes_of_its_own_says_where_to_find_some() -> None:
    with pytest.raises(UnsupportedError, match=r"config\.json") as caught:
        zoo.build("hf:Sapiens2ForSemanticSegmentation")
    assert caught.value.code == "zoo.build_failed"
