"""The two steps in which a decoder of transformers writes text: the whole prompt at once, then token by token.

Each step is a module of its own with ``input_ids`` as its input, which is read like any other. A step of one token has
the keys and values of the tokens before it as tensors that are there when it begins; what a layer keeps of them, and in
which shape, is found by recording the model on a prompt of that length.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.torch.asked_values import DataDependentError
from dippm.frontends.torch.call_inputs import default_dtype
from dippm.frontends.torch.forward_errors import forward_error
from dippm.frontends.torch.recorded_call import call_without_data
from dippm.graph import DType

__all__ = ["DEFAULT_TOKENS", "GenerationModule", "GenerationStep", "StepResult"]

#: Tokens of a prompt, or in the cache, where nobody says how many.
DEFAULT_TOKENS = 128
# Two, so that what follows the batch is told from what merely has its size.
_PROBE_BATCHES = (2, 3)
# The first since transformers 5.24, the others before.
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
_LONGEST_CAUSE = 200


class GenerationStep(StrEnum):
    """``PREFILL`` takes the whole prompt and fills the cache; ``DECODE`` adds one token to a filled cache."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What a step gives back.

    Args:
        scores: Scores of the next token.
        kept: Tensors of the cache as the step leaves them.
        found: Indices in the recorded graph of the tensors of the cache as the step found them.
    """

    scores: torch.Tensor
    kept: list[torch.Tensor]
    found: tuple[int, ...]


class GenerationModule(nn.Module):
    """A decoder at one of the two steps of generation, as ``generate()`` of transformers calls it.

    Scores are computed for the last position alone, and the cache is transformers' ``DynamicCache``, which grows by
    concatenation.

    Args:
        model: A decoder of transformers, such as ``LlamaForCausalLM``.
        step: Which of the two steps.
        tokens: Length of the prompt; in a decoding step, of all that is in the cache when it begins.

    Raises:
        UsageError: ``generation.tokens`` where the number of tokens is not positive or more than the model's positions.
        UnsupportedError: ``generation.no_cache`` where the module is not a decoder with a cache that transformers
            knows, ``generation.encoder_decoder`` where it has an encoder as well.
    """

    def __init__(self, model: nn.Module, *, step: GenerationStep, tokens: int = DEFAULT_TOKENS) -> None:
        super().__init__()
        self.model = model
        self.step = GenerationStep(step)
        self.tokens = tokens
        self._argument = _cache_argument(model)
        _check_tokens(model, self.step, tokens)
        self._takes_last = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._filled: Any = None
        self._probed_in = default_dtype(model)
        self._filled_shapes: list[list[tuple[int, ...]]] = []
        if self.step is GenerationStep.DECODE:
            probes = [self._probe(batch) for batch in _PROBE_BATCHES]
            self._filled = probes[0]
            self._filled_shapes = [[tuple(tensor.shape) for tensor in _tensors_of(probe)] for probe in probes]

    @property
    def default_input(self) -> InputShapes:
        """The tokens that the step takes."""
        length = self.tokens if self.step is GenerationStep.PREFILL else 1
        return InputShapes(named={"input_ids": InputEntry(shape=(length,), dtype=DType.INT64)})

    def forward(self, input_ids: torch.Tensor) -> StepResult:
        """Run the step on ``input_ids`` of [batch, tokens]."""
        if self.step is GenerationStep.PREFILL:
            return self._call(input_ids, self._new_cache())
        batch = int(input_ids.shape[0])
        found: list[int] = []

        shapes = zip(*self._filled_shapes, strict=True)

        def make(example: torch.Tensor) -> torch.Tensor:
            shape = tuple(_size_at(batch, *sizes) for sizes in zip(*next(shapes), strict=True))
            # The model may have been given another type since.
            dtype = default_dtype(self.model) if example.dtype == self._probed_in else example.dtype
            tensor = torch.empty(shape, dtype=dtype)
            slot = getattr(tensor, "_dippm_slot", None)
            if slot is not None:
                found.append(slot.index)
            return tensor

        return self._call(input_ids, _copy_of(self._filled, make), found=found)

    def _call(self, input_ids: torch.Tensor, cache: Any, *, found: list[int] | None = None) -> StepResult:
        options: dict[str, Any] = {self._argument: cache, "use_cache": True}
        if self._takes_last:
            options["logits_to_keep"] = 1
        result = self.model(input_ids=input_ids, **options)
        kept = _tensors_of(getattr(result, self._argument, None))
        if not kept:
            raise _returns_no_cache(self.model)
        scores = result.logits if hasattr(result, "logits") else result[0]
        return StepResult(scores=scores, kept=kept, found=tuple(found or ()))

    def _new_cache(self) -> Any:
        from transformers import DynamicCache

        config: Any = self.model.config
        return DynamicCache(config=config)

    def _probe(self, batch: int) -> Any:
        """The cache that a prompt leaves, its tensors without data."""
        entry = InputEntry(shape=(self.tokens,), dtype=DType.INT64)
        options = {self._argument: self._new_cache(), "use_cache": True}
        try:
            result = call_without_data(self.model, self.model, {"input_ids": entry}, batch=batch, **options)
        except DippmError:
            raise
        except DataDependentError as exc:
            shapes = str(list(entry.at(batch)))
            raise forward_error(exc, raised=None, source=type(self.model).__name__, shapes=shapes) from exc
        except Exception as exc:  # the library's own code, which fails in any way on a cache that it has not made
            why = (str(exc).strip().splitlines() or [""])[0].rstrip(".")
            raise _no_cache(self.model, f"with that, it raises {type(exc).__name__}: {why[:_LONGEST_CAUSE]}") from exc
        cache = getattr(result, self._argument, None)
        if not _tensors_of(cache):
            raise _returns_no_cache(self.model)
        return _copy_of(cache, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


def _cache_argument(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    # Before its arguments: what hears or sees takes no tokens under the name that a decoder has for them.
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(
            f"{type(model).__name__} has an encoder beside its decoder.",
            code="generation.encoder_decoder",
            cure="Read it without a step: its forward is one pass of both.",
        )
    parameters = inspect.signature(model.forward).parameters
    argument = next((name for name in _CACHE_ARGUMENTS if name in parameters), None)
    if config is None or argument is None:
        raise _no_cache(model, f"its forward takes no {' or '.join(_CACHE_ARGUMENTS)}")
    if "input_ids" not in parameters:
        raise _no_cache(model, "its forward takes no input_ids")
    return argument


def _check_tokens(model: nn.Module, step: GenerationStep, tokens: int) -> None:
    text = model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
    most = getattr(text, "max_position_embeddings", None)
    if most is not None and step is GenerationStep.DECODE:
        most -= 1  # the token that the step adds needs a position too
    if isinstance(tokens, bool) or tokens < 1 or (most is not None and tokens > most):
        kept = "" if step is GenerationStep.PREFILL else " less one for the token that is added"
        raise UsageError(
            f"The number of tokens must be from 1 to {'any' if most is None else most}, the positions of "
            f"{type(model).__name__}{kept}. Got {tokens} instead.",
            code="generation.tokens",
        )


def _size_at(batch: int, first: int, second: int) -> int:
    """A size at a batch, from its values at the two batches that were probed."""
    low, high = _PROBE_BATCHES
    return first + (second - first) * (batch - low) // (high - low)


def _no_cache(model: nn.Module, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{type(model).__name__} has no cache of keys and values that transformers knows: {why}.",
        code="generation.no_cache",
        cure="Give a decoder, such as hf:LlamaForCausalLM; for a module of your own, give its cache as inputs.",
    )


def _returns_no_cache(model: nn.Module) -> UnsupportedError:
    is_encoder = getattr(model.config, "is_decoder", None) is False
    why = ", being an encoder (is_decoder is False in its configuration)" if is_encoder else ""
    return _no_cache(model, f"it returns none{why}")


def _tensors_of(cache: Any) -> list[torch.Tensor]:
    """All tensors that the layers of a cache hold."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _copy_of(cache, note)
    return found


def _copy_of(cache: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A cache of the same structure whose tensors are converted; single numbers in it stay."""
    if isinstance(cache, torch.Tensor):
        return convert(cache) if cache.dim() else cache
    if isinstance(cache, (list, tuple)):
        return type(cache)(_copy_of(item, convert) for item in cache)
    if isinstance(cache, dict):
        return {key: _copy_of(item, convert) for key, item in cache.items()}
    if type(cache).__module__.startswith("transformers.cache_utils"):
        twin = copy.copy(cache)
        twin.__dict__.update({name: _copy_of(item, convert) for name, item in vars(cache).items()})
        return twin
    return cache
