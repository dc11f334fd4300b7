"""What PyTorch's newer exporter notes beside the tensors that it stores: which of them are parameters of the module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["find_untrained"]

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
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
