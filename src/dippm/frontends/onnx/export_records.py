"""What files of PyTorch's exporters tell of the module: which tensors are parameters, which norms its own operators."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from dippm.graph import OpKind
from dippm.graph.passes.fuse_layer_norm import WrittenNorms
from dippm.graph.passes.fuse_noted_operators import NotedOperator

if TYPE_CHECKING:
    import onnx

__all__ = ["find_noted_operators", "find_untrained", "find_written_norms"]

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_CALLS = "pkg.torch.onnx.name_scopes"
# What ``rms_norm`` adds to the mean of squares. A module's own ``mean + eps`` is an ``aten.add.Tensor``.
_ADDED_BY_RMS_NORM = "'aten.add.Scalar']"
_FIRST_OPSET_OF_LAYER_NORM = 17
_PARAMETER = re.compile(r"PARAMETER target='([^']*)'")
_NAME = re.compile(r"'([^']*)'")
_OPERATOR = re.compile(r"'aten\.((\w+)\.\w+)'\]$")
# Operators that PyTorch runs as one kernel and that its exporter may write as several.
_OF_ONE = "trunc frac log1p expm1 log2 log10 erfc erfinv logit sinc glu deg2rad rad2deg"
_OF_SEVERAL = "atan2 remainder floor_divide logaddexp logaddexp2 hypot xlogy heaviside copysign lerp addcmul addcdiv"
_NOTED: dict[str, tuple[OpKind, str]] = {
    **{name: (OpKind.UNARY, name) for name in _OF_ONE.split()},
    **{name: (OpKind.BINARY, name) for name in _OF_SEVERAL.split()},
    **{f"logical_{name}": (OpKind.BINARY, name) for name in ("and", "or", "xor")},
    **{name: (OpKind.REDUCE, name) for name in ("any", "all")},
    "fmod": (OpKind.BINARY, "remainder"),
    "linalg_cross": (OpKind.BINARY, "cross"),
    "log_sigmoid": (OpKind.UNARY, "log_sigmoid_forward"),
    "softplus": (OpKind.SOFTPLUS, ""),
    "bilinear": (OpKind.LINEAR, ""),
    "add": (OpKind.ADD, ""),
    "sub": (OpKind.SUB, ""),
    "rsub": (OpKind.SUB, ""),
    "linalg_vector_norm": (OpKind.REDUCE, "norm"),
    "logcumsumexp": (OpKind.CUMULATIVE, "logcumsumexp"),
}
# The same, where the form of the call tells which operator it is.
_NOTED_FORMS: dict[str, tuple[OpKind, str]] = {"max.dim": (OpKind.REDUCE, "max"), "min.dim": (OpKind.REDUCE, "min")}
_UNTRAINED_KINDS = frozenset({"BUFFER", "CONSTANT_TENSOR"})


def find_untrained(graph: onnx.GraphProto) -> set[str]:
    """Names of values that are no parameters, by what the exporter says of them.

    Those are the module's buffers, and what the exporter has worked out itself from anything but parameters, such as
    the grid of a spatial transformer. It names all values that such a tensor was made from, those in between included.

    Args:
        graph: The graph of the file; without such notes, nothing is found.
    """
    signature = next((entry.value for entry in graph.metadata_props if entry.key == _SIGNATURE), None)
    if signature is None:
        return set()
    parameters = set(_PARAMETER.findall(signature))
    found = set()
    for info in graph.value_info:
        notes = {entry.key: entry.value for entry in info.metadata_props}
        sources = notes.get(_FOLDED_FROM)
        is_made = sources is not None and parameters.isdisjoint(_NAME.findall(sources))
        if notes.get(_KIND) in _UNTRAINED_KINDS or (_KIND not in notes and is_made):
            found.add(info.name)
    return found


def find_noted_operators(graph: onnx.GraphProto) -> dict[str, NotedOperator]:
    """Operators that PyTorch's newer exporter takes apart, by the names of the tensors that their parts write.

    Args:
        graph: The graph of the file; without such notes, nothing is found.
    """
    found = {}
    masked = {}
    for node in graph.node:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        operator = _OPERATOR.search(notes.get(_CLASSES, ""))
        if operator is None or _CALLS not in notes:
            continue
        noted = _NOTED_FORMS.get(operator[1]) or _NOTED.get(operator[2])
        call = notes[_CALLS]
        if node.op_type == "NonZero" and operator[2] == "index_put":
            # What is written wherever a mask is true, PyTorch chooses element by element.
            masked[call] = noted = OpKind.BINARY, "where"
        noted = noted or masked.get(call)
        if noted is not None:
            kind, function = noted
            found.update(dict.fromkeys(node.output, NotedOperator(call=call, kind=kind, function=function)))
    return found


def find_written_norms(model: onnx.ModelProto, opset: int) -> WrittenNorms:
    """Which norms that the file writes out were one operator of the module.

    PyTorch's newer exporter keeps ``layer_norm`` whole, takes ``rms_norm`` apart and notes what each operator was made
    of. The older one keeps ``layer_norm`` whole where the opset has it and refuses ``rms_norm``, so what it writes out
    the module did. Of files of others nothing is known: theirs are taken to be whole.

    Args:
        model: The file.
        opset: Its version of the standard operators.
    """
    sums = set()
    is_noted = False
    for node in chain(model.graph.node, *(function.node for function in model.functions)):
        for entry in node.metadata_props:
            if entry.key == _CLASSES:
                is_noted = True
                if node.op_type == "Add" and entry.value.endswith(_ADDED_BY_RMS_NORM):
                    sums.update(node.output)
    if is_noted:
        return WrittenNorms(are_layer_norms=False, rms_sums=frozenset(sums))
    if model.producer_name != "pytorch":
        return WrittenNorms()
    return WrittenNorms(are_layer_norms=opset < _FIRST_OPSET_OF_LAYER_NORM, rms_sums=frozenset())
