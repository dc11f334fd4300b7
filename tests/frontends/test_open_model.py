from pathlib import Path
from typing import Any

import pytest

from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.open_model import open_model


def test_a_graph_is_returned_as_it_is(builder: Any) -> None:
    builder.input(builder.N, 4)
    graph = builder.graph()
    assert open_model(graph, input=InputShapes()) is graph


@pytest.mark.parametrize("model", [None, 7, object(), b"bytes"])
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises(UsageError) as caught:
        open_model(model, input=InputShapes())
    assert caught.value.code == "model.invalid"


def test_a_framework_that_the_content_contradicts_is_a_slip(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    with pytest.raises(UsageError) as caught:
        open_model(path, input=InputShapes(), framework="pytorch")
    assert caught.value.code == "framework.mismatch"


def test_frameworks_to_come_are_named_with_the_way_round(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3....")
    with pytest.raises(UnsupportedError, match="ONNX") as caught:
        open_model(path, input=InputShapes())
    assert caught.value.code == "framework.unsupported"
