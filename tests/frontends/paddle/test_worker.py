"""The converter of Paddle, with stand-ins for Paddle and paddle2onnx; ``test_convert.py`` has the real ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.conversion.worker import ConversionRequest
from dippm.frontends.paddle import worker

FLOAT = TensorProto.FLOAT


class Operator:
    """An operator of a program, as Paddle's are asked."""

    def __init__(self, name: str, *blocks: list[Operator], results: tuple[Any, ...] = (), **attributes: object) -> None:
        self._name, self._results, self._attributes = name, results, attributes
        self._blocks = [SimpleNamespace(ops=ops) for ops in blocks]

    def name(self) -> str:
        return self._name

    def attrs(self) -> dict[str, object]:
        return self._attributes

    def results(self) -> tuple[Any, ...]:
        return self._results

    def blocks(self) -> list[Any]:
        return self._blocks


def program_of(*operators: Operator) -> Any:
    return SimpleNamespace(global_block=lambda: SimpleNamespace(ops=list(operators)))


def parameter(name: str, dtype: str, *shape: int) -> Operator:
    return Operator(
        "builtin.parameter", results=(SimpleNamespace(shape=list(shape), dtype=f"paddle.{dtype}"),), parameter_name=name
    )  # fmt: skip


def linear(weight: str = "w") -> GraphProto:
    """``y = x @ weight`` of an open batch; nothing says what the weight is."""
    return helper.make_graph(
        [helper.make_node("MatMul", ["x", weight], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", FLOAT, ["dim_0", 4])],
        [helper.make_tensor_value_info("y", FLOAT, ["dim_1", 2])],
    )


@pytest.fixture(name="knows")
def _knows(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets which operators paddle2onnx lists."""

    def list_them(*names: str) -> None:
        utils = SimpleNamespace(get_all_supported_operators_pir=lambda: list(names))
        monkeypatch.setitem(sys.modules, "paddle2onnx", SimpleNamespace(utils=utils))
        monkeypatch.setitem(sys.modules, "paddle2onnx.utils", utils)

    return list_them


def test_operators_of_inner_blocks_come_after_the_one_that_holds_them() -> None:
    inner = Operator("pd_op.while", [Operator("pd_op.add")])
    block = SimpleNamespace(ops=[Operator("pd_op.if", [inner], [Operator("pd_op.relu")]), Operator("pd_op.fetch")])
    names = [operator.name() for operator in worker._operators(block)]
    assert names == ["pd_op.if", "pd_op.while", "pd_op.add", "pd_op.relu", "pd_op.fetch"]


def test_operators_that_the_converter_lists_or_need_no_rule_give_no_reason_to_refuse(knows: Any) -> None:
    knows("relu", "elementwise_add")
    names = ("pd_op.relu", "pd_op.add", "pd_op.data", "pd_op.fetch", "builtin.parameter", "builtin.combine")
    assert worker._unconvertible(program_of(*map(Operator, names)), "net") is None


def test_operators_without_an_onnx_form_are_named_wherever_they_stand(knows: Any) -> None:
    knows("relu")
    unknown = [Operator(f"pd_op.unknown_{number:02}") for number in reversed(range(12))]
    found = worker._unconvertible(program_of(Operator("pd_op.if", unknown[:6]), *unknown, Operator("pd_op.relu")), "n")
    assert found is not None
    assert found.code == "paddle.operator_unsupported"
    named = ", ".join(f"pd_op.unknown_{number:02}" for number in range(10))
    assert f"12 of the operators of 'n': {named}, ...." in str(found)
    few = worker._unconvertible(program_of(Operator("pd_op.lgamma")), "n")
    assert "1 of the operators of 'n': pd_op.lgamma. " in str(few)


@pytest.mark.parametrize(("layout", "code"), [("NHWC", "paddle.channels_last"), ("NCHW", None)])
def test_layers_with_the_channels_last_are_refused(knows: Any, layout: str, code: str | None) -> None:
    knows("conv2d", "relu")
    found = worker._unconvertible(program_of(Operator("pd_op.conv2d", data_format=layout), Operator("pd_op.relu")), "n")
    assert (found and found.code) == code


def test_other_names_of_operators_are_those_that_the_installed_converter_lists(paddle: Any) -> None:
    from paddle2onnx.utils import get_all_supported_operators_pir

    listed = set(get_all_supported_operators_pir())
    assert {old for old in worker._LISTED_AS.values() if old not in listed} == set()
    # One that is listed under its present name needs no other.
    assert {new for new in worker._LISTED_AS if new in listed} == set()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError(
                "C++ Traceback:\n0 paddle::core()\n----------\nError Message Summary:\n----------------------\n"
                "InvalidArgumentError: The axis\n  is 9. (at /paddle/phi/infermeta.cc:12)\n"
            ),
            "InvalidArgumentError: The axis is 9",
        ),
        (ValueError("It is cut short."), "It is cut short"),
        (ValueError("x" * 400), "x" * 300),
        (KeyError(), "KeyError"),
    ],
)
def test_what_a_foreign_exception_says(error: Exception, reason: str) -> None:
    assert worker._reason(error) == reason


@pytest.mark.parametrize(
    ("name", "onnx_name"),
    [(name, name.upper()) for name in ("uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16")]
    + [(name, name.upper()) for name in ("complex64", "complex128", "bfloat16")]
    + [("float32", "FLOAT"), ("float64", "DOUBLE"), ("float8_e4m3fn", "FLOAT8E4M3FN"), ("float8_e5m2", "FLOAT8E5M2")],
)
def test_weights_get_shape_and_type_and_no_values(name: str, onnx_name: str) -> None:
    graph = linear()
    inner = Operator("pd_op.if", [parameter("w", name, 4, 2)])
    worker._declare_weights(graph, program_of(inner, Operator("pd_op.matmul")))
    (weight,) = graph.initializer
    assert (weight.name, list(weight.dims)) == ("w", [4, 2])
    assert TensorProto.DataType.Name(weight.data_type) == onnx_name
    assert not weight.raw_data


def test_a_graph_is_complete_where_everything_read_is_made() -> None:
    graph = linear()
    graph.initializer.add().name = "w"
    # An input that is left out has no name.
    graph.node.append(helper.make_node("Clip", ["y", "", "w"], ["z"]))
    worker._check_complete(graph, "net")


@pytest.mark.parametrize("lack", ["w", "y"])
def test_what_the_converter_left_out_is_named(lack: str) -> None:
    graph = linear()
    graph.initializer.add().name = "w"
    del (graph.initializer if lack == "w" else graph.node)[:]
    with pytest.raises(UnsupportedError, match=f"'net' in part only: nothing makes '{lack}'") as caught:
        worker._check_complete(graph, "net")
    assert caught.value.code == "paddle.operator_unsupported"


def test_the_open_first_dimension_is_the_batch() -> None:
    graph = linear()
    graph.input.append(helper.make_tensor_value_info("mask", FLOAT, [3, "dim_7", 5]))
    worker._name_batch(graph, is_time_first=False)
    assert sizes(graph) == [["batch", 4], [3, "mask_1", 5]]


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        ([["a", "b", 64]], [[0, "x_1", 64]]),  # an open dimension without a name is either
        ([[50, "b", 64]], [[50, "batch", 64]]),
        ([[50, "b", 64], [2, "c", 128]], [[50, "batch", 64], [2, "batch", 128]]),
        ([["a", 50, 64]], [["batch", 50, 64]]),
        ([["a", "b", 64], ["c"]], [[0, "x_1", 64], [0]]),
    ],
)
def test_the_batch_behind_the_time_is_not_passed_over(
    shapes: list[list[int | str]], named: list[list[int | str]]
) -> None:
    graph = linear()
    del graph.input[:]
    graph.input.extend(helper.make_tensor_value_info("xyz"[at], FLOAT, shape) for at, shape in enumerate(shapes))
    worker._name_batch(graph, is_time_first=True)
    assert sizes(graph) == named


@pytest.mark.parametrize(("maker", "is_first"), [("pd_op.transpose", False), ("pd_op.data", True)])
def test_a_layer_takes_time_first_where_nothing_turns_what_it_reads(maker: str, is_first: bool) -> None:
    class Layer(Operator):
        def operands_source(self) -> list[Any]:
            return [SimpleNamespace(get_defining_op=lambda: Operator(maker))]

    assert worker._takes_time_first(program_of(Operator("pd_op.data"), Layer("pd_op.rnn"))) is is_first


@pytest.mark.parametrize("mode", ["LSTM", "GRU"])
def test_whole_recurrent_layers_are_not_refused(mode: str) -> None:
    worker._check_recurrent(program_of(Operator("pd_op.rnn", mode=mode), Operator("pd_op.while")), "net")


@pytest.mark.parametrize(
    ("operators", "named"),
    [
        ([Operator("pd_op.rnn", mode="RNN_RELU")], r"pd_op\.rnn of mode RNN_RELU"),
        ([Operator("pd_op.while", [Operator("pd_op.array_write_"), Operator("pd_op.increment_")])], r"paddle\.nn\.RNN"),
    ],
    ids=["simple", "cell"],
)
def test_other_recurrent_layers_are_refused_with_what_to_use(operators: list[Operator], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        worker._check_recurrent(program_of(*operators), "net")
    assert caught.value.code == "paddle.operator_unsupported"
    assert "paddle.nn.LSTM or GRU" in str(caught.value.cure)


def sizes(graph: GraphProto) -> list[list[int | str]]:
    return [[size.dim_param or size.dim_value for size in each.type.tensor_type.shape.dim] for each in graph.input]


class Paddle:
    """Stands for Paddle and its converter: a program that is read, and what becomes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.operators = [parameter("w", "float32", 4, 2), Operator("pd_op.matmul")]
        self.converted: bytes | BaseException = ModelProto(graph=linear()).SerializeToString()
        self.reply_while_converting: object = None
        self.folder = folder
        program = program_of()
        program.global_block = lambda: SimpleNamespace(ops=self.operators)
        core = SimpleNamespace(deserialize_pir_program=self.read)
        modules = {
            "paddle": SimpleNamespace(
                __version__="3.3.0", static=SimpleNamespace(Program=lambda: program), base=SimpleNamespace(core=core)
            ),
            "paddle2onnx.utils": SimpleNamespace(get_all_supported_operators_pir=lambda: ["matmul_v2"]),
            "paddle2onnx": SimpleNamespace(export=self.export),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    def read(self, path: str, _: object) -> None:
        if not Path(path).read_bytes().startswith(b"{"):
            raise RuntimeError("Error Message Summary: -- It is no JSON.")

    def export(self, path: str, weights: str, **_: object) -> bytes:
        assert Path(path).is_file()
        assert not Path(weights).exists()
        reply = self.folder / "reply.json"
        self.reply_while_converting = json.loads(reply.read_text()) if reply.exists() else None
        if isinstance(self.converted, BaseException):
            try:
                raise self.converted
            except BaseException:  # noqa: BLE001 - as paddle2onnx does
                sys.exit(-1)
        return self.converted


@pytest.fixture(name="stand_in")
def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Paddle:
    return Paddle(monkeypatch, tmp_path)


def request(folder: Path, program: bytes = b"{}") -> ConversionRequest:
    source = folder / "net.json"
    source.write_bytes(program)
    return ConversionRequest(
        source=source, output=folder, options={"is_old": False}, name="net", reply=folder / "reply.json"
    )


def test_a_program_becomes_a_model_of_shapes(stand_in: Paddle, tmp_path: Path) -> None:
    worker.main(request(tmp_path))
    graph = ModelProto.FromString((tmp_path / "model.onnx").read_bytes()).graph
    (weight,) = graph.initializer
    assert (weight.name, list(weight.dims), weight.data_type) == ("w", [4, 2], FLOAT)
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert stand_in.reply_while_converting is None


def test_before_an_unknown_operator_ends_the_process_the_answer_lies_there(stand_in: Paddle, tmp_path: Path) -> None:
    stand_in.operators.append(Operator("pd_op.lgamma"))
    worker.main(request(tmp_path))
    left = stand_in.reply_while_converting
    assert isinstance(left, dict)
    assert left["crash"]["code"] == "paddle.operator_unsupported"
    assert "pd_op.lgamma" in left["crash"]["message"]


def test_an_error_that_the_converter_caught_is_told(stand_in: Paddle, tmp_path: Path) -> None:
    stand_in.converted = RuntimeError("The axis is 9.")
    with pytest.raises(ModelReadError, match=r"cannot convert 'net': The axis is 9\.") as caught:
        worker.main(request(tmp_path))
    assert caught.value.code == "conversion.failed"
    assert not (tmp_path / "model.onnx").exists()


def test_a_program_that_paddle_does_not_read(stand_in: Paddle, tmp_path: Path) -> None:
    with pytest.raises(ModelReadError, match=r"'net' is no program .* reads: It is no JSON\.") as caught:
        worker.main(request(tmp_path, b"[]"))
    assert caught.value.code == "paddle.invalid"


def test_an_operator_that_paddle_does_not_have(stand_in: Paddle, tmp_path: Path) -> None:
    stand_in.operators.append(Operator("pd_op.if", [Operator("")]))
    with pytest.raises(ModelReadError, match=r"an operator that Paddle 3\.3\.0 does not have") as caught:
        worker.main(request(tmp_path))
    assert caught.value.code == "paddle.invalid"


def test_as_a_module_it_answers_the_request(
    tmp_path: Path, answer_of_module: Callable[[str, dict[str, Any]], Any]
) -> None:
    # A package that stands before the one that may be installed.
    (tmp_path / "paddle2onnx.py").write_text("raise ImportError('It is not there.')\n")
    given = {"source": "net.json", "output": str(tmp_path), "name": "net"}
    assert answer_of_module(worker.__name__, given) == {"failure": "ImportError: It is not there."}
