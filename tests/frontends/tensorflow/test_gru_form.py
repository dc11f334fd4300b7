"""A GRU in the form that is known gives what Keras's own gives; Keras runs both, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

_SCRIPT = """
import json
import keras
import numpy as np
from keras import layers
from dippm.frontends.tensorflow.gru_form import has_known_form
from dippm.frontends.tensorflow.recurrent_layers import layers_kept_whole

numbers = np.random.default_rng(0)
values = numbers.normal(size=(3, 7, 4)).astype(np.float32)
kinds = {
    "plain": {}, "sequence": {"return_sequences": True}, "backwards": {"go_backwards": True},
    "state": {"return_state": True}, "before": {"reset_after": False}, "no bias": {"use_bias": False},
    "relu": {"activation": "relu"}, "unrolled": {"unroll": True}, "half": {"dtype": "mixed_float16"},
}
result = {}
for name, settings in kinds.items():
    layer = layers.GRU(5, **settings)
    steps = keras.Input((7, 4))
    model = keras.Model(steps, layer(steps))
    model.set_weights([numbers.normal(size=weight.shape) for weight in model.get_weights()])
    before = model(values)
    with layers_kept_whole(model):
        after = model(values)
    pairs = zip(before, after) if isinstance(before, list) else [(before, after)]
    far = max(float(np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()) for a, b in pairs)
    result[name] = [far, has_known_form(layer)]
print(json.dumps(result))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_numbers_stay() -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {name: far < 1e-5 for name, (far, _) in found.items()} == dict.fromkeys(found, True)
    known = {name for name, (_, is_known) in found.items() if is_known}
    assert known == {"plain", "sequence", "backwards", "state"}
