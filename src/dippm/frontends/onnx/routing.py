"""What is assumed of choices that a file's model makes itself, where it asks how many of them are which.

A mixture of experts sends each token to the experts with the highest scores, and asks for each expert which tokens are
its own. How many these are only the data tells; they are taken to be spread evenly, as training such a model aims for.
"""

from __future__ import annotations

from collections.abc import Sequence

from dippm.frontends.onnx.program import Op
from dippm.frontends.onnx.values import Value, normalize_axis, numel
from dippm.graph import DType

__all__ = ["EVENLY", "found_in", "note_choices"]

EVENLY = (
    "What the model chooses for its tokens, as experts of a mixture, is taken to be spread evenly over all choices: "
    "how many go to which, only its input tells."
)
"""What is said where that is assumed."""

# More choices than a model has experts: what is picked then is a word, or a place.
_MOST_CHOICES = 512
_PICKS = {"TopK": (-1, 1), "ArgMax": (0, 0)}  # the axis where none is given, and which output holds the choices
_SAME_NUMBERS = frozenset(
    {
        "Reshape",
        "Transpose",
        "Unsqueeze",
        "Squeeze",
        "Slice",
        "Gather",
        "Split",
        "Expand",
        "Identity",
        "Cast",
        "Flatten",
    }
)
_OF_SEVERAL = frozenset({"ReduceMax", "ReduceSum"})
_IS_ANY = frozenset({"Greater"})


def note_choices(op: Op, inputs: Sequence[Value | None], outputs: Sequence[Value]) -> None:
    """Look whether an operator chooses, or passes on what was chosen."""
    name = op.op_type
    first = inputs[0] if inputs else None
    if first is None or not outputs:
        return
    if name in _PICKS:
        _note_pick(op, first, outputs)
    elif name == "Cast" and first.dtype is DType.BOOL:
        outputs[0].share = first.share or 1.0
    elif name == "Equal":
        other = inputs[1] if len(inputs) > 1 else None
        for one, known in ((first, other), (other, first)):
            if one is not None and one.choices and known is not None and known.data is not None:
                outputs[0].share = 1 / one.choices
    elif not first.choices and not first.share and not first.count:
        return
    elif name in _SAME_NUMBERS:
        for made in outputs:
            if made is not first:
                made.choices, made.share = first.choices, first.share
                made.count = first.count if numel(made.shape) == 1 else 0
    elif name == "OneHot" and first.choices:
        outputs[0].share = 1 / first.choices
    elif name in _OF_SEVERAL and first.share and numel(outputs[0].shape):
        if name == "ReduceSum" and numel(outputs[0].shape) == 1:
            outputs[0].count = found_in(first)
        outputs[0].share = min(1.0, first.share * numel(first.shape) / numel(outputs[0].shape))
    elif name in _IS_ANY and _is_zero(inputs[1] if len(inputs) > 1 else None):
        outputs[0].share = first.share


def found_in(mask: Value) -> int:
    """How many elements are taken to be true: all of them where nothing is known of it."""
    size = numel(mask.shape)
    return min(size, max(1, round(size * (mask.share or 1.0))))


def _is_zero(value: Value | None) -> bool:
    return value is not None and value.data is not None and not value.data.any()


def _note_pick(op: Op, scores: Value, outputs: Sequence[Value]) -> None:
    default, position = _PICKS[op.op_type]
    axis = op.attributes.get("axis", default)
    if position < len(outputs) and scores.shape and isinstance(axis, int) and scores.dtype.is_floating:
        choices = scores.shape[normalize_axis(axis, len(scores.shape))]
        outputs[position].choices = choices if 1 < choices <= _MOST_CHOICES else 0
