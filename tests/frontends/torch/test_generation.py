import inspect
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import dippm
from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.frontends import zoo
from dippm.graph import DType, Graph, TensorRole

torch = pytest.importorskip("torch")
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from dippm.frontends.torch import read_module  # noqa: E402
from dippm.frontends.torch.generation import GenerationModule, GenerationStep  # noqa: E402

_LLAMA = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip
_SMALL = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "GPT2LMHeadModel": {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 1000},
}
_TOKENS = 64
_HEAD = 32
_LAYERS = 3


def _small(name: str) -> torch.nn.Module:
    return zoo.build(f"hf:{name}", options=_SMALL[name])[0]


def _read(name: str, step: str, tokens: int = _TOKENS) -> Graph:
    module = GenerationModule(_small(name), step=GenerationStep(step), tokens=tokens)
    return read_module(module, input=module.default_input)


def _key_value_heads(name: str) -> int:
    return 8 if name == "GPT2LMHeadModel" else 2


def _cache_bytes(graph: Graph, *, batch: int, is_found: bool) -> int:
    written = {index for node in graph.nodes for index in node.outputs}
    total = 0
    for index, tensor in enumerate(graph.tensors):
        if tensor.role is TensorRole.CACHE and (index not in written) == is_found and tensor.alias_of is None:
            size = tensor.dtype.bits // 8
            for dim in tensor.shape:
                size *= dim.at(batch)
            total += size
    return total


@pytest.mark.parametrize("name", list(_SMALL))
def test_the_cache_is_counted_to_the_byte(name: str) -> None:
    per_token = 2 * _LAYERS * _key_value_heads(name) * _HEAD * 4
    prefill, decode = _read(name, "prefill"), _read(name, "decode")
    for batch in (1, 5):
        assert _cache_bytes(prefill, batch=batch, is_found=False) == batch * per_token * _TOKENS
        assert _cache_bytes(decode, batch=batch, is_found=True) == batch * per_token * _TOKENS
        assert _cache_bytes(decode, batch=batch, is_found=False) == batch * per_token * (_TOKENS + 1)
    assert prefill.fixed_batch is None
    assert decode.fixed_batch is None


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"])
def test_multiply_accumulates_follow_from_the_sizes(name: str) -> None:
    hidden, wide, heads, kv, vocab = 256, 512, 8, 2, 1000
    per_token = _LAYERS * (2 * hidden * hidden + 2 * hidden * kv * _HEAD + 3 * hidden * wide)

    def attention(queries: int, keys: int) -> int:
        return _LAYERS * 2 * heads * _HEAD * queries * keys

    prefill = dippm.predict(_read(name, "prefill"), batch=2)
    decode = dippm.predict(_read(name, "decode"), batch=2)
    # The scores of the last position alone are computed.
    assert prefill.macs == pytest.approx(
        2 * (_TOKENS * per_token + attention(_TOKENS, _TOKENS) + hidden * vocab), rel=2e-3
    )
    assert decode.macs == pytest.approx(2 * (per_token + attention(1, _TOKENS + 1) + hidden * vocab), rel=2e-3)


def test_old_keys_and_values_are_given_back_layer_by_layer() -> None:
    answer = dippm.predict(_read("LlamaForCausalLM", "decode", tokens=2047), batch=8)
    per_layer_mb = 8 * 2 * 2 * _HEAD * 4 / 2**20
    whole = _LAYERS * per_layer_mb * 2048
    assert whole < answer.memory_parts_mb["kv_cache"] < whole + 1.01 * per_layer_mb * 2047
    assert sum(answer.memory_parts_mb.values()) == pytest.approx(answer.memory_mb)


def test_sixteen_bit_halves_the_cache() -> None:
    graph = _read("LlamaForCausalLM", "prefill")
    parts = {
        precision: dippm.predict(graph, precision=precision).memory_parts_mb["kv_cache"]
        for precision in ("fp32", "fp16", "bf16")
    }
    assert parts["fp32"] == 2 * _LAYERS * 2 * _HEAD * _TOKENS * 4 / 2**20
    assert parts["fp16"] == parts["bf16"] == parts["fp32"] / 2


@pytest.mark.parametrize("name", _SMALL)
def test_the_cache_follows_the_type_of_the_model(name: str) -> None:
    module = GenerationModule(_small(name), step=GenerationStep.DECODE, tokens=_TOKENS)
    graph = read_module(module.to(torch.bfloat16), input=module.default_input)
    cached = {tensor.dtype for tensor in graph.tensors if tensor.role is TensorRole.CACHE}
    assert cached == {DType.BFLOAT16}


def test_one_token_of_a_large_model_is_bound_by_reading_its_weights() -> None:
    graph = dippm.load("hf:Llama-2-7b-hf#decode=128")
    answer = dippm.predict(graph, device="A100", precision="fp16", runtime="cuda-graph")
    least_ms = 2 * 6.6e9 / 1555e9 * 1e3
    assert least_ms < answer.latency_ms < 2 * least_ms
    # A batch of eight reads the same weights.
    eight = dippm.predict(graph, device="A100", precision="fp16", runtime="cuda-graph", batch=8)
    assert eight.latency_ms < 1.3 * answer.latency_ms


def test_the_module_is_left_as_it_was_and_is_read_again() -> None:
    model = _small("LlamaForCausalLM")
    module = GenerationModule(model, step=GenerationStep.DECODE, tokens=8)
    first, second = dippm.load(module), dippm.load(module)
    assert len(first.nodes) == len(second.nodes)
    assert [first.tensors[index].shape for index in first.inputs] == [((1, 0), (0, 1))]


@pytest.mark.parametrize(
    ("name", "error", "code"),
    [
        ("hf:gpt2#chat", UsageError, "generation.step"),
        ("hf:gpt2#decode=many", UsageError, "generation.step"),
        ("hf:gpt2#decode=", UsageError, "generation.step"),
        ("hf:gpt2#decode=0", UsageError, "generation.tokens"),
        ("hf:gpt2#decode=99999", UsageError, "generation.tokens"),
        ("hf:gpt2#decode=1024", UsageError, "generation.tokens"),
        ("hf:gpt2#prefill=1025", UsageError, "generation.tokens"),
        ("hf:T5ForConditionalGeneration#decode", UnsupportedError, "generation.encoder_decoder"),
        ("hf:whisper-tiny#decode", UnsupportedError, "generation.encoder_decoder"),
        ("hf:BertForSequenceClassification#decode", UnsupportedError, "generation.no_cache"),
    ],
)
def test_what_has_no_such_step_is_refused(name: str, error: type[DippmError], code: str) -> None:
    with pytest.raises(error) as caught:
        zoo.build(name)
    assert caught.value.code == code


def test_the_tokens_of_a_step_stand_in_its_name() -> None:
    """As an input, 1,024 would be tokens of one step, and not what the cache holds."""
    with pytest.raises(UsageError, match="stands in its name") as caught:
        dippm.predict("hf:gpt2#decode", input=(1024,))
    assert caught.value.code == "input.unused"


def test_the_last_position_is_the_added_tokens() -> None:
    model = _small("GPT2LMHeadModel")
    assert GenerationModule(model, step=GenerationStep.PREFILL, tokens=1024).tokens == 1024
    assert GenerationModule(model, step=GenerationStep.DECODE, tokens=1023).tokens == 1023
    with pytest.raises(UsageError, match="from 1 to 1023"):
        GenerationModule(model, step=GenerationStep.DECODE, tokens=1024)


def test_a_dimension_of_the_cache_is_the_batch_where_it_follows_it() -> None:
    model = _small("GPT2LMHeadModel")
    kind = type(model)

    class WithTwoTables(kind):  # type: ignore[valid-type,misc]
        """Keeps two numbers a sample beside the keys and values, the samples in the second dimension."""

        def forward(self, input_ids, use_cache=None, logits_to_keep=0, **cache):
            result = kind.forward(self, input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep, **cache)
            layer = next(iter(cache.values())).layers[0]
            fresh = torch.zeros((2, input_ids.shape[0], 7))
            layer.tables = layer.tables + 1 if hasattr(layer, "tables") else fresh
            return result

        forward.__signature__ = inspect.signature(kind.forward)  # releases name the cache each in their own way

    model.__class__ = WithTwoTables
    module = GenerationModule(model, step=GenerationStep.DECODE, tokens=8)
    graph = read_module(module, input=module.default_input)
    shapes = {tuple(dim.at(5) for dim in tensor.shape) for tensor in graph.tensors if tensor.role is TensorRole.CACHE}
    assert (2, 5, 7) in shapes
    assert (5, 2, 7) not in shapes
    assert graph.fixed_batch is None


@pytest.mark.parametrize("step", GenerationStep)
def test_the_cache_has_another_name_since_transformers_5_24(step) -> None:
    model = _small("GPT2LMHeadModel")
    kind = type(model)
    if "cache" in inspect.signature(kind.forward).parameters:
        pytest.skip("this release has it by that name")
    plain = GenerationModule(model, step=step, tokens=_TOKENS)
    expected = read_module(plain, input=plain.default_input)

    class Renamed(kind):  # type: ignore[valid-type,misc]
        """Takes and returns its cache by the new name."""

        def forward(self, input_ids, cache=None, use_cache=None, logits_to_keep=0):
            result = kind.forward(
                self, input_ids, past_key_values=cache, use_cache=use_cache, logits_to_keep=logits_to_keep
            )
            return SimpleNamespace(logits=result.logits, cache=result.past_key_values)

    model.__class__ = Renamed
    module = GenerationModule(model, step=step, tokens=_TOKENS)
    graph = read_module(module, input=module.default_input)
    assert [node.kind for node in graph.nodes] == [node.kind for node in expected.nodes]


def test_a_step_of_generation_cannot_be_trained() -> None:
    module = GenerationModule(_small("GPT2LMHeadModel"), step=GenerationStep.DECODE, tokens=_TOKENS)
    with pytest.raises(UsageError) as caught:
        dippm.load(module, mode="training")
    assert caught.value.code == "generation.training"


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("hf:xLSTMForCausalLM", {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2}, "generation.no_cache"),
        ("hf:JetMoeForCausalLM", {"hidden_size": 32, "num_hidden_layers": 1, "num_key_value_heads": 2,
                                  "kv_channels": 8, "intermediate_size": 16}, "torch.data_dependent"),
    ],
)  # fmt: skip
def test_what_a_decoder_raises_on_the_way_to_its_cache_is_wrapped(
    name: str, options: dict[str, int], code: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        zoo.build(f"{name}#decode=8", options={**options, "vocab_size": 100})
    assert caught.value.code == code
    assert caught.value.__cause__ is not None
