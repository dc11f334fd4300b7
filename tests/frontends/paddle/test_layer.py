"""Layers in memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.inputs import InputShapes, parse_input_shapes
from dippm.frontends.paddle.layer import save_layer

# Paddle's own code warns as it saves.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def pair(paddle: Any) -> Any:
    class Pair(paddle.nn.Layer):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = paddle.nn.Embedding(10, 4)
            self.head = paddle.nn.Linear(4, 2)

        def forward(self, ids: Any, weights: Any = None, bias: Any = None) -> Any:
            x = self.table(ids)
            if weights is not None:
                x = x * weights
            return self.head(x) if bias is None else self.head(x) + bias

    return Pair()


def names(graph: dippm.Graph) -> list[str]:
    return [graph.tensors[index].name for index in graph.inputs]


def test_a_layer_is_read_and_stays_as_it_was(network: Any) -> None:
    network.train()
    network[4].eval()
    graph = dippm.load(network, input="3,8,8")
    assert graph.parameter_count == sum(int(item.size) for item in network.parameters() if not item.stop_gradient)
    assert (graph.source, graph.framework) == ("Sequential", "paddle")
    # Dropout and the batch's own statistics belong to training.
    assert [node.kind.value for node in graph.nodes] == [
        "conv", "batch_norm", "hard_swish", "max_pool", "view", "linear",
    ]  # fmt: skip
    assert [layer.training for layer in network] == [True, True, True, True, False, True, True]
    assert network.training
    (first, second) = (dippm.predict(network, input="3,8,8", device="A100", batch=batch) for batch in (1, 64))
    assert second.macs == 64 * first.macs


def test_inputs_by_name_and_by_position(pair: Any) -> None:
    by_name = dippm.load(pair, input={"weights": (7, 4), "ids": ((7,), "int64")})
    by_position = dippm.load(pair, input=[((7,), "int64"), (7, 4)])
    assert names(by_name) == names(by_position) == ["ids", "weights"]


def test_an_argument_that_is_left_out_keeps_its_default(pair: Any) -> None:
    assert names(dippm.load(pair, input={"ids": ((7,), "int64"), "bias": (7, 2)})) == ["ids", "bias"]


def test_shapes_are_needed(pair: Any) -> None:
    with pytest.raises(UsageError, match="its forward takes ids and") as caught:
        dippm.load(pair)
    assert caught.value.code == "input.shape_needed"


def test_a_layer_made_static_has_shapes_of_its_own(paddle: Any) -> None:
    static = paddle.jit.to_static(
        paddle.nn.Linear(4, 2), input_spec=[paddle.static.InputSpec([None, 4], "float32", "features")]
    )
    assert names(dippm.load(static)) == ["features"]


@pytest.mark.parametrize(
    "given", [{"id": (7,)}, {"ids": (7,), "weigths": (7, 4)}, [(7,), (7, 4), (7, 2), (1,)]], ids=str
)
def test_inputs_that_forward_does_not_take(pair: Any, given: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ids, weights, bias") as caught:
        save_layer(pair, parse_input_shapes(given), tmp_path)
    assert caught.value.code == "input.name_unknown"


def test_what_paddle_cannot_make_static_is_told_with_its_reason(paddle: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Linear a static program") as caught:
        save_layer(paddle.nn.Linear(4, 2), parse_input_shapes((5,)), tmp_path)
    assert caught.value.code == "paddle.not_static"


def test_a_layer_that_fails_leaves_nothing_to_the_next_one(paddle: Any, tmp_path: Path) -> None:
    from paddle.jit.dy2static.parameter_recorder import _global_parameter_recorder as recorder

    for held in (False, True):
        if held:  # Of a trace that failed before.
            recorder.params_dict[0], recorder.tensor2value[0] = {paddle.ones([1])}, {}
        with pytest.raises(UnsupportedError):
            save_layer(paddle.nn.Linear(4, 2), parse_input_shapes((5,)), tmp_path)
        assert (recorder.params_dict, recorder.tensor2value) == ({}, {})
    for _ in range(5):  # The next program lies where the one that failed did.
        with pytest.raises(UnsupportedError):
            save_layer(paddle.nn.Linear(4, 2), parse_input_shapes((5,)), tmp_path)
        assert names(dippm.load(paddle.nn.Linear(4, 2), input="4")) == ["input"]


def test_inputs_have_the_type_of_the_weights(paddle: Any, tmp_path: Path) -> None:
    layer = paddle.nn.Linear(4, 2).to(dtype="float64")
    graph = dippm.load(layer, input="4")
    assert graph.tensors[graph.inputs[0]].dtype.value == "float64"


def test_no_shapes_and_no_static_form(network: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings(), pytest.raises(UsageError):
        save_layer(network, InputShapes(), tmp_path)
