"""What is known of a tensor while a program runs at one batch size, and the operator call that rules work on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan, prod
from typing import TYPE_CHECKING

import numpy as np

from dippm.frontends.onnx.idle_views import IDLE_FUNCTIONS
from dippm.frontends.onnx.program import Array, Block, Op, Weight
from dippm.frontends.onnx.slice_bounds import SliceBounds
from dippm.graph import Attribute, DType, OpKind, TensorRole

if TYPE_CHECKING:
    from dippm.frontends.onnx.evaluation import Evaluator

__all__ = ["DATA_LIMIT", "Call", "OpenSizeError", "ShapeError", "Value", "broadcast", "normalize_axis", "numel"]

DATA_LIMIT = 65_536
"""Most elements of a tensor whose values are evaluated."""

Sizes = tuple[int, ...]


class ShapeError(Exception):
    """An operator's inputs do not fit together; the evaluator says which operator and why."""


class OpenSizeError(ShapeError):
    """A size follows from values that are known only when the model runs."""


@dataclass(slots=True, eq=False)
class Value:
    """One tensor.

    Args:
        shape: Its sizes at this batch.
        dtype: Its element type.
        data: Its values, where they are known and few.
        index: Number of its tensor in the graph under construction, -1 until an emitted node needs it.
        role: ``ACTIVATION``, unless it is stored in the file or computed from constants alone.
        name: Name in the model.
        is_static: Whether it depends on stored tensors alone, never on an input or its size.
        is_computed: Whether its values were made while the model ran, not stored in the file.
        base: The weight that this is a transposed or reshaped view of.
        items: The elements of a sequence, None for a tensor.
        quantised: The integers, scale and zero point of a stored weight that is made from them right before its first
            use, None for other tensors.
        pieces: The tensors that it is a stack of, where layers read it as those.
        choices: Of how many choices of the model's own each element is one, 0 where it is none.
        share: Which share of the elements is taken to be true, 0 where nothing is known of it.
        count: How many elements are taken to have been found, where it is one number that counts them; else 0.
    """

    shape: Sizes
    dtype: DType
    data: Array | None = None
    index: int = -1
    role: TensorRole = TensorRole.ACTIVATION
    name: str = ""
    is_static: bool = False
    is_computed: bool = False
    base: Value | None = None
    items: list[Value] | None = None
    quantised: tuple[Value | None, ...] | None = None
    pieces: list[Value] | None = None
    choices: int = 0
    share: float = 0.0
    count: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether it stands in the file as it is and nothing has read it as a whole."""
        return self.role is TensorRole.PARAMETER and self.is_static and self.index < 0

    @property
    def is_number(self) -> bool:
        """Whether it is one known number that the code holds, not a weight."""
        return self.data is not None and self.data.size == 1 and self.role is not TensorRole.PARAMETER

    @property
    def is_constant(self) -> bool:
        """Whether its values are known and not trained."""
        return self.data is not None and self.role is not TensorRole.PARAMETER

    def number(self) -> float:
        """The one number that it holds."""
        if self.data is None or not self.data.size:
            raise OpenSizeError("a number that must be constant is not known")
        number = float(np.real(self.data.reshape(-1)[0]))
        return nan if isnan(number) else number  # one NaN, so that attributes compare equal

    def integer(self) -> int:
        """The one whole number that it holds."""
        number = self.number()
        if not isfinite(number):
            raise ShapeError("a number that must be whole is not finite")
        return int(number)


class Call:
    """One operator with its inputs at hand.

    Args:
        op: The operator.
        inputs: Its inputs, None where left out.
        evaluator: Runs subgraphs and collects the nodes.
    """

    __slots__ = ("evaluator", "inputs", "op")

    def __init__(self, op: Op, inputs: list[Value | None], evaluator: Evaluator) -> None:
        self.op = op
        self.inputs = inputs
        self.evaluator = evaluator

    @property
    def data_limit(self) -> int:
        """Most elements of a tensor whose values are evaluated in this run."""
        return self.evaluator.data_limit

    @property
    def is_training(self) -> bool:
        """Whether the program runs as in training."""
        return self.evaluator.program.is_training

    # Inputs and attributes -----------------------------------------------------------------------------------------

    def optional(self, position: int) -> Value | None:
        """An input that may be left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required(self, position: int) -> Value:
        """An input that must be there."""
        value = self.optional(position)
        if value is None:
            raise ShapeError(f"input {position} is missing")
        return value

    def known_ints(self, position: int) -> list[int] | None:
        """The values of an integer input, None where it is left out or not known."""
        value = self.optional(position)
        if value is None or value.data is None:
            return None
        if value.dtype.is_floating and not np.isfinite(value.data).all():
            raise ShapeError(f"input {position} holds numbers that are not finite")
        return [int(item) for item in value.data.reshape(-1).tolist()]

    def int_attribute(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def float_attribute(self, name: str, default: float = 0.0) -> float:
        """A number attribute."""
        value = self.op.attributes.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def text_attribute(self, name: str, default: str = "") -> str:
        """A text attribute."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def ints_attribute(self, name: str) -> list[int] | None:
        """A list of integers, None where it is left out."""
        value = self.op.attributes.get(name)
        if not isinstance(value, list):
            return None
        return [int(item) for item in value if isinstance(item, int | float)]

    def floats_attribute(self, name: str) -> list[float] | None:
        """A list of numbers, None where it is left out."""
        value = self.op.attributes.get(name)
        if not isinstance(value, list):
            return None
        return [float(item) for item in value if isinstance(item, int | float)]

    def tensor_attribute(self, name: str) -> Weight | None:
        """A stored tensor, None where it is left out."""
        value = self.op.attributes.get(name)
        return value if isinstance(value, Weight) else None

    def block_attribute(self, name: str) -> Block | None:
        """A subgraph, None where it is left out."""
        value = self.op.attributes.get(name)
        return value if isinstance(value, Block) else None

    def native_shape(self, position: int) -> Sizes | None:
        """Shape of an input at the batch that the file fixes; None where the file's batch is open."""
        return self.evaluator.native_shape(self.op.inputs[position]) if position < len(self.op.inputs) else None

    def native_output_shape(self) -> Sizes | None:
        """Shape of the first output at the batch that the file fixes; None where the file's batch is open."""
        return self.evaluator.native_shape(self.op.outputs[0]) if self.op.outputs else None

    # Results -------------------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: OpKind,
        inputs: Iterable[Value | None],
        shape: Sizes,
        dtype: DType,
        /,
        **attributes: Attribute,
    ) -> Value:
        """Add a node with one output to the graph."""
        return self.evaluator.emit(kind, list(inputs), [(shape, dtype)], attributes, self.op, "")[0]

    def add(self, x: Value, addend: Value | None) -> Value:
        """A tensor with another one that spreads over it added; the tensor itself where there is none."""
        return x if addend is None else self.emit(OpKind.ADD, [x, addend], x.shape, x.dtype)

    def emit_many(
        self,
        kind: OpKind,
        inputs: Iterable[Value | None],
        outputs: Sequence[tuple[Sizes, DType]],
        /,
        *,
        source_op: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> list[Value]:
        """Add a node to the graph."""
        return self.evaluator.emit(kind, list(inputs), outputs, attributes or {}, self.op, source_op)

    def view(self, source: Value, shape: Sizes, function: str, /, **attributes: Attribute) -> Value:
        """A tensor that shares the storage of another one; the tensor itself where nothing changes at any batch."""
        if shape == source.shape:
            # A slice that takes all at one batch and not at another levels off with the batch, which is to be refused.
            is_of_weights = source.index < 0 or source.is_static
            if function == "slice" or (is_of_weights and function in IDLE_FUNCTIONS):
                return source
        return self.emit(OpKind.VIEW, [source], shape, source.dtype, function=function, **attributes)

    def constant(self, data: Array, like: Iterable[Value | None] = ()) -> Value:
        """A value known while reading."""
        return self.evaluator.constant(data, like)

    def constant_number(self, number: int) -> Value:
        """An integer known while reading."""
        return self.evaluator.constant(np.array(number, dtype=np.int64), [])

    def constant_flag(self, flag: bool) -> Value:
        """A truth value known while reading."""
        return self.evaluator.constant(np.array(flag), [])

    def note_slice(self, axis: int, size: int, start: int, stop: int) -> None:
        """Remember the bounds of a slice, which tell whether it follows the batch."""
        made = self.op.outputs[0]
        name = self.evaluator.program.names[made]
        self.evaluator.slices[made, axis] = SliceBounds(name, size, start, stop)

    def warn(self, message: str) -> None:
        """Tell the user once."""
        self.evaluator.warn(message)


def numel(shape: Iterable[int]) -> int:
    """Number of elements."""
    return prod(shape)


def normalize_axis(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: The axis is out of range.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} does not exist in {rank} dimensions")
    return axis % rank


def broadcast(*shapes: Sizes) -> Sizes:
    """The common shape of tensors combined elementwise.

    Raises:
        ShapeError: They do not combine.
    """
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):
        return first
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for axis, size in enumerate(shape, offset):
            if size != 1 and size != result[axis]:
                if result[axis] != 1:
                    raise ShapeError("shapes " + " and ".join(str(list(s)) for s in shapes) + " do not combine")
                result[axis] = size
    return tuple(result)
