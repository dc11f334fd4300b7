"""RNN, LSTM and GRU: sequence length, features, state, layers."""

from __future__ import annotations

import random
from functools import partial

from dippm.datasets.recipes.sampling import Draw, Reach, Tally
from dippm.frontends.inputs import InputEntry, InputShapes

__all__ = ["sample_gru", "sample_lstm", "sample_rnn"]

_GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def _sample(rng: random.Random, reach: Reach, *, cell: str) -> Draw:
    length = rng.randint(4, 32) if reach.is_small else rng.randint(8, 256)
    features = 2 ** rng.randint(3, 6) if reach.is_small else 2 ** rng.randint(5, 10)
    hidden = 8 * rng.randint(2, 12) if reach.is_small else 32 * rng.randint(2, 40)
    layers = rng.randint(1, 2 if reach.is_small else 4)
    is_two_way = rng.random() < 0.25
    classes = rng.choice((2, 10, 100, 1000))
    ways = 2 if is_two_way else 1
    tally = Tally()
    inputs = features
    for _ in range(layers):
        tally.linear(inputs + hidden, _GATES[cell] * hidden, length, repeats=ways)
        inputs = ways * hidden
    tally.linear(inputs, classes)
    return Draw(
        architecture="dnnperf:recurrent",
        arguments={
            "cell": cell,
            "features": features,
            "hidden": hidden,
            "layers": layers,
            "bidirectional": is_two_way,
            "classes": classes,
        },
        inputs=InputShapes(positional=(InputEntry(shape=(length, features)),)),
        cost=tally.result(),
    )


sample_rnn = partial(_sample, cell="rnn")
sample_lstm = partial(_sample, cell="lstm")
sample_gru = partial(_sample, cell="gru")
