from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.errors import UsageError
from dippm.graph import OpKind


def test_a_graph_is_accepted_wherever_a_model_is(tmp_path: Path, builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
    graph, path = builder.graph(), tmp_path / "net.json.gz"
    dippm.save_graph(graph, path)
    read = dippm.load(path)
    assert (read.tensors, read.nodes, read.framework, read.source) == (
        graph.tensors,
        graph.nodes,
        graph.framework,
        str(path),
    )
    answer, expected = dippm.predict(path, batch=8), dippm.predict(graph, batch=8)
    assert answer.to_dict() == expected.to_dict()
    with pytest.raises(UsageError) as caught:
        dippm.load(path, input="8")
    assert caught.value.code == "input.unused"


def test_only_a_graph_can_be_saved(tmp_path: Path, builder: Any) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.save_graph("timm:resnet18", tmp_path / "x.json.gz")  # type: ignore[arg-type]
    assert caught.value.code == "model.invalid"
    with pytest.raises(UsageError) as caught:
        dippm.save_graph(builder.graph(builder.input(1)), tmp_path / "none" / "x.json.gz")
    assert caught.value.code == "graph_file.unwritable"
    assert list(tmp_path.iterdir()) == []
