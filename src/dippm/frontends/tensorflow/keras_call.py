"""A Keras model's call at inference, on its inputs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["call_at_inference"]


def call_at_inference(model: Any) -> Callable[..., Any]:
    """A function of a Keras model's inputs, in their order, that calls it as it is at inference.

    A model's layers that augment images do so unless they are told that they are not trained. A model whose inputs are
    a dictionary takes nothing else.
    """
    own = getattr(model, "input", None)

    def call(*tensors: Any) -> Any:
        given: Any = tensors[0] if len(tensors) == 1 else list(tensors)
        if isinstance(own, Mapping):
            given = import_module("keras").tree.pack_sequence_as(own, list(tensors))
        return model(given, training=False)

    return call
