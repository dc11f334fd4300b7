"""Inputs of a model that are sparse or ragged tensors. Runs in the converter's process.

Each is several tensors to a signature, whose sizes say how many values there are. Taken for sizes of the model, they
would give it work of another kind.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dippm.errors import UnsupportedError
from dippm.frontends.tensorflow.function_calls import CALLS
from dippm.frontends.tensorflow.graph_rewrites import node_name

__all__ = ["check_operators", "check_signature"]

_SPECS = {"SparseTensorSpec": "sparse", "RaggedTensorSpec": "ragged"}
# Operators that read a tensor by its parts, of which the first says where in it the values stand.
_SPARSE = frozenset(
    {"SparseConcat", "SparseFillEmptyRows", "SparseReorder", "SparseReshape", "SparseSlice", "SparseTensorDenseAdd",
     "SparseTensorDenseMatMul", "SparseToDense"}
)  # fmt: skip
_RAGGED = "RaggedTensorToTensor"


def check_signature(function: Any) -> None:
    """Refuse a signature whose function takes a sparse or a ragged tensor.

    Args:
        function: A concrete function of a SavedModel. What it calls knows tensors by the whole, if it was not saved as
            a concrete function itself.

    Raises:
        UnsupportedError: ``tensorflow.sparse_input``, ``tensorflow.ragged_input``.
    """
    called = {node.get_attr("f").name for node in function.graph.get_operations() if node.type in CALLS}
    known = [each for name, each in function.graph._functions.items() if name in called]
    whole = [each.type_constraint for inner in known for each in inner.function_type.parameters.values()]
    for spec in import_module("tensorflow").nest.flatten(whole):
        kind = _SPECS.get(type(spec).__name__)
        if kind is not None:
            raise _refusal(kind, f" of shape {spec.shape}")


def check_operators(graph_def: Any) -> None:
    """Refuse a graph that puts a sparse or a ragged tensor together from its inputs.

    Args:
        graph_def: A ``GraphDef`` without calls.

    Raises:
        UnsupportedError: ``tensorflow.sparse_input``, ``tensorflow.ragged_input``.
    """
    nodes = {node.name: node for node in graph_def.node}

    def is_input(name: str) -> bool:
        node = nodes.get(node_name(name))
        while node is not None and node.op == "Identity" and node.input:
            node = nodes.get(node_name(node.input[0]))
        return node is not None and node.op == "Placeholder"

    for node in graph_def.node:
        if node.op in _SPARSE and is_input(node.input[0]):
            raise _refusal("sparse")
        if node.op == _RAGGED and any(map(is_input, node.input)):
            raise _refusal("ragged")


def _refusal(kind: str, shape: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"The model takes a {kind} tensor{shape}. How much work that is follows from the values in it, not from its "
        "shape.",
        code=f"tensorflow.{kind}_input",
        cure="Save it with a dense input, a tf.TensorSpec of a whole tensor.",
    )
