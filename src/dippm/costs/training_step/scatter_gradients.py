"""Backward passes of operators that write elements to the places of an index, in eager PyTorch on CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dippm.costs.training_step.backward import Gradients, Outputs, first_of, function_of
from dippm.graph import DType, Node, OpKind

__all__ = ["REDUCTION", "scatter_gradient"]

REDUCTION = "reduction"
"""Attribute of a scatter: what is made of the elements that meet at one place, where they are not added or written."""

_Step = tuple[OpKind, str, str, tuple[str, ...]]
# FunctionsManual.cpp (2.13), scatter_reduce_backward and index_reduce_backward: kind, function, whether the result is
# as large as the table (t) or as what is written to it (s), and operands. Those are g, the gradient of the result; y,
# the result; i, the index; t and s; and digits, the results of earlier steps. They stay until the last one, or until
# the end of their statement where nothing holds them then.
_MEAN: Sequence[_Step] = (
    (OpKind.FILL, "zeros", "t", ()),
    (OpKind.FILL, "ones", "s", ()),
    (OpKind.SCATTER, "scatter_add", "t", ("0", "i", "1")),
    (OpKind.BINARY, "equal", "t", ("2",)),
    (OpKind.BINARY, "masked_fill", "t", ("2", "3")),
    (OpKind.DIV, "", "t", ("g", "4")),
    (OpKind.GATHER, "gather", "s", ("4", "i")),
    (OpKind.GATHER, "gather", "s", ("g", "i")),
    (OpKind.DIV, "", "s", ("7", "6")),
)
_EXTREME: Sequence[_Step] = (
    (OpKind.GATHER, "gather", "s", ("y", "i")),
    (OpKind.BINARY, "equal", "t", ("t", "y")),
    (OpKind.CAST, "", "t", ("1",)),
    (OpKind.BINARY, "equal", "s", ("s", "0")),
    (OpKind.CAST, "", "s", ("3",)),
    (OpKind.SCATTER, "scatter_add", "t", ("2", "i", "4")),
    (OpKind.DIV, "", "t", ("g", "5")),
    (OpKind.MUL, "", "t", ("2", "6")),
    (OpKind.GATHER, "gather", "s", ("6", "i")),
    (OpKind.MUL, "", "s", ("4", "8")),
)
_REDUCTIONS: Mapping[object, tuple[Sequence[_Step], int]] = {
    "mean": (_MEAN, 5), "amax": (_EXTREME, 7), "amin": (_EXTREME, 7),
}  # fmt: skip
# The last step of a statement that drops what it is given, where more follow: a mean counts its elements first.
_DROPPED_AFTER: Mapping[object, Mapping[int, int]] = {"mean": {0: 2, 1: 2, 2: 4, 3: 4, 4: 4}}
# Scatters that add to what is there, which has no effect on its gradient.
_ADDING = frozenset({"scatter_add", "index_add"})
# Those of which autograd keeps what is written, for its shape alone.
_KEPT_FOR_ITS_SHAPE = frozenset({"index_add", "index_copy"})
# Those of which autograd keeps everything, whatever is made of the elements that meet.
_KEPT_WHOLE = ("scatter_reduce", "index_reduce")
# Scatters that take an index of one dimension look up with another kernel.
_BY_ROW = {"gather": "index_select", "scatter_add": "index_add"}


def scatter_gradient(gradients: Gradients, node: Node, taken: Outputs) -> None:
    """The rule of scatters: the table gets the gradient, what is written to it that of its places."""
    gradient = first_of(taken)
    x, *rest = node.inputs
    if node.source_op.rstrip("_").endswith(_KEPT_WHOLE):
        for kept in (*node.inputs, node.outputs[0]):
            if kept >= 0:
                gradients.builder.view(kept, gradients.builder.shape(kept))
    reduced = _REDUCTIONS.get(node.attributes.get(REDUCTION))
    if reduced is not None and len(rest) > 1:
        _reduced(gradients, node, gradient, *reduced)
        return
    indices = [index for index in rest if index >= 0 and not gradients.wants(index)]
    if gradients.wants(x) and function_of(node) in _ADDING:
        gradients.give(x, gradient)
    elif gradients.wants(x):
        gradients.give(x, gradients.make(OpKind.COPY, (gradient,), x, "clone"))
    for index in rest:
        if gradients.wants(index):
            if function_of(node) in _KEPT_FOR_ITS_SHAPE:
                gradients.builder.view(index, gradients.builder.shape(index))
            gradients.give(index, gradients.make(OpKind.GATHER, (gradient, *indices), index, "gather"))


def _reduced(gradients: Gradients, node: Node, gradient: int, steps: Sequence[_Step], of_table: int) -> None:
    builder = gradients.builder
    table, index, source, *_ = node.inputs
    given = {"g": gradient, "y": node.outputs[0], "i": index, "t": table, "s": source}
    first = len(builder.nodes)
    dropped_after = _DROPPED_AFTER.get(node.attributes[REDUCTION], {})
    builder.chain_ends.update(
        {first + step: first + dropped_after.get(step, len(steps) - 1) for step in range(len(steps))}
    )
    is_by_row = function_of(node) == "index_reduce"
    for place, (kind, function, size, letters) in enumerate(steps):
        dtype = DType.BOOL if function == "equal" else builder.dtype(gradient)
        result = builder.new_like(given[size], dtype=dtype)
        called = _BY_ROW.get(function, function) if is_by_row else function
        operands = tuple(given[letter] for letter in letters)
        builder.run(kind, operands, (result,), f"{function_of(node)}_backward", function=called)
        given[str(place)] = result
    for wanted, place in ((table, of_table), (source, len(steps) - 1)):
        if gradients.wants(wanted):
            gradients.give(wanted, given[str(place)])
