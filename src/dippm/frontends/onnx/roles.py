"""What each stored tensor is to the model: trained, kept beside the weights, or merely a number in the code."""

from __future__ import annotations

import re

from dippm.frontends.onnx.program import ABSENT, Program, Weight
from dippm.graph import TensorRole

__all__ = ["assign_roles"]

_RUNNING_STATISTICS = (3, 4)  # mean and variance among the inputs of BatchNormalization
_BUFFER_NAMES = frozenset(
    {
        "running_mean", "running_var", "num_batches_tracked", "attn_mask", "attention_mask", "mask", "causal_mask",
        "relative_position_index", "relative_coords_table", "position_ids", "token_type_ids", "inv_freq",
        "masked_bias", "anchors", "anchor_grid", "mean", "std", "pixel_mean", "pixel_std",
    }
)  # fmt: skip
_MODULE_PATH = re.compile(r"(?!val_\d|scalar|const)[A-Za-z_]\w*(\.\w+)*", re.IGNORECASE)
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SCALE_AND_ZERO_POINT = (1, 2)
_TRAINED_INPUTS = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (1,), "LSTM": (1, 2, 3), "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
}  # fmt: skip


def assign_roles(program: Program) -> None:
    """Give every stored tensor its role, by its type, its use and, for buffers, the last part of its name."""
    statistics: set[int] = set()
    for op in program.ops:
        if op.op_type == "BatchNormalization":
            statistics.update(op.inputs[i] for i in _RUNNING_STATISTICS if i < len(op.inputs))
        elif op.op_type in _QUANTIZERS:
            statistics.update(op.inputs[i] for i in _SCALE_AND_ZERO_POINT if i < len(op.inputs))
        elif op.op_type in _TRAINED_INPUTS:
            program.trained.update(op.inputs[i] for i in _TRAINED_INPUTS[op.op_type] if i < len(op.inputs))
    statistics.discard(ABSENT)
    for number, weight in program.weights.items():
        weight.role = TensorRole.BUFFER if number in statistics else _role(weight)


def _role(weight: Weight) -> TensorRole:
    last = weight.name.rpartition(".")[2]
    if last in _BUFFER_NAMES:
        return TensorRole.BUFFER
    if all(size == 1 for size in weight.shape) and not _MODULE_PATH.fullmatch(weight.name):
        # Exporters lift the numbers of the code, such as an epsilon, to tensors with names of their own making.
        return TensorRole.CONSTANT
    if weight.dtype.is_floating:
        return TensorRole.PARAMETER
    return TensorRole.BUFFER
