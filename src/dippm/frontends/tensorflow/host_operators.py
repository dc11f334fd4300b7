"""What a model does on the host before it computes: text and tables of words. Runs in the converter's process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["find_host_operators"]

_TABLES = "LookupTable"
# They hold or pass on text, or say what is wrong, without working on it.
_IDLE = frozenset({"Assert", "Const", "Identity", "IdentityN", "NoOp", "Placeholder", "PlaceholderWithDefault"})


def find_host_operators(graph: Any) -> list[str]:
    """The kinds of operators that work on text or look something up in a table, in the order in which they stand.

    TensorFlow has no kernel for a GPU for any of them.

    Args:
        graph: A ``tf.Graph``.
    """
    text = import_module("tensorflow").string
    found: dict[str, None] = {}
    for node in graph.get_operations():
        if node.type in _IDLE:
            continue
        if node.type.startswith(_TABLES) or any(each.dtype == text for each in (*node.inputs, *node.outputs)):
            found[node.type] = None
    return list(found)
