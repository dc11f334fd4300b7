"""Calls of functions in a TensorFlow graph, replaced by what they call. Runs in the converter's process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

__all__ = ["CALLS", "inline_calls"]

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# A function to be compiled as a whole, as Keras 3 wraps a grouped convolution, is kept apart by these.
_BARRIERS = ("_XlaMustCompile", "_noinline", "api_implements")
_LOWERING = "_lower_using_switch_merge"


def inline_calls(graph_def: Any, *, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Put the operators of every function that is called in the place of the call.

    Loops and branches keep their functions. A graph without calls is returned as it is.

    Args:
        graph_def: A frozen ``GraphDef``, whose large constants may have lost their values; it may be changed.
        inputs: Its input tensors, such as ``"x:0"``.
        outputs: Its output tensors.

    Returns:
        A ``GraphDef`` that has these tensors.
    """
    functions = graph_def.library.function
    nodes = list(chain(graph_def.node, *(function.node_def for function in functions)))
    if not any(node.op in CALLS for node in nodes):
        return graph_def
    for holder in (*nodes, *functions):
        _forget(holder, _BARRIERS)
    for node in nodes:
        if _LOWERING in node.attr:
            node.attr[_LOWERING].b = False
    settings = import_module("tensorflow.core.protobuf.config_pb2").ConfigProto()
    rewriting = settings.graph_options.rewrite_options
    rewriting.min_graph_nodes = -1  # small graphs too
    rewriting.optimizers.append("function")
    rewriting.function_optimization = rewriting.AGGRESSIVE
    described = import_module("tensorflow.core.protobuf.meta_graph_pb2").MetaGraphDef()
    described.graph_def.CopyFrom(graph_def)
    described.collection_def["train_op"].node_list.value.extend((*inputs, *outputs))
    return import_module("tensorflow.python.grappler.tf_optimizer").OptimizeGraph(settings, described)


def _forget(holder: Any, attributes: Iterable[str]) -> None:
    for attribute in attributes:
        if attribute in holder.attr:
            del holder.attr[attribute]
