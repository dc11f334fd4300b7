"""Products with quantised weights in a training step: a kernel of its own unpacks the weight before each.

So does bitsandbytes (``autograd/_functions.py``, ``MatMul4Bit``): the unpacked weight lives as long as its product
runs, and the backward pass unpacks it again. Other libraries are taken to do the same.
"""

from __future__ import annotations

from dippm.costs.packings import PACKED_BY
from dippm.costs.training_step.step_builder import StepBuilder, change_node
from dippm.graph import Node, OpKind
from dippm.graph.linear_layers import is_quantised

__all__ = ["read_weight", "with_unpacked_weight"]

_WHOLE_BITS = 16
_X, _WEIGHT, _BIAS, _SCALES = range(4)


def with_unpacked_weight(builder: StepBuilder, node: Node) -> Node:
    """The product on the unpacked weight, where it has a quantised one; the kernel that unpacks it is appended."""
    if node.kind not in (OpKind.LINEAR, OpKind.MATMUL):
        return node
    weight = read_weight(builder, node)
    if weight == node.inputs[_WEIGHT]:
        return node
    bias = node.inputs[_BIAS:_SCALES]
    return change_node(node, inputs=(node.inputs[_X], weight, *(bias if bias != (-1,) else ())))


def read_weight(builder: StepBuilder, node: Node) -> int:
    """What a product multiplies with: its weight, or a new tensor where that is quantised, which is unpacked to it."""
    x, weight = node.inputs[_X], node.inputs[_WEIGHT]
    dtype = builder.dtype(x)
    if not is_quantised(builder.tensors[builder.base(weight)]) or not dtype.is_floating or dtype.bits < _WHOLE_BITS:
        return weight
    unpacked = builder.new_tensor(builder.shape(weight), dtype, name="unpacked")
    packed_by = {PACKED_BY: node.attributes[PACKED_BY]} if PACKED_BY in node.attributes else {}
    inputs = (weight, *node.inputs[_SCALES:])
    builder.run(OpKind.DEQUANTIZE, inputs, (unpacked,), "dequantize", attributes=packed_by)
    return unpacked
