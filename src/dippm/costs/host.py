"""What the host spends to launch one operator in eager PyTorch.

At small sizes a single eager call takes a time that does not depend on the GPU: the minimum over the measured kernel
tables is the same within 1 microsecond on A100, T4 and P4, cards whose speeds differ by a factor of eight, and differs
by operator. That minimum is the host's work for the call (Python, dispatcher, launch). Values below: smallest measured
latency on the A100 host of those tables (PyTorch 2.1, CUDA 12.1), microseconds. Two event records around the call are
inside, which a whole model does not have; they are taken off. How much they are is an assumption. What decoders and
encoders of ``data/published`` say of the host of one machine differs by 19 % with nothing taken off, by 13 % with 10
and by 9 % with 15 microseconds; all rows together are fitted as well with 10 as with 15. ``host_scale`` of
:class:`~dippm.costs.rates.Rates` is how fast hosts launch whole models against this one.

A convolution costs more where its library looks for a kernel at each call, as cuDNN's seventh interface did (PyTorch
before 2.0): of twenty models on one A100 transformers tell one host and models of convolutions one 1.2 to 1.5 times as
slow, those of depthwise convolutions between them (``data/published``, framework-tax). PyTorch has a kernel of its own
for these, which is taken for all of them here; in FP16 cuDNN runs some.
``convolution_host`` is by how much.

Views were not measured; theirs is an assumption of the order of a Python call into the dispatcher. An optimizer's
operators over lists of tensors were not measured either: a microsecond for each tensor beside the call is assumed.

A captured graph is launched as a whole. Of 1,067 captured calls of an H100 and an H200 the wall time is longer than
that between CUDA events around the launch, by 29 microseconds in the median where the graph has fewer than 400 kernels
and by 45 where it has more; 20, and 0.02 for each kernel, which is taken for a part of what lies between kernels, are
nearest to all of them, relative to the call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.sizes import GraphSizes
from dippm.graph import CONTRACTION_KINDS, NORM_KINDS, RECURRENT_KINDS, OpKind
from dippm.graph.codes import tabulate

__all__ = ["CAST_DISPATCH_US", "FUSED_DISPATCH_US", "GRAPH_LAUNCH_MS", "goes_through_cudnn", "host_dispatch_us"]

GRAPH_LAUNCH_MS = 0.02
_EVENTS_US = 10.0
_MODULE_US = 31.0
_FUNCTION_US = 25.5
_VIEW_US = 4.0
_US_PER_TENSOR = 1.0

CAST_DISPATCH_US = _FUNCTION_US - _EVENTS_US
# A kernel that a compiler made is launched by Python code of its own: taken for the plainest function of PyTorch's.
FUSED_DISPATCH_US = CAST_DISPATCH_US

_MEASURED_US = {
    OpKind.CONV: 59.0,
    OpKind.LINEAR: 53.0,
    OpKind.MATMUL: 31.0,
    OpKind.SOFTMAX: 32.0,
    OpKind.LAYER_NORM: 45.0,
    OpKind.RELU: _MODULE_US,
    OpKind.GELU: _MODULE_US,
    OpKind.TANH: _FUNCTION_US,
    OpKind.CONV_WEIGHT_GRAD: 59.0,
    OpKind.RECURRENT_GRAD: 59.0,
    OpKind.ATTENTION_GRAD: 59.0,
    OpKind.NORM_GRAD: 45.0,
    OpKind.SOFTMAX_GRAD: 32.0,
}


def _dispatch_us(kind: OpKind) -> float:
    return _VIEW_US if kind is OpKind.VIEW else _measured_us(kind) - _EVENTS_US


def _measured_us(kind: OpKind) -> float:
    if kind in _MEASURED_US:
        return _MEASURED_US[kind]
    if kind in NORM_KINDS:
        return _MEASURED_US[OpKind.LAYER_NORM]
    if kind in CONTRACTION_KINDS or kind in RECURRENT_KINDS:
        return _MEASURED_US[OpKind.CONV]
    return _FUNCTION_US


_DISPATCH_US = tabulate(OpKind, _dispatch_us)


def goes_through_cudnn(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Which nodes are convolutions of cuDNN: nearly all but those with one channel a group, [n_nodes]."""
    result = sizes.is_kind(OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD)
    (node,) = np.nonzero(result)
    is_gradient = sizes.is_kind(OpKind.CONV_WEIGHT_GRAD)[node]
    weight = np.where(is_gradient, sizes.outputs(node), sizes.inputs(node, 1))
    is_grouped = sizes.read_attributes(node, lambda attributes: attributes.get("groups", 1) != 1) > 0
    result[node] = ~is_grouped | (sizes.dimension(weight, 1)[:, 0] != 1.0)
    return result


def host_dispatch_us(sizes: GraphSizes) -> npt.NDArray[np.float64]:
    """Host time of every node, microseconds; operators that were not measured take the nearest kind that was.

    Shapes:
        Result: [n_nodes].
    """
    lists = np.diff(sizes.edges.input_start)
    result: npt.NDArray[np.float64] = _DISPATCH_US[sizes.arrays.kind]
    return result + np.where(sizes.is_kind(OpKind.OPTIMIZER), _US_PER_TENSOR * lists, 0.0)
