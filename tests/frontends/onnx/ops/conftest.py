"""Models of a single operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import pytest
from onnx import helper

from dippm.errors import ModelReadError
from dippm.frontends.onnx import read_onnx
from dippm.graph import Graph


@pytest.fixture
def one(build: Callable[..., onnx.ModelProto]) -> Callable[..., Graph]:
    """The graph of one operator: its name, what it reads, and its attributes."""

    def run(
        op_type: str,
        names: str,
        *,
        inputs: Mapping[str, Sequence[Any]] | None = None,
        weights: Mapping[str, Any] | None = None,
        dtypes: Mapping[str, int] | None = None,
        outputs: Sequence[str] = ("y",),
        opset: int = 17,
        domain: str = "",
        **attributes: Any,
    ) -> Graph:
        read = ["" if name == "-" else name for name in names.split()]
        node = helper.make_node(op_type, read, list(outputs), domain=domain, **attributes)
        used = {"x": ["N", 3, 8, 8]} if inputs is None else inputs
        model = build(
            [node],
            inputs=used,
            weights=weights,
            dtypes=dtypes,
            outputs=outputs,
            opset=opset,
            domains=[domain] if domain else [],
        )
        return read_onnx(model)

    return run


@pytest.fixture
def shapes() -> Callable[[Graph], list[list[str]]]:
    """Shapes of a graph's outputs in words."""
    return lambda graph: [[str(dim) for dim in graph.tensors[index].shape] for index in graph.outputs]


@pytest.fixture
def refused(one: Callable[..., Graph]) -> Callable[..., str]:
    """What is said of an operator that cannot run as it is written."""

    def run(*words: Any, **options: Any) -> str:
        with pytest.raises(ModelReadError) as caught:
            one(*words, **options)
        assert caught.value.code == "onnx.shape"
        return str(caught.value)

    return run
