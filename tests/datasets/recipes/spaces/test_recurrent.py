from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw, Sampler
from dippm.datasets.recipes.spaces.recurrent import sample_gru, sample_lstm, sample_rnn


@pytest.mark.parametrize("sampler", [sample_rnn, sample_lstm, sample_gru])
def test_draws(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    check_sampler(sampler)


@pytest.mark.parametrize(("sampler", "gates"), [(sample_rnn, 1), (sample_gru, 3), (sample_lstm, 4)])
def test_work_is_that_of_the_gates(draws: Callable[..., list[Draw]], sampler: Sampler, gates: int) -> None:
    for draw in draws(sampler):
        values = draw.arguments
        length, features = draw.inputs.positional[0].shape
        assert features == values["features"]
        ways, hidden = 1 + values["bidirectional"], values["hidden"]
        of_layers = features + hidden + (values["layers"] - 1) * (ways * hidden + hidden)
        macs = length * ways * gates * hidden * of_layers + ways * hidden * values["classes"]
        assert draw.cost.gmacs == pytest.approx(macs / 1e9)
