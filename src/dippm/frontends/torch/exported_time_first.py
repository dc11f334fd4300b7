"""Which inputs of an exported program have the time in front of the batch, as its operators tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dippm.frontends.time_first import TimeFirst, describe_layer
from dippm.frontends.torch.exported_module import ATTENTION, argument_names, module_of

__all__ = ["find_exported_time_first"]

_Json = Mapping[str, Any]
_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_RANK = 3
# Behind their first tensor these read weights, states and masks, whose dimensions say nothing of an input's.
_FIRST_ALONE = frozenset({*_RECURRENT, "linear", "scaled_dot_product_attention", "matmul", "bmm"})


def find_exported_time_first(program: _Json) -> TimeFirst | None:
    """The inputs that begin with time and batch as a recurrent layer or attention reads them.

    An input is one where the first two dimensions of what such a layer reads are its own first two, which differ. Where
    time and batch are of one size nothing tells them apart.

    Args:
        program: The archive's program, parsed from its JSON.

    Returns:
        The first such layer with the inputs of all of them, by the program's names and by position among its tensors;
        None where there is none.
    """
    module = program["graph_module"]
    graph = module["graph"]
    names = [
        spec["user_input"]["arg"]["as_tensor"]["name"]
        for spec in module["signature"]["input_specs"]
        if "user_input" in spec and "as_tensor" in spec["user_input"]["arg"]
    ]
    fronts = {name: _front(graph, name) for name in names}
    makers = {name: node for node in graph["nodes"] for name in argument_names(node["outputs"])}
    layer, found = "", set()
    for node in graph["nodes"]:
        source = _sequence_of(node)
        if source is None or len(graph["tensor_values"][source]["sizes"]) != _RANK:
            continue
        front = _front(graph, source)
        reached = [name for name in _behind(source, makers) if name in fronts and fronts[name] == front]
        if reached and front[0] != front[1]:
            layer = layer or _described(node)
            found.update(reached)
    if not found:
        return None
    positions = tuple(position for position, name in enumerate(names) if name in found)
    return TimeFirst(layer=layer, inputs=positions, names=tuple(names[position] for position in positions))


def _operator(node: _Json) -> str:
    parts = str(node["target"]).split(".")
    return parts[3] if len(parts) > 3 else ""


def _sequence_of(node: _Json) -> str | None:
    """The sequence that a layer reads which takes the time first; None of any other operator."""
    arguments = {item.get("name"): item["arg"] for item in node["inputs"]}
    is_recurrent = _operator(node) in _RECURRENT and not arguments.get("batch_first", {}).get("as_bool", False)
    is_attention = _operator(node) == "linear" and module_of(node)[1] == ATTENTION
    if not is_recurrent and not is_attention:
        return None
    source = arguments.get("input", {}).get("as_tensor")
    return None if source is None else str(source["name"])


def _front(graph: _Json, name: str) -> tuple[str, ...]:
    """The first two sizes of a tensor, numbers and expressions alike as text."""
    return tuple(
        str(size["as_int"] if "as_int" in size else size["as_expr"].get("expr_str"))
        for size in graph["tensor_values"][name]["sizes"][:2]
    )


def _behind(name: str, makers: Mapping[str, _Json]) -> set[str]:
    """Everything that a tensor is made of."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if at in makers:
            inputs = makers[at]["inputs"]
            waiting += argument_names(inputs[:1] if _operator(makers[at]) in _FIRST_ALONE else inputs)
    return seen


def _described(node: _Json) -> str:
    scope, _ = module_of(node)
    return describe_layer(_RECURRENT.get(_operator(node), "MultiheadAttention"), scope)
