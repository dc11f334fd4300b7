"""Evaluation of operators on whole numbers that are all known, by onnx's own reference implementation.

Exporters work out sizes with whatever operators they have.
"""

from __future__ import annotations

import logging
from math import prod

import numpy as np

from dippm.frontends.onnx.program import Array
from dippm.frontends.onnx.values import Call, Value

__all__ = ["evaluate_known"]

_logger = logging.getLogger(__name__)

# Their rules know shapes alone. What follows from values by simpler means has that in its rule.
_OPERATORS = frozenset(
    {
        "ArgMax", "ArgMin", "BitShift", "Compress", "CumProd", "CumSum", "DepthToSpace", "Einsum", "EyeLike",
        "GatherElements", "GatherND", "Gemm", "MatMul", "Pad", "ReduceL1", "ReduceSumSquare",
        "ReverseSequence", "ScatterElements", "ScatterND", "SpaceToDepth", "TopK", "Unique",
    }
)  # fmt: skip
_PRODUCTS = frozenset({"BitShift", "Einsum", "Gemm", "MatMul"})
_WHOLE = frozenset("biu")


def evaluate_known(call: Call) -> list[Value] | None:
    """The results of an operator on whole numbers or truth values.

    Sizes are such numbers; what has fractions is left for the device to compute, as PyTorch does.

    Args:
        call: The operator.

    Returns:
        Its results, or None where a value is not known, trained, fractional or too large, where the operator is not
        among those evaluated here, or where it cannot run on its inputs.
    """
    op = call.op
    if op.op_type not in _OPERATORS or op.domain:
        return None
    inputs = [None if value is None else _whole_numbers(value) for value in call.inputs]
    if not inputs or any(array is None and value is not None for array, value in zip(inputs, call.inputs, strict=True)):
        return None
    if _most_elements(call, inputs) > call.data_limit:
        return None
    results = _run(call, inputs)
    if results is None or any(result.size > call.data_limit for result in results):
        return None
    return [call.constant(result, call.inputs) for result in results]


def _most_elements(call: Call, inputs: list[Array | None]) -> int:
    """More elements than a result, or what it is made of on the way, may have.

    Products have no more than their inputs' sizes multiplied. But for padding, all others choose or rearrange what they
    read.
    """
    sizes = [array.size for array in inputs if array is not None]
    if call.op.op_type != "Pad":
        return prod(sizes) if call.op.op_type in _PRODUCTS else max(sizes, default=0)
    pads = (
        inputs[1].ravel().tolist() if len(inputs) > 1 and inputs[1] is not None else call.ints_attribute("pads") or []
    )
    added = sum(map(abs, pads))
    return prod(size + added for size in call.required(0).shape)


def _whole_numbers(value: Value) -> Array | None:
    is_whole = value.is_constant and value.data is not None and value.data.dtype.kind in _WHOLE
    return value.data if is_whole else None


def _run(call: Call, inputs: list[Array | None]) -> list[Array] | None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    op = call.op
    attributes = {name: value for name, value in op.attributes.items() if isinstance(value, int | float | str | list)}
    names = ["" if array is None else f"i{position}" for position, array in enumerate(inputs)]
    made = [f"o{position}" for position in range(len(op.outputs))]
    try:
        node = onnx.helper.make_node(op.op_type, names, made, **attributes)  # type: ignore[arg-type]
        graph = onnx.helper.make_graph(
            [node],
            "known",
            [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names if name],
            [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in made],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", op.version)])
        given = {name: array for name, array in zip(names, inputs, strict=True) if name}
        with np.errstate(all="ignore"):
            results = [np.asarray(result) for result in ReferenceEvaluator(model).run(None, given)]
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as exc:
        # What is wrong with the operator, its rule says.
        _logger.debug("onnx cannot evaluate %s: %s", op.op_type, exc)
        return None
    return results if all(result.dtype.kind in _WHOLE for result in results) else None
