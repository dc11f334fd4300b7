"""What a model does on the host before it computes: text and tables of words. Runs in the converter's process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dippm.errors import UnsupportedError

__all__ = ["find_host_operators", "find_left_over", "host_operators_error"]

_TABLES = "LookupTable"
_HASHES = "StringToHashBucket"
# They hold or pass on text, or say what is wrong, without working on it.
_IDLE = frozenset({"Assert", "Const", "Identity", "IdentityN", "NoOp", "Placeholder", "PlaceholderWithDefault"})
# Keras hashes numbers by their digits.
_DIGITS = "AsString"


def find_host_operators(graph: Any) -> list[str]:
    """The kinds of operators that work on text or look something up in a table, in the order in which they stand.

    TensorFlow has no kernel for a GPU for any of them.

    Args:
        graph: A ``tf.Graph``.
    """
    found: dict[str, None] = {}
    for node in graph.get_operations():
        if node.type in _IDLE:
            continue
        if node.type.startswith(_TABLES) or _is_text(*node.inputs, *node.outputs):
            found[node.type] = None
    return list(found)


def find_left_over(graph: Any, converted: Any) -> list[str]:
    """Those of these kinds that tf2onnx has left as they are, as it does hashes.

    Args:
        graph: A ``tf.Graph``.
        converted: What tf2onnx has made of it.
    """
    has_operator = import_module("onnx").defs.has
    left = {kind for kind in {node.type for node in converted.get_nodes()} if not has_operator(kind)}
    return [kind for kind in find_host_operators(graph) if kind in left] if left else []


def host_operators_error(graph: Any, kinds: list[str]) -> UnsupportedError:
    """What to say of a graph that has operators of these kinds."""
    layers = _layers(graph, kinds)
    is_one = len(layers) == 1
    name = "".join(f"_{each.lower()}" if each.isupper() else each for each in layers[0]).removeprefix("_")
    return UnsupportedError(
        f"The model prepares text or looks words up in tables ({', '.join(kinds)[:200]}), as Keras's "
        f"{' and '.join(layers)} {'does' if is_one else 'do'}. That runs on the host, and ONNX has no form of it.",
        code="tensorflow.host_operators",
        cure=f"Give the model behind it, such as keras.Model(model.get_layer('{name}').output, model.outputs) where "
        "the layer has that name.",
    )


def _layers(graph: Any, kinds: list[str]) -> list[str]:
    """The layers of Keras that have operators of these kinds."""
    tables = [node for node in graph.get_operations() if node.type in kinds and node.type.startswith(_TABLES)]
    hashes = [kind for kind in kinds if kind.startswith(_HASHES)]
    if any(kind != _DIGITS and not kind.startswith((_TABLES, _HASHES)) for kind in kinds):
        return ["TextVectorization"]
    found = ["StringLookup" if any(_is_text(*node.inputs) for node in tables) else "IntegerLookup"] if tables else []
    return found + (["Hashing"] if hashes or not tables else [])


def _is_text(*tensors: Any) -> bool:
    text = import_module("tensorflow").string
    return any(each.dtype == text for each in tensors)
