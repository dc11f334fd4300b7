"""Keras's recurrent layers traced so that each is known as one operator, not as a loop over its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from dippm.frontends.tensorflow.gru_form import has_known_form, run_gru

__all__ = ["LeftOutMasks", "layers_kept_whole"]

_NAMED_LAYERS = 5
_LOOP = "inner_loop"


class LeftOutMasks:
    """The layers whose mask was left out, as far as a trace has come to them."""

    def __init__(self) -> None:
        self._layers: dict[str, None] = {}

    def add(self, layer: str) -> None:
        """Note a layer by its name."""
        self._layers[layer] = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user is to be told; nothing where no mask was left out."""
        if not self._layers:
            return ()
        names = list(self._layers)
        named = ", ".join(f"'{name}'" for name in names[:_NAMED_LAYERS])
        more = ", ..." if len(names) > _NAMED_LAYERS else ""
        return (
            f"The mask of the steps of recurrent layers is left out ({named}{more}): they are counted over every step, "
            "padding included.",
        )


@contextmanager
def layers_kept_whole(model: Any) -> Iterator[LeftOutMasks]:
    """Have the LSTM and GRU layers of a Keras model run over every step, in a form that tf2onnx knows them by.

    With a mask, as ``Embedding(mask_zero=True)`` makes one, Keras writes a loop with selects in each step, which is no
    longer known as an LSTM. On a GPU it would run one call of cuDNN, as PyTorch does over a padded batch.

    Args:
        model: A Keras model, to be traced while this lasts; afterwards it is as it was.
    """
    layers = import_module("keras").layers
    found = LeftOutMasks()
    changed = [each for each in model._flatten_layers() if type(each) in (layers.LSTM, layers.GRU)]
    for each in changed:
        # Not through Keras, which would track it.
        is_known_gru = type(each) is layers.GRU and has_known_form(each)
        vars(each)[_LOOP] = _without_mask(each, found, is_known_gru=is_known_gru)
    try:
        yield found
    finally:
        for each in changed:
            vars(each).pop(_LOOP, None)


def _without_mask(layer: Any, found: LeftOutMasks, *, is_known_gru: bool) -> Callable[..., Any]:
    loop = getattr(layer, _LOOP)

    def inner_loop(sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        if mask is not None:
            found.add(layer.name)
        if is_known_gru:
            return run_gru(layer, sequences, initial_state)
        return loop(sequences, initial_state, None, training=training)

    return inner_loop
