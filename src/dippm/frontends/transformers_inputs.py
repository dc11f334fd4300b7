"""The inputs that a model of transformers is read with where the caller gives none.

They follow from the names of its forward's arguments and from its configuration. Where these do not tell how images or
sounds are laid out, the usual ways are tried on the part of the model that takes them. A text that an image or a sound
is put into has as many places for it as the model makes features of it. Where none fits the text, as in classes whose
own sizes do not go together, the text is there alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.transformers_images import image_ways, is_image_certain, takes_images
from dippm.frontends.transformers_sounds import sounds, spectrograms
from dippm.frontends.transformers_trials import count_features, first_taken
from dippm.graph import DType

__all__ = ["default_inputs", "with_plain_text"]

_Entries = Mapping[str, InputEntry]

_SEQUENCE_LENGTH = 128
_SERIES_LENGTH = 512
_TEXTS = ("input_ids", "decoder_input_ids")
_FEATURES, _SOUND, _SERIES = "input_features", "input_values", "past_values"
_DECODED_SOUND, _PADDING, _TASK = "decoder_input_values", "past_values_padding", "task_inputs"
_TIMES = "past_time_features"
_IMAGE_TOKENS = ("image_token_id", "image_token_index")
_SOUND_TOKENS = ("audio_token_id", "audio_token_index")
# A token that no model gives a meaning of its own.
_PLAIN_TOKEN = 99


def default_inputs(module: Any, config: Any) -> _Entries:
    """Inputs of a model by the names of its forward.

    Args:
        module: The model.
        config: Its configuration.
    """
    parameters = inspect.signature(module.forward).parameters
    main = str(getattr(module, "main_input_name", "input_ids"))
    tokens = _tokens(config)
    decoded = _decoded(config, parameters) if getattr(config, "is_encoder_decoder", False) else {}
    if main in {_FEATURES, _SOUND} and main in parameters:
        ways = spectrograms(config, parameters) if main == _FEATURES else sounds(config)
        return _first_fitting(module, [{**way, **decoded} for way in ways])
    if takes_images(parameters):
        entries = _images(module, config, parameters)
    elif _SERIES in parameters:
        entries = _series(config, parameters)
    elif _FEATURES in parameters and "input_ids" in parameters:
        entries = _text_with_sound(module, config, parameters)
    else:
        entries = {"input_ids": tokens}
    return {**entries, **_beside(entries, config, parameters), **decoded}


def with_plain_text(given: InputShapes, *, end: int | None = None) -> InputShapes | None:
    """The inputs with texts that have no padding and no marks, which some models look for; None where all are known.

    Args:
        given: The inputs.
        end: A token that the texts end in, by which some models find where they do.
    """
    named = {
        name: replace(entry, values=_plain_values(math.prod(entry.shape), end=end))
        for name, entry in (given.named or {}).items()
        if name in _TEXTS and entry.values is None and entry.rows == 1
    }
    return replace(given, named={**(given.named or {}), **named}) if named else None


def _plain_values(length: int, *, end: int | None) -> tuple[int, ...]:
    return (_PLAIN_TOKEN,) * length if end is None else (*(_PLAIN_TOKEN,) * (length - 1), end)


def _tokens(config: Any, *, places: int = 0, token: int | None = None) -> InputEntry:
    """A text, with places for the features of an image or a sound at its beginning.

    Args:
        config: The model's configuration.
        places: How many.
        token: What stands there.
    """
    text = getattr(config, "text_config", None) or config
    longest = getattr(text, "max_position_embeddings", None)
    length = places + _SEQUENCE_LENGTH
    if isinstance(longest, int) and longest > 0:
        length = max(min(length, longest), places)
    values = None
    if places and token is not None:
        values = (token,) * places + (_PLAIN_TOKEN,) * (length - places)
    # Sounds that are written as tokens have a row for each of their codebooks.
    rows = 1 if places else int(getattr(config, "num_codebooks", None) or 1)
    return InputEntry(shape=(length,), dtype=DType.INT64, rows=rows, values=values)


def _beside(entries: _Entries, config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """What some models need beside an image or a text.

    That is other texts, what is to be done with an image, whether a token stands for it, where it is on the page, and
    what it may look at.
    """
    text = entries.get("input_ids", _tokens(config))
    length = text.shape[0]
    needed = [name for name in parameters if _is_needed(parameters, name)]
    texts = [name for name in parameters if name == "input_ids" or (name in needed and name.endswith("input_ids"))]
    found = {name: replace(text, values=None) for name in texts if name not in entries}
    if not texts:
        return {_TASK: InputEntry(shape=(config.task_seq_len,))} if _TASK in parameters else {}
    masks = [name for name in needed if name.endswith("attention_mask")]
    found |= {name: InputEntry(shape=(length,), dtype=DType.INT64, values=(1,) * length) for name in masks}
    if "mm_token_type_ids" in parameters and text.values is not None:
        kinds = tuple(int(token == _token_of(config, _IMAGE_TOKENS)) for token in text.values)
        found["mm_token_type_ids"] = InputEntry(shape=text.shape, dtype=DType.INT64, values=kinds)
    if "bbox" in parameters:
        found["bbox"] = InputEntry(shape=(length, 4), dtype=DType.INT64, values=(0,) * (4 * length))
    if "cross_attention_mask" in parameters and "aspect_ratio_mask" in entries:
        tiles = entries["aspect_ratio_mask"].shape
        shape = (length, *tiles)
        found["cross_attention_mask"] = InputEntry(shape=shape, dtype=DType.INT64, values=(1,) * math.prod(shape))
    return found


def _decoded(config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """What a decoder beside an encoder takes: a text, the codes of a sound, or a sound and whose voice it is in."""
    if "decoder_input_ids" in parameters:
        tokens = _tokens(config)
        beside_each_other = getattr(getattr(config, "decoder_config", None), "num_channels", None)
        if beside_each_other:
            return {"decoder_input_ids": replace(tokens, shape=(*tokens.shape, beside_each_other))}
        below_each_other = getattr(getattr(config, "decoder", None), "num_codebooks", None)
        return {"decoder_input_ids": replace(tokens, rows=below_each_other) if below_each_other else tokens}
    if _DECODED_SOUND not in parameters:
        return {}
    frames = _SEQUENCE_LENGTH * config.reduction_factor  # as many steps as a text has
    return {
        _DECODED_SOUND: InputEntry(shape=(frames, config.num_mel_bins)),
        "speaker_embeddings": InputEntry(shape=(config.speaker_embedding_dim,)),
    }


def _series(config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """A series, with what marks padding in it and how often it was measured where a model needs that."""
    if _is_needed(parameters, _TIMES):
        return _series_with_times(config)
    length = getattr(config, "context_length", None) or _SERIES_LENGTH
    channels = getattr(config, "num_input_channels", None)
    beside = {
        _PADDING: InputEntry(shape=(int(length),), dtype=DType.INT64),
        "freq": InputEntry(shape=(1,), dtype=DType.INT64),
    }
    needed = {name: entry for name, entry in beside.items() if _is_needed(parameters, name)}
    return {_SERIES: InputEntry(shape=(int(length), int(channels)) if channels else (int(length),)), **needed}


def _series_with_times(config: Any) -> _Entries:
    """A series as far back as its lags reach, and the one that follows it, each with features of its points in time."""
    past, future = int(config.context_length + max(config.lags_sequence)), int(config.prediction_length)
    variates = (int(config.input_size),) if config.input_size > 1 else ()
    features = int(config.num_time_features + config.num_dynamic_real_features)
    kinds, reals = int(config.num_static_categorical_features), int(config.num_static_real_features)
    beside = {
        "static_categorical_features": InputEntry(shape=(kinds,), dtype=DType.INT64),
        "static_real_features": InputEntry(shape=(reals,)),
    }
    return {
        _SERIES: InputEntry(shape=(past, *variates)),
        _TIMES: InputEntry(shape=(past, features)),
        "past_observed_mask": InputEntry(shape=(past, *variates), dtype=DType.BOOL),
        **{name: entry for name, entry in beside.items() if entry.shape[0] > 0},
        "future_values": InputEntry(shape=(future, *variates)),
        "future_time_features": InputEntry(shape=(future, features)),
    }


def _is_needed(parameters: Mapping[str, Any], name: str) -> bool:
    return name in parameters and parameters[name].default is inspect.Parameter.empty


def _images(module: Any, config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """One image for each sample, with the text that it is put into where there is a token that stands for it."""
    token, makes_features = _token_of(config, _IMAGE_TOKENS), _method_of(module, "get_image_features")
    is_put_into_text = "input_ids" in parameters and makes_features is not None and token is not None
    ways = image_ways(config, parameters, has_features=is_put_into_text)
    if is_put_into_text and makes_features is not None:
        return _in_a_text(module, config, makes_features, ways, token=token)
    if is_image_certain(config, parameters):
        return next(ways)
    return _first_fitting(module, [{**way, **_beside(way, config, parameters)} for way in ways])


def _text_with_sound(module: Any, config: Any, parameters: Mapping[str, Any]) -> _Entries:
    """One sound for each sample, in the text where there is a token that stands for it, or beside it."""
    token, makes_features = _token_of(config, _SOUND_TOKENS), _method_of(module, "get_audio_features")
    ways = spectrograms(config, parameters)
    text = {"input_ids": _tokens(config)}
    if token is not None:
        return text if makes_features is None else _in_a_text(module, config, makes_features, ways, token=token)
    if getattr(config, "audio_config", None) is None:
        return text
    entries, result = first_taken(module, module.forward, ({**text, **way} for way in ways))
    return text if result is None else entries


def _in_a_text(
    module: Any, config: Any, makes_features: Callable[..., Any], ways: Iterable[_Entries], *, token: int | None
) -> _Entries:
    """An image or a sound and the text that its features are put into; the text alone where they do not fit it."""
    entries, features = first_taken(module, makes_features, ways)
    if features is None:
        return entries or {"input_ids": _tokens(config)}
    table = module.get_input_embeddings()
    places = count_features(features, size=getattr(table, "embedding_dim", None))
    text = {"input_ids": _tokens(config, places=places, token=token)}
    return {**entries, **text} if places else text


def _first_fitting(module: Any, ways: list[_Entries]) -> _Entries:
    """The first inputs that a model takes; the very first, whose error says the most, where it takes none."""
    return first_taken(module, module.forward, ways)[0] or ways[0]


def _method_of(module: Any, name: str) -> Callable[..., Any] | None:
    parts = (module, module.base_model)
    return next((found for part in parts if (found := getattr(part, name, None)) is not None), None)


def _token_of(config: Any, names: Iterable[str]) -> int | None:
    """The token that stands for a feature of an image or a sound; None where there is none."""
    return next((token for name in names if isinstance(token := getattr(config, name, None), int)), None)
