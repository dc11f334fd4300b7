"""Run in a process of its own: turns a program of Paddle into an ONNX model without weights.

The converter is given the program alone. It then leaves every weight as a name, for which the ONNX model gets a tensor
with shape and type and no values: nothing that is predicted depends on a value, and a model of gigabytes converts in
the time of its structure. No file of weights is opened, and Python's pickles, which ``paddle.load`` would try, never.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.conversion.worker import ConversionRequest, run_worker
from dippm.frontends.paddle.program_rewrites import drop_stand_ins, rewrite_program

__all__: list[str] = []

# The first opset in which a layer norm is one operator.
_OPSET = 17
_BATCH = "batch"
_SEQUENCE_RANK = 3
_CURE = "Export the model again without them, or convert it to ONNX yourself and give the .onnx file."
_ONNX_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "complex64": 14, "complex128": 15, "bfloat16": 16, "float8_e4m3fn": 17, "float8_e5m2": 19,
}  # fmt: skip
# paddle2onnx 2.1 lists these operators under the names that they have in Paddle 2.
_LISTED_AS = {
    "add": "elementwise_add", "add_n": "sum", "all": "reduce_all", "any": "reduce_any", "arange": "range",
    "argmax": "arg_max", "argmin": "arg_min", "batch_norm_": "batch_norm", "divide": "elementwise_div",
    "expand": "expand_v2", "flatten": "flatten_contiguous_range", "floor_divide": "elementwise_floordiv",
    "grid_sample": "grid_sampler", "hardsigmoid": "hard_sigmoid", "hardswish": "hard_swish", "matmul": "matmul_v2",
    "max": "reduce_max", "maximum": "elementwise_max", "mean": "reduce_mean", "min": "reduce_min",
    "minimum": "elementwise_min", "multiply": "elementwise_mul", "nonzero": "where_index", "numel": "size",
    "prod": "reduce_prod", "remainder": "elementwise_mod", "repeat_interleave_with_tensor_index": "repeat_interleave",
    "subtract": "elementwise_sub", "topk": "top_k_v2", "unsqueeze": "unsqueeze2",
}  # fmt: skip
_CHANNELS_LAST = ("NHWC", "NDHWC", "NLC")
_PLACE = re.compile(r" ?\(at /[^)]*\)")
_WHOLE_LAYERS = ("LSTM", "GRU")
_LAYERS_CURE = "Use paddle.nn.LSTM or GRU in its place, or convert it to ONNX yourself and give the .onnx file."
_NEEDS_NO_RULE = frozenset({"data", "feed", "fetch", "if", "while"})


def main(request: ConversionRequest) -> None:
    """Convert the program that the request names."""
    import onnx
    import paddle2onnx

    name = request.name
    program, path = _load(request.source, request.output, is_old=bool(request.options["is_old"]), name=name)
    _check_recurrent(program, name)
    # It ends its process where it meets an operator that it does not know.
    expected = _unconvertible(program, name)
    if expected is not None:
        request.answer_if_crashed(expected)
    try:
        converted = paddle2onnx.export(
            str(path),
            str(request.output / "no.pdiparams"),
            opset_version=_OPSET,
            enable_onnx_checker=False,
            # Folding merges weights, which the architecture has apart; it also installs packages where it may.
            optimize_tool="None",
        )
    except SystemExit as exc:
        # So it reports an error, after catching it.
        raise ModelReadError(
            f"paddle2onnx cannot convert '{name}': {_reason(exc.__context__)}.",
            code="conversion.failed",
            cure="The file may be damaged: export it again.",
        ) from exc
    model = onnx.ModelProto.FromString(converted)
    drop_stand_ins(model.graph)
    _declare_weights(model.graph, program)
    _check_complete(model.graph, name)
    _name_batch(model.graph, is_time_first=_takes_time_first(program))
    onnx.save(model, str(request.onnx_path))


def _load(source: Path, folder: Path, *, is_old: bool, name: str) -> tuple[Any, Path]:
    """The program, and the file that holds it as Paddle 3 writes it."""
    import paddle

    path = folder / "program.json"
    try:
        if is_old:
            with paddle.pir_utils.OldIrGuard():
                described = paddle.static.Program.parse_from_string(source.read_bytes()).desc
            program = paddle.pir.translate_to_pir(described)
            paddle.base.core.serialize_pir_program(program, str(path))
        else:
            # The converter takes a program's form from its suffix.
            path.write_bytes(source.read_bytes())
            program = paddle.static.Program()
            paddle.base.core.deserialize_pir_program(str(path), program)
        written = path.read_bytes()
        rewritten = rewrite_program(written)
        if rewritten != written:
            path.write_bytes(rewritten)
            program = paddle.static.Program()
            paddle.base.core.deserialize_pir_program(str(path), program)
    except Exception as exc:
        raise ModelReadError(
            f"'{name}' is no program that Paddle {paddle.__version__} reads: {_reason(exc)}.",
            code="paddle.invalid",
            cure="The file may be cut short or damaged, or of another version: export it again.",
        ) from exc
    if any(not operator.name() for operator in _operators(program.global_block())):
        raise ModelReadError(
            f"'{name}' holds an operator that Paddle {paddle.__version__} does not have.",
            code="paddle.invalid",
            cure="The file may be damaged or of a newer version: install that, or export the model again.",
        )
    return program, path


def _reason(error: BaseException | None) -> str:
    """What a foreign exception says, without the stack and the places in C++ that Paddle's begin and end with."""
    text = str(error).rpartition("Error Message Summary:")[2]
    text = _PLACE.sub("", " ".join(line for line in text.split() if line.strip("-")))
    return text[:300].rstrip(".") or type(error).__name__


def _operators(block: Any) -> Iterator[Any]:
    for operator in block.ops:
        yield operator
        for inner in operator.blocks():
            yield from _operators(inner)


def _unconvertible(program: Any, name: str) -> UnsupportedError | None:
    """What to say should the converter end its process; None where nothing in the program makes that likely."""
    from paddle2onnx.utils import get_all_supported_operators_pir

    known = set(get_all_supported_operators_pir())
    unknown = set()
    is_channels_last = False
    for operator in _operators(program.global_block()):
        prefix, _, short = operator.name().partition(".")
        if prefix == "pd_op" and short not in _NEEDS_NO_RULE and not {short, _LISTED_AS.get(short)} & known:
            unknown.add(operator.name())
        is_channels_last = is_channels_last or operator.attrs().get("data_format") in _CHANNELS_LAST
    if unknown:
        listed = ", ".join(sorted(unknown)[:10]) + (", ..." if len(unknown) > 10 else "")
        return UnsupportedError(
            f"paddle2onnx knows no ONNX operators for {len(unknown)} of the operators of '{name}': {listed}.",
            code="paddle.operator_unsupported",
            cure=_CURE,
        )
    if is_channels_last:
        return UnsupportedError(
            f"'{name}' holds layers with the channels last, which paddle2onnx does not convert.",
            code="paddle.channels_last",
            cure='Build it with data_format="NCHW" and predict it with --layout nhwc.',
        )
    return None


def _check_recurrent(program: Any, name: str) -> None:
    """Refuse recurrent layers of which the converter leaves parts out, and cells that a loop runs."""
    operators = list(_operators(program.global_block()))
    simple = [each for each in operators if each.name() == "pd_op.rnn" and each.attrs()["mode"] not in _WHOLE_LAYERS]
    if simple:
        raise UnsupportedError(
            f"'{name}' holds a simple recurrent layer (paddle.nn.SimpleRNN, pd_op.rnn of mode "
            f"{simple[0].attrs()['mode']}), which paddle2onnx converts in part only.",
            code="paddle.operator_unsupported",
            cure=_LAYERS_CURE,
        )
    if {"pd_op.while", "pd_op.array_write_", "pd_op.increment_"} <= {each.name() for each in operators}:
        raise UnsupportedError(
            f"'{name}' runs a loop that fills a list (pd_op.while with pd_op.increment_), as paddle.nn.RNN does over "
            "the steps of a cell, which paddle2onnx does not convert.",
            code="paddle.operator_unsupported",
            cure=_LAYERS_CURE,
        )


def _check_complete(graph: Any, name: str) -> None:
    """Refuse what the converter left out without a word."""
    made = {value.name for value in (*graph.input, *graph.initializer)}
    made.update(output for node in graph.node for output in node.output)
    read = [value for node in graph.node for value in node.input] + [value.name for value in graph.output]
    missing = next((value for value in read if value and value not in made), None)
    if missing is not None:
        raise UnsupportedError(
            f"paddle2onnx converts an operator of '{name}' in part only: nothing makes '{missing}'.",
            code="paddle.operator_unsupported",
            cure=_CURE,
        )


def _declare_weights(graph: Any, program: Any) -> None:
    """Give the names that the converter left open a shape and a type."""
    for operator in _operators(program.global_block()):
        if operator.name() != "builtin.parameter":
            continue
        value = operator.results()[0]
        weight = graph.initializer.add()
        weight.name = operator.attrs()["parameter_name"]
        weight.dims.extend(value.shape)
        weight.data_type = _ONNX_TYPES[str(value.dtype).removeprefix("paddle.")]


def _name_batch(graph: Any, *, is_time_first: bool) -> None:
    """Call an open first dimension the batch; the converter numbers open dimensions.

    Where a layer takes time first, an open second dimension may be the batch: that is left to whoever reads the graph
    where both are open, and settled where the first has a size.
    """
    shapes = [(described.name, described.type.tensor_type.shape.dim) for described in graph.input]
    is_first_open = any(shape[0].HasField("dim_param") for _, shape in shapes if shape)
    are_both_open = any(
        len(shape) == _SEQUENCE_RANK and all(size.HasField("dim_param") for size in shape[:2]) for _, shape in shapes
    )
    batch_axis = 0 if is_first_open or not is_time_first else 1
    for name, shape in shapes:
        for axis, size in enumerate(shape):
            if size.HasField("dim_param"):
                is_unclear = axis == batch_axis and is_time_first and are_both_open
                size.dim_param = "" if is_unclear else _BATCH if axis == batch_axis else f"{name}_{axis}"


def _takes_time_first(program: Any) -> bool:
    """Whether a recurrent layer reads what no transposition has brought into its order: it takes time first."""
    layers = [operator for operator in _operators(program.global_block()) if operator.name() == "pd_op.rnn"]
    makers = [layer.operands_source()[0].get_defining_op() for layer in layers]
    return any(maker is not None and maker.name() != "pd_op.transpose" for maker in makers)


if __name__ == "__main__":
    run_worker(main)
