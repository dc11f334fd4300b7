"""The loss: cross entropy of logits, or the mean of squares of whatever else a model returns."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.costs.training_step.backward import Gradients
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.errors import UnsupportedError
from dippm.graph import DType, Node, OpKind, TensorRole

__all__ = ["append_loss", "start_backward"]

_SCALAR = ()


def append_loss(builder: StepBuilder, outputs: Sequence[int], wanted: Gradients) -> list[Node]:
    """Append the forward pass of the loss.

    As a training script would take it: the first output, if it has two or three dimensions and is floating, holds the
    scores of classes in its last one, and the others are not trained on; else every floating output counts with the
    mean of its squares.

    Args:
        builder: Where the nodes go.
        outputs: The model's outputs.
        wanted: Which tensors need a gradient.

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
    logits = trained[0]
    shape = builder.shape(logits)
    if len(shape) in (2, 3) and shape[-1] != (0, 1):
        _cross_entropy(builder, logits)
    else:
        _mean_of_squares(builder, trained)
    return builder.nodes[before:]


def start_backward(builder: StepBuilder, gradients: Gradients) -> None:
    """Begin the backward pass at the loss, which the last node writes."""
    gradients.start(builder.nodes[-1].outputs[0])


def _cross_entropy(builder: StepBuilder, logits: int) -> None:
    scores = builder.as_matrix(logits)
    if scores is None:
        _mean_of_squares(builder, [logits])
        return
    shape = builder.shape(scores)
    classes = builder.new_tensor(shape[:1], DType.INT64, name="classes", role=TensorRole.INPUT)
    # Under autocast the kernel reads 16 bits and writes FP32.
    logarithms = builder.new_tensor(shape, _full(builder.dtype(scores)), name="log_softmax")
    builder.run(OpKind.LOG_SOFTMAX, (scores,), (logarithms,), "aten.log_softmax", attributes={"axes": (1,)})
    loss = builder.new_tensor(_SCALAR, builder.dtype(logarithms), name="loss")
    builder.run(OpKind.GATHER, (logarithms, classes), (loss,), "aten.nll_loss", function="nll_loss")


def _mean_of_squares(builder: StepBuilder, outputs: Sequence[int]) -> None:
    total = -1
    for output in outputs:
        read = output
        full = _full(builder.dtype(output))
        if full is not builder.dtype(output):
            # Autocast computes powers in FP32.
            read = builder.new_tensor(builder.shape(output), full, name="cast")
            builder.run(OpKind.CAST, (output,), (read,), "autocast")
        squares = builder.new_tensor(builder.shape(read), full, name="squares")
        builder.run(OpKind.POW, (read,), (squares,), "aten.square")
        mean = builder.new_tensor(_SCALAR, full, name="mean")
        builder.run(OpKind.REDUCE, (squares,), (mean,), "aten.mean", function="mean")
        if total >= 0:
            both = builder.new_tensor(_SCALAR, full, name="loss")
            builder.run(OpKind.ADD, (total, mean), (both,), "aten.add")
            mean = both
        total = mean


def _full(dtype: DType) -> DType:
    return DType.FLOAT32 if dtype in (DType.FLOAT16, DType.BFLOAT16) else dtype
