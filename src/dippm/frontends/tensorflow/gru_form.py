"""Keras's GRU layers written so that tf2onnx knows them as one operator, as it does those of Keras 2."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["has_known_form", "run_gru"]


def has_known_form(layer: Any) -> bool:
    """Whether a layer computes what PyTorch's GRU does: tanh and sigmoid, reset after the product, two biases.

    Args:
        layer: A built ``keras.layers.GRU``.
    """
    keras = import_module("keras")
    cell = layer.cell
    is_usual = cell.activation is keras.activations.tanh and cell.recurrent_activation is keras.activations.sigmoid
    is_whole = layer.compute_dtype == layer.variable_dtype  # else each step casts the weights
    return is_usual and is_whole and cell.reset_after and cell.use_bias and not layer.unroll


def run_gru(layer: Any, sequences: Any, initial_state: Any) -> Any:
    """What ``layer.inner_loop`` gives without a mask, at inference.

    Shapes:
        sequences: ``(batch, steps, features)``; initial_state: a list of ``(batch, units)``.
    """
    tf = import_module("tensorflow")
    rnn = import_module("keras.src.backend.tensorflow.rnn").rnn
    cell = layer.cell
    kernel, recurrent_kernel = (tf.convert_to_tensor(each) for each in (cell.kernel, cell.recurrent_kernel))
    bias = tf.convert_to_tensor(cell.bias)
    input_bias, recurrent_bias = bias[0], bias[1]

    def step(inputs: Any, states: Any) -> tuple[Any, list[Any]]:
        (state,) = states
        given = tf.split(tf.nn.bias_add(tf.matmul(inputs, kernel), input_bias), 3, axis=1)
        kept = tf.split(tf.nn.bias_add(tf.matmul(state, recurrent_kernel), recurrent_bias), 3, axis=1)
        update, reset = tf.sigmoid(given[0] + kept[0]), tf.sigmoid(given[1] + kept[1])
        new = tf.tanh(given[2] + reset * kept[2])
        made = update * state + (1 - update) * new
        return made, [made]

    return rnn(
        step,
        sequences,
        initial_state if isinstance(initial_state, list | tuple) else [initial_state],
        go_backwards=layer.go_backwards,
        input_length=sequences.shape[1],
        return_all_outputs=layer.return_sequences,
    )
