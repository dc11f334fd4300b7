"""The loss: cross entropy of logits, or the mean of squares of whatever else a model returns.

The losses of transformers' decoders take their scores in FP32 (``logits.float()``): with a large vocabulary the copy is
much of what a step holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.costs.training_step.trained_outputs import find_trained_outputs
from dippm.errors import UnsupportedError
from dippm.graph import Dim, DType, Node, OpKind, TensorRole

__all__ = ["append_loss", "start_backward"]

_SCALAR = ()


def append_loss(
    builder: StepBuilder, outputs: Sequence[int], wanted: Gradients, *, is_autocast: bool = False
) -> list[Node]:
    """Append the forward pass of the loss.

    As a training script would take it: the first output, if it has two or three dimensions and is floating, holds the
    scores of classes in its last one, and of the others those count that lead to weights where none before does, see
    :mod:`~dippm.costs.training_step.trained_outputs`, each by its own shape; else every floating output counts with the
    mean of its squares, a complex one with those of its real and imaginary parts.

    Args:
        builder: Where the nodes go.
        outputs: The model's outputs.
        wanted: Which tensors need a gradient.
        is_autocast: Whether autocast computes logarithms and powers in FP32.

    Returns:
        The nodes, the last of which writes the loss.

    Raises:
        UnsupportedError: ``training.no_loss`` where no output depends on a weight.
    """
    before = len(builder.nodes)
    trained = [index for index in outputs if wanted.wants(index)]
    if not trained:
        raise UnsupportedError(
            f"No output of '{builder.graph.source}' depends on its weights.",
            code="training.no_loss",
            cure="Give the model with its trained weights as parameters.",
        )
    first = trained[0]
    has_scores = _holds_scores(builder, first)
    counted = find_trained_outputs(builder.graph, builder.nodes, trained, wanted) if has_scores else trained
    total = -1
    for output in counted:
        if has_scores and _holds_scores(builder, output):
            is_in_full = output == first and builder.graph.is_scored_in_fp32
            term = _cross_entropy(builder, output, is_in_full=is_in_full, is_autocast=is_autocast)
        else:
            term = _mean_of_squares(builder, output, is_autocast=is_autocast)
        total = term if total < 0 else _sum(builder, total, term)
    return builder.nodes[before:]


def start_backward(builder: StepBuilder, gradients: Gradients) -> None:
    """Begin the backward pass at the loss, which the last node writes."""
    gradients.start(builder.nodes[-1].outputs[0])


def _holds_scores(builder: StepBuilder, output: int) -> bool:
    shape = builder.shape(output)
    return len(shape) in (2, 3) and shape[-1] != (0, 1) and not builder.dtype(output).is_complex


def _cross_entropy(builder: StepBuilder, logits: int, *, is_in_full: bool, is_autocast: bool) -> int:
    scores = builder.as_matrix(_in_full(builder, logits) if is_in_full else logits)
    if scores is None:
        return _mean_of_squares(builder, logits, is_autocast=is_autocast)
    shape = builder.shape(scores)
    classes = builder.new_tensor(shape[:1], DType.INT64, name="classes", role=TensorRole.INPUT)
    # ``cross_entropy`` asks for logarithms of the scores' own type, which autocast leaves at that; what picks one of
    # each row is on its list.
    logarithms = builder.new_tensor(shape, builder.dtype(scores), name="log_softmax")
    builder.run(OpKind.LOG_SOFTMAX, (scores,), (logarithms,), "aten.log_softmax", attributes={"axes": (1,)})
    if is_autocast:
        logarithms = _in_full(builder, logarithms)
    loss = builder.new_tensor(_SCALAR, builder.dtype(logarithms), name="loss")
    builder.run(OpKind.GATHER, (logarithms, classes), (loss,), "aten.nll_loss", function="nll_loss")
    return loss


def _mean_of_squares(builder: StepBuilder, output: int, *, is_autocast: bool) -> int:
    if builder.dtype(output).is_complex:
        parts = (*builder.shape(output), Dim(0, 2))
        output = builder.view(output, parts, "view_as_real", dtype=builder.dtype(output).real)
    read = _in_full(builder, output) if is_autocast else output
    full = builder.dtype(read)
    squares = builder.new_tensor(builder.shape(read), full, name="squares")
    builder.run(OpKind.POW, (read,), (squares,), "aten.square")
    mean = builder.new_tensor(_SCALAR, full, name="mean")
    builder.run(OpKind.REDUCE, (squares,), (mean,), "aten.mean", function="mean")
    return mean


def _sum(builder: StepBuilder, total: int, term: int) -> int:
    both = builder.new_tensor(_SCALAR, builder.dtype(term), name="loss")
    builder.run(OpKind.ADD, (total, term), (both,), "aten.add")
    return both


def _in_full(builder: StepBuilder, tensor: int) -> int:
    """A tensor in FP32, where it has 16 bits."""
    full = _full(builder.dtype(tensor))
    if full is builder.dtype(tensor):
        return tensor
    result = builder.new_tensor(builder.shape(tensor), full, name="cast")
    builder.run(OpKind.CAST, (tensor,), (result,), "aten._to_copy")
    return result


def _full(dtype: DType) -> DType:
    return DType.FLOAT32 if dtype in (DType.FLOAT16, DType.BFLOAT16) else dtype
