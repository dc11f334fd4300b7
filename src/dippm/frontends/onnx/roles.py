"""What each stored tensor is to the model: trained, kept beside the weights, or merely a number in the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dippm.frontends.onnx.program import ABSENT, Op, Program, Weight
from dippm.frontends.onnx.values import DATA_LIMIT, numel
from dippm.graph import TensorRole

__all__ = ["assign_roles", "is_made_name", "role_of_constant"]

_RUNNING_STATISTICS = (3, 4)  # mean and variance among the inputs of BatchNormalization
_BUFFER_NAMES = frozenset(
    {
        "running_mean", "running_var", "num_batches_tracked", "attn_mask", "attention_mask", "mask", "causal_mask",
        "relative_position_index", "relative_coords_table", "position_ids", "token_type_ids", "inv_freq",
        "masked_bias", "anchors", "anchor_grid", "mean", "std", "pixel_mean", "pixel_std", "cos_cache", "sin_cache",
        "cos_cached", "sin_cached",
    }
)  # fmt: skip
# Parts that are numbers are places in a Sequential or a ModuleList.
_MODULE_PATH = re.compile(r"(?!val_\d|scalar|const)(\d+\.)*[A-Za-z_]\w*(\.\w+)*", re.IGNORECASE)
# What the exporter of PyTorch calls tensors of the code that it has worked out, after the operators that made them.
_MADE_NAME = re.compile(r"(new_)?(zeros|ones|full|empty|expand|repeat|tile)(_\d+)?")
_TRAINED_INPUTS = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (1,), "LSTM": (1, 2, 3), "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
}  # fmt: skip
# Where stored numbers are trained; operators written with Constant operators there need not be.
_STORED_WEIGHTS = _TRAINED_INPUTS | {
    "BatchNormalization": (1, 2), "GroupNormalization": (1, 2), "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2), "PRelu": (1,), "QLinearConv": (3, 8), "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
}  # fmt: skip
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
# Where operators take integers that stand for numbers, and where they take scales and zero points.
_QUANTISED = {
    "DequantizeLinear": (0,), "ConvInteger": (0, 1), "MatMulInteger": (0, 1), "MatMulInteger16": (0, 1),
    "QLinearConv": (0, 3, 8), "QLinearMatMul": (0, 3), "QLinearAdd": (0, 3), "QLinearMul": (0, 3), "QGemm": (0, 3, 6),
    "MatMulIntegerToFloat": (0, 1), "DynamicQuantizeMatMul": (1,), "QAttention": (0, 1), "DynamicQuantizeLSTM": (1, 2),
    "QEmbedLayerNormalization": (2, 3, 4, 5, 6), "MatMulNBits": (1,), "MatMulBnb4": (1,), "MatMulFpQ4": (1,),
    "MatMulBlockQuantizedFp4Weight": (1,), "MatMulBlockQuantizedFp8Weight": (1,), "GatherBlockQuantized": (0,),
    "QMoE": (2, 5, 8),
}  # fmt: skip
_SCALES = {
    "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "ConvInteger": (2, 3), "MatMulInteger": (2, 3),
    "MatMulInteger16": (2, 3), "QLinearConv": (1, 2, 4, 5, 6, 7), "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QLinearAdd": (1, 2, 4, 5, 6, 7), "QLinearMul": (1, 2, 4, 5, 6, 7), "QGemm": (1, 2, 4, 5, 7, 8),
    "MatMulIntegerToFloat": (2, 3, 4, 5), "DynamicQuantizeMatMul": (2, 3), "QAttention": (3, 4, 6, 7),
    "DynamicQuantizeLSTM": (8, 9, 10, 11), "QEmbedLayerNormalization": tuple(range(8, 18)), "MatMulNBits": (2, 3, 4),
    "MatMulBnb4": (2,), "MatMulBlockQuantizedFp4Weight": (2, 3, 4), "MatMulBlockQuantizedFp8Weight": (2, 3),
    "GatherBlockQuantized": (2, 3), "QMoE": (3, 6, 9, *range(11, 21)),
}  # fmt: skip
# Cosines and sines of the angles of each position; where the positions stand among them, those are whole numbers.
_ROTARY_TABLES = {"RotaryEmbedding": (1, 2, 3), "GroupQueryAttention": (7, 8), "SparseAttention": (9, 10)}
# Their results are cast and multiplied by a scale that is itself a product of scales.
_INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger", "MatMulInteger16"})
# What stands between integers and the conversion of them where only their arrangement changes.
_REARRANGING = frozenset({"Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
# What stands between a layer and a weight of one element, or its bias, and leaves each element what it is.
_PASSING = frozenset({"Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_UNCHANGING = _REARRANGING | _PASSING
_MOST_PASSED = 8
_MATRIX_RANK = 2


def assign_roles(program: Program) -> None:
    """Give every stored tensor its role, by its type, its use and, for buffers, the last part of its name."""
    buffers: set[int] = set()
    statistics: set[int] = set()
    quantised: set[int] = set()
    states: set[int] = set()
    ops = list(_backwards(program.ops))
    slots = _one_unit_weights(ops, program.weights)
    sums = {number for op in ops if op.op_type in _INTEGER_PRODUCTS for number in op.outputs}
    casts = [op for op in ops if op.op_type == "Cast" and not sums.isdisjoint(op.inputs)]
    sums.update(number for op in casts for number in op.outputs)
    for op in ops:
        if op.op_type == "Mul" and not (sums.isdisjoint(op.inputs) and buffers.isdisjoint(op.outputs)):
            buffers.update(number for number in op.inputs if number not in sums)
        if op.op_type == "BatchNormalization":
            statistics.update(_inputs(op, _RUNNING_STATISTICS))
        buffers.update(_inputs(op, _SCALES.get(op.op_type, ())))
        buffers.update(_inputs(op, _ROTARY_TABLES.get(op.op_type, ())))
        if op.op_type in _UNCHANGING and not buffers.isdisjoint(op.outputs):
            buffers.update(_inputs(op, (0,)))
        quantised.update(_inputs(op, _QUANTISED.get(op.op_type, ())))
        if op.op_type in _REARRANGING and not quantised.isdisjoint(op.outputs):
            quantised.update(_inputs(op, (0,)))
        program.trained.update(_inputs(op, _TRAINED_INPUTS.get(op.op_type, ())))
        slots.update(_inputs(op, _STORED_WEIGHTS.get(op.op_type, ())))
        states.update(_inputs(op, _STATES.get(op.op_type, ())))
        if op.op_type in _PASSING and not slots.isdisjoint(op.outputs):
            slots.update(_inputs(op, (0,)))
    # PyTorch's exporter stores tensors of equal values once: a scale of ones is the variance of ones beside it.
    buffers |= statistics - slots
    for number, constant in program.constants.items():
        constant.role = role_of_constant(constant, is_trained=number in program.trained)
    for number, weight in program.weights.items():
        is_single = _is_single(weight)
        if number in buffers:
            weight.role = TensorRole.BUFFER
        elif is_single and number in slots:
            # Numbers of the code are known by their one element, but not where a layer has its weights.
            is_weight = number in quantised or weight.dtype.is_floating
            weight.role = TensorRole.PARAMETER if is_weight else TensorRole.BUFFER
        elif number in quantised and not is_single:
            weight.role = TensorRole.PARAMETER
        elif number in states and _is_made_up(weight):
            weight.role = TensorRole.CONSTANT
        else:
            role = _role(weight)
            is_stated = role is TensorRole.PARAMETER and number in program.untrained
            weight.role = TensorRole.BUFFER if is_stated else role


def role_of_constant(constant: Weight, *, is_trained: bool) -> TensorRole:
    """The role of a tensor that is written in the code.

    Args:
        constant: The tensor.
        is_trained: Whether it stands where a layer has its weights.
    """
    if is_trained and constant.dtype.is_floating:
        return TensorRole.PARAMETER
    return TensorRole.BUFFER if numel(constant.shape) > DATA_LIMIT else TensorRole.CONSTANT


def is_made_name(name: str) -> bool:
    """Whether an exporter has named a stored tensor, not the model that it is a weight of."""
    return _MODULE_PATH.fullmatch(name) is None or _MADE_NAME.fullmatch(name) is not None


def _one_unit_weights(ops: Sequence[Op], weights: Mapping[int, Weight]) -> set[int]:
    """Stored numbers that are the weights of a layer with one unit, though an operator of their own takes them.

    They are added to the result of a layer with one output, which has no other bias, or scale and shift what exporters
    write for a group normalization. A number of the code has no dimensions; a weight has one, or as many as the
    layer's result.
    """
    makers = {number: op for op in ops for number in op.outputs if number != ABSENT}
    found: set[int] = set()
    for op in ops:
        if op.op_type not in {"Add", "Mul"} or len(op.inputs) != 2:
            continue
        for result, operand in (op.inputs, op.inputs[::-1]):
            weight = weights.get(operand)
            if weight is None or not weight.shape or not _is_single(weight):
                continue
            if op.op_type == "Mul":
                is_own = _is_group_norm(result, makers)
            else:
                is_own = _has_one_unit(result, makers, weights) or _is_scaled_group_norm(result, makers)
            if is_own:
                found.add(operand)
    return found


def _is_group_norm(number: int, makers: Mapping[int, Op]) -> bool:
    """Whether a value is an instance normalization of reshaped groups, reshaped back."""
    for op_type in ("Reshape", "InstanceNormalization", "Reshape"):
        maker = makers.get(number)
        if maker is None or maker.op_type != op_type or not maker.inputs:
            return False
        number = maker.inputs[0]
    return True


def _is_scaled_group_norm(number: int, makers: Mapping[int, Op]) -> bool:
    maker = makers.get(number)
    return maker is not None and maker.op_type == "Mul" and any(_is_group_norm(each, makers) for each in maker.inputs)


def _has_one_unit(number: int, makers: Mapping[int, Op], weights: Mapping[int, Weight]) -> bool:
    """Whether a value is the result of a layer with one output and no bias, rearranged at most."""
    layer = makers.get(_behind(number, makers)[0])
    if layer is None or len(layer.inputs) != 2:
        return False
    weight, is_turned = _behind(layer.inputs[1], makers)
    if weight not in weights:
        return False
    shape = weights[weight].shape
    if layer.op_type == "MatMul":
        return len(shape) == _MATRIX_RANK and shape[0 if is_turned else 1] == 1
    if layer.op_type == "Conv":
        return len(shape) > _MATRIX_RANK and shape[0] == 1
    return (
        layer.op_type == "ConvTranspose"
        and len(shape) > _MATRIX_RANK
        and shape[1] == 1
        and layer.attributes.get("group", 1) == 1
    )


def _behind(number: int, makers: Mapping[int, Op]) -> tuple[int, bool]:
    """What a value is a rearrangement of, and whether an odd number of transpositions lies between."""
    is_turned = False
    for _ in range(_MOST_PASSED):
        maker = makers.get(number)
        if maker is None or maker.op_type not in _PASSING or not maker.inputs:
            break
        is_turned ^= maker.op_type == "Transpose"
        number = maker.inputs[0]
    return number, is_turned


def _is_single(weight: Weight) -> bool:
    return all(size == 1 for size in weight.shape)


def _is_made_up(weight: Weight) -> bool:
    """Whether a state in which a layer begins is the zeros that an exporter wrote for a model that gives none."""
    return weight.data is not None and not weight.data.any() and not _MODULE_PATH.fullmatch(weight.name)


def _inputs(op: Op, positions: Sequence[int]) -> Iterator[int]:
    return (op.inputs[p] for p in positions if p < len(op.inputs) and op.inputs[p] != ABSENT)


def _backwards(ops: Sequence[Op]) -> Iterator[Op]:
    """All operators from the last to the first, those of subgraphs behind the operator that runs them."""
    for op in reversed(ops):
        yield op
        for block in op.blocks():
            yield from _backwards(block.ops)


def _role(weight: Weight) -> TensorRole:
    last = weight.name.rpartition(".")[2]
    if last in _BUFFER_NAMES:
        return TensorRole.BUFFER
    if _is_single(weight) and not _MODULE_PATH.fullmatch(weight.name):
        # Exporters lift the numbers of the code, such as an epsilon, to tensors with names of their own making.
        return TensorRole.CONSTANT
    if weight.dtype.is_floating:
        return TensorRole.PARAMETER
    return TensorRole.BUFFER
