"""What is said of models that take the time in front of the batch."""

from __future__ import annotations

import pytest

from dippm.frontends.time_first import TimeFirst, describe_layer, warn_of_time_first


@pytest.mark.parametrize(("scope", "said"), [("net.rnn", "the LSTM 'net.rnn'"), ("", "its LSTM")])
def test_a_layer_is_called_by_its_path(scope, said) -> None:
    assert describe_layer("LSTM", scope) == said


def test_the_warning_names_the_inputs_that_are_turned() -> None:
    found = TimeFirst(layer="its LSTM", inputs=(0, 1), names=("x", "h"))
    assert "second dimension of x, h" in warn_of_time_first(found, is_turned=True)
    assert "its number of steps" in warn_of_time_first(found, is_turned=False)
