"""Layers without their masks for as long as they are traced; Keras itself is not needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.frontends.tensorflow import recurrent_layers
from dippm.frontends.tensorflow.recurrent_layers import layers_kept_whole


class Recurrent:
    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Any] = []

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        self.seen.append(mask)
        return sequences


class LSTM(Recurrent):
    pass


class GRU(Recurrent):
    pass


class Own(LSTM):
    """Somebody's own kind, which may do with a mask what it likes."""


@pytest.fixture(autouse=True)
def _keras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_layers, "has_known_form", lambda _: False)
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(layers=SimpleNamespace(LSTM=LSTM, GRU=GRU)))


def _model(*layers: Recurrent) -> Any:
    return SimpleNamespace(_flatten_layers=lambda: list(layers))


def test_masks_are_left_out_and_told_while_it_lasts() -> None:
    first, second, own = LSTM("first"), GRU("second"), Own("own")
    with layers_kept_whole(_model(first, second, own)) as masks:
        for layer in (first, second, own):
            layer.inner_loop("x", "h", mask="m", training=False)
            layer.inner_loop(sequences="x", initial_state="h", mask=None)
    assert (first.seen, second.seen, own.seen) == ([None, None], [None, None], ["m", None])
    (warning,) = masks.warnings
    assert "'first', 'second'" in warning
    first.inner_loop("x", "h", "m")
    assert first.seen[-1] == "m"


def test_a_gru_of_the_usual_kind_runs_in_the_form_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, other = GRU("usual"), GRU("other")
    monkeypatch.setattr(recurrent_layers, "has_known_form", lambda layer: layer is usual)
    monkeypatch.setattr(recurrent_layers, "run_gru", lambda layer, *given: (layer.name, *given))
    with layers_kept_whole(_model(usual, other)) as masks:
        assert usual.inner_loop("x", "h", "m", training=False) == ("usual", "x", "h")
        assert other.inner_loop("x", "h", None, training=False) == "x"
    assert usual.inner_loop("x", "h", None) == "x"
    assert "'usual')" in masks.warnings[0]


def test_layers_without_masks_are_not_told_of() -> None:
    layer = LSTM("layer")
    with layers_kept_whole(_model(layer)) as masks:
        assert layer.inner_loop("x", "h", None) == "x"
    assert masks.warnings == ()


def test_a_trace_that_fails_leaves_the_layers_as_they_were() -> None:
    layer = LSTM("layer")
    with pytest.raises(ValueError, match="no"), layers_kept_whole(_model(layer)):
        raise ValueError("no")
    layer.inner_loop("x", "h", "m")
    assert layer.seen == ["m"]


def test_many_layers_are_named_by_the_first() -> None:
    layers = [LSTM(f"lstm_{number}") for number in range(9)]
    with layers_kept_whole(_model(*layers)) as masks:
        for layer in layers:
            layer.inner_loop("x", "h", "m")
    assert "'lstm_4', ...)" in masks.warnings[0]
    assert "lstm_5" not in masks.warnings[0]
