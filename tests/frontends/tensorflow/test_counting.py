"""Counts of categories in TensorFlow, converted beside the framework itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dippm
from dippm.frontends.tensorflow import counting

SCRIPT = """
import json
import keras
from keras import layers
from pathlib import Path
from dippm.frontends.tensorflow.graph_to_onnx import convert_frozen
from dippm.frontends.tensorflow.loading import load_saved_model

folder = Path({folder!r})
for mode in ("multi_hot", "count"):
    given = keras.Input((4,), dtype="int32")
    model = keras.Model(given, layers.Dense(3)(layers.CategoryEncoding(5, output_mode=mode)(given)))
    model.export(folder / mode, verbose=False)
    convert_frozen(load_saved_model(folder / mode), folder / (mode + ".onnx"))
print(json.dumps("done"))
"""


def test_counts_have_the_size_that_their_layer_states(
    run_beside_tensorflow: Callable[[str], Any], tmp_path: Path
) -> None:
    run_beside_tensorflow(SCRIPT.format(folder=str(tmp_path)))
    for mode in ("multi_hot", "count"):
        graph = dippm.load(tmp_path / f"{mode}.onnx")
        assert graph.unsupported_ops == {}
        assert [node.kind.value for node in graph.nodes if node.kind.value != "cast"] == ["scatter", "reduce", "linear"]
        assert [dippm.predict(graph, batch=batch, device="A100").macs for batch in (1, 8)] == [15, 120]


def node(kind: str, *inputs: Any, value: int | None = None) -> Any:
    return SimpleNamespace(type=kind, inputs=inputs, is_const=lambda: value is not None, get_tensor_value=lambda: value)


def test_the_size_is_the_least_that_is_stated() -> None:
    five, nine, read = node("Const", value=5), node("Const", value=9), node("Max", node("Placeholder"))
    assert counting._size(five) == 5
    assert counting._size(node("Cast", node("Minimum", nine, node("Identity", node("Min", five, read))))) == 5
    assert counting._size(node("Cast", read)) is None
    assert counting._size(node("Minimum", read, read)) is None


def test_where_none_is_stated_the_converter_s_own_form_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    class Bincount:
        any_version = staticmethod(lambda *given: asked.append(given))

    monkeypatch.setattr(counting, "import_module", lambda _: SimpleNamespace(Bincount=Bincount))
    graph = SimpleNamespace(get_shape=lambda _: [-1, 4], opset=17)
    counted = SimpleNamespace(
        input=["x", "size", "weights"], inputs=[node("Cast"), node("Max", node("Cast", node("X")))]
    )
    write, _ = counting.COUNTING_HANDLERS["DenseBincount"]
    write(graph, counted, "", None)
    assert asked == [(17, graph, counted)]
