"""Spectrograms of TensorFlow, converted beside the framework itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dippm
from dippm.graph import Graph, OpKind

SCRIPT = """
import json
from pathlib import Path
import tensorflow as tf
from dippm.frontends.tensorflow.graph_to_onnx import convert_frozen
from dippm.frontends.tensorflow.loading import load_saved_model

class Spectrogram(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 1600), tf.float32)])
    def __call__(self, sound):
        found = {transform}
        return {returned}

folder = Path({folder!r})
tf.saved_model.save(Spectrogram(), str(folder / "saved"))
convert_frozen(load_saved_model(folder / "saved"), folder / "model.onnx")
print(json.dumps("done"))
"""
FRAMES = (1600 - 400) // 160 + 1
BINS = 512 // 2 + 1


STFT = "tf.signal.stft(sound, 400, 160, 512)"


def _read(run: Callable[[str], Any], folder: Path, returned: str, transform: str = STFT) -> Graph:
    run(SCRIPT.format(folder=str(folder), returned=returned, transform=transform))
    return dippm.load(folder / "model.onnx")


def _shapes(graph: Graph, kind: OpKind) -> list[tuple[int, ...]]:
    found = [graph.tensors[node.outputs[0]].shape for node in graph.nodes if node.kind is kind]
    return [tuple(dim.at(3) for dim in shape) for shape in found]


def test_a_magnitude_is_that_of_one_transform(run_beside_tensorflow: Callable[[str], Any], tmp_path: Path) -> None:
    graph = _read(run_beside_tensorflow, tmp_path, "tf.abs(found)")
    assert _shapes(graph, OpKind.FFT) == [(3, FRAMES, BINS, 2)]
    assert [tuple(dim.at(3) for dim in graph.tensors[name].shape) for name in graph.outputs] == [(3, FRAMES, BINS)]
    assert not any(node.kind in (OpKind.MATMUL, OpKind.LINEAR, OpKind.UNKNOWN) for node in graph.nodes)


def test_both_parts_are_read(run_beside_tensorflow: Callable[[str], Any], tmp_path: Path) -> None:
    graph = _read(run_beside_tensorflow, tmp_path, "tf.math.real(found) ** 2 + tf.math.imag(found) ** 2")
    assert _shapes(graph, OpKind.FFT) == [(3, FRAMES, BINS, 2)]
    assert [tuple(dim.at(3) for dim in graph.tensors[name].shape) for name in graph.outputs] == [(3, FRAMES, BINS)]


def test_complex_numbers_are_transformed_in_both_dimensions(
    run_beside_tensorflow: Callable[[str], Any], tmp_path: Path
) -> None:
    mixed = "tf.reshape(sound, (-1, 50, 32))"
    transform = f"tf.signal.ifft2d(tf.signal.fft2d(tf.complex({mixed}, tf.zeros_like({mixed}))))"
    graph = _read(run_beside_tensorflow, tmp_path, "tf.math.real(found)", transform)
    assert _shapes(graph, OpKind.FFT) == [(3, 50, 32, 2)] * 4
    assert [node.attributes["axes"] for node in graph.nodes if node.kind is OpKind.FFT] == [(2,), (1,)] * 2
    assert [tuple(dim.at(3) for dim in graph.tensors[name].shape) for name in graph.outputs] == [(3, 50, 32)]
