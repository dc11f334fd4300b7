"""What files of PyTorch's exporters tell of the module: which tensors are parameters, which norms its own operators."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from dippm.graph.passes.fuse_layer_norm import WrittenNorms

if TYPE_CHECKING:
    import onnx

__all__ = ["find_untrained", "find_written_norms"]

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
# What ``rms_norm`` adds to the mean of squares. A module's own ``mean + eps`` is an ``aten.add.Tensor``.
_ADDED_BY_RMS_NORM = "'aten.add.Scalar']"
_FIRST_OPSET_OF_LAYER_NORM = 17
_PARAMETER = re.compile(r"PARAMETER target='([^']*)'")
_NAME = re.compile(r"'([^']*)'")
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
