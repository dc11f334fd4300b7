"""Runs a program at one batch size on shapes alone and writes down the operators that would run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from dippm.costs.open_loops import most_runs_of
from dippm.errors import ModelReadError
from dippm.frontends.onnx.block_work import work_of
from dippm.frontends.onnx.element_types import from_numpy
from dippm.frontends.onnx.ops import find_rule
from dippm.frontends.onnx.ops.reference import evaluate_known
from dippm.frontends.onnx.ops.unknown import infer_unknown
from dippm.frontends.onnx.program import ABSENT, Array, Block, Op, Program, describe_node
from dippm.frontends.onnx.roles import is_made_name
from dippm.frontends.onnx.routing import note_choices
from dippm.frontends.onnx.slice_bounds import SliceBounds, SlicePlace
from dippm.frontends.onnx.values import DATA_LIMIT, Call, OpenSizeError, ShapeError, Value
from dippm.graph import MOST_RUNS, Attribute, DType, Graph, Node, OpKind, Shape, TensorRole, TensorSpec, fixed_shape

if TYPE_CHECKING:
    from dippm.frontends.onnx.rebatching import Rebatching

__all__ = ["Evaluator"]

_logger = logging.getLogger(__name__)

_SIZE_LIMIT = 2**40
_NUMEL_LIMIT = 2**60
_RANK_LIMIT = 32
_NODE_LIMIT = 4_000_000
_KNOWN_BEFORE = "Sizes cannot follow from the data: make what this one depends on a constant before the export."


class Evaluator:
    """One run of a program.

    Args:
        program: What to run.
        input_shapes: Shape of each input, in the program's order.
        input_dtypes: Element type of each input.
        native_shapes: Shape of each value at the batch that the file fixes, where this run is at another batch.
        rebatching: Decides how a shape that the file fixes grows with the batch; goes with ``native_shapes``.
        data_limit: Most elements of a tensor whose values are evaluated.
    """

    def __init__(
        self,
        program: Program,
        input_shapes: Sequence[tuple[int, ...]],
        input_dtypes: Sequence[DType],
        *,
        native_shapes: Sequence[tuple[int, ...] | None] | None = None,
        rebatching: Rebatching | None = None,
        data_limit: int = DATA_LIMIT,
    ) -> None:
        self.program = program
        self.rebatching = rebatching
        self.data_limit = data_limit
        self.slices: dict[SlicePlace, SliceBounds] = {}
        self.unsupported: dict[str, int] = {}
        self.warnings: list[str] = list(program.warnings)
        self._native_shapes = native_shapes
        self._tensors: list[tuple[Value, TensorRole]] = []
        self._shapes: dict[tuple[int, ...], Shape] = {}
        self._nodes: list[Node] = []
        self._on_demand: set[int] = set()
        self._deciding: dict[int, None] = {}
        self._values: list[Value | None] = [None] * len(program.names)
        self._input_indices: list[int] = []
        for declaration, shape, dtype in zip(program.inputs, input_shapes, input_dtypes, strict=True):
            value = Value(shape, dtype, name=declaration.name, role=TensorRole.INPUT)
            try:
                self._input_indices.append(self._materialize(value))
            except ShapeError as exc:
                raise ModelReadError(
                    f"Input '{declaration.name}': {exc}.",
                    code="onnx.shape",
                    cure=f"Give a smaller shape for it, for example: --input {declaration.name}=3,224,224",
                ) from exc
            self._values[declaration.value] = value
        for number, weight in chain(program.weights.items(), program.constants.items()):
            value = self._values[number] = Value(
                weight.shape, weight.dtype, weight.data, role=weight.role, name=weight.name, is_static=True
            )
            self._follow_batch(number, value)

    def run(self) -> None:
        """Run every operator.

        Raises:
            ModelReadError: ``onnx.shape`` where an operator's inputs do not fit together.
        """
        self.run_ops(self.program.ops)

    def run_ops(self, ops: Iterable[Op]) -> None:
        """Run the operators of the model or of one subgraph."""
        values = self._values
        for op in ops:
            inputs = [None if number == ABSENT else values[number] for number in op.inputs]
            call = Call(op, inputs, self)
            try:
                outputs = self._apply(call)
            except ShapeError as exc:
                cure = _KNOWN_BEFORE if isinstance(exc, OpenSizeError) else None
                raise self._wrong_shape(op, inputs, str(exc), cure=cure) from exc
            except (ArithmeticError, LookupError, TypeError, ValueError) as exc:
                # Attributes and constants come from the file: nonsense in them ends here, never in a traceback.
                _logger.debug("%s failed", op.op_type, exc_info=True)
                raise self._wrong_shape(op, inputs, f"its attributes make no sense ({exc})") from exc
            for position, number in enumerate(op.outputs):
                if number == ABSENT:
                    continue
                if position >= len(outputs):
                    raise self._wrong_shape(op, inputs, f"it has {len(outputs)} outputs, the file asks for more")
                value = outputs[position]
                values[number] = value
                if not value.name and value.index >= 0:
                    value.name = self.program.names[number]
                self._follow_batch(number, value)

    def run_block(self, block: Block, arguments: Sequence[Value]) -> list[Value]:
        """Run a subgraph on its arguments."""
        for number, value in zip(block.inputs, arguments, strict=False):
            self._values[number] = value
        self.run_ops(block.ops)
        return [self.value(number) for number in block.outputs]

    def run_larger(self, blocks: Sequence[Block]) -> list[Value]:
        """Run subgraphs of which one will be taken, and keep the operators of the one with the most work.

        The weights of all of them stay among the tensors: whichever is taken, the file is loaded whole.

        Raises:
            ModelReadError: None of them can run.
        """
        first = len(self._nodes)
        best: tuple[int, range, list[Value], dict[str, int]] | None = None
        failure: ModelReadError | None = None
        unsupported = dict(self.unsupported)
        for block in blocks:
            start = len(self._nodes)
            self.unsupported = dict(unsupported)
            try:
                values = self.run_block(block, [])
            except ModelReadError as exc:
                failure = exc
                continue
            positions = range(start, len(self._nodes))
            work = work_of((self._nodes[i] for i in positions), lambda index: self._tensors[index][0].shape)
            if best is None or work > best[0]:
                best = (work, positions, values, self.unsupported)
        if best is None:
            raise failure or ModelReadError("A branch of the ONNX model is missing.", code="onnx.invalid")
        _, chosen, values, self.unsupported = best
        # What was made on demand for a branch may be read behind it.
        kept = [i for i in range(first, len(self._nodes)) if i in chosen or i in self._on_demand]
        self._on_demand = {i for i in self._on_demand if i < first} | {
            first + place for place, i in enumerate(kept) if i in self._on_demand
        }
        self._nodes[first:] = [self._nodes[i] for i in kept]
        return values

    def keep(self, *values: Value | None) -> None:
        """Have what makes values that are not known counted though no operator may read them: the host decides on them.

        Args:
            values: Conditions and counts of branches and loops.
        """
        self._deciding |= dict.fromkeys(value.index for value in values if value is not None and value.data is None)

    def value(self, number: int) -> Value:
        """A value made before.

        Raises:
            ShapeError: Nothing made it.
        """
        value = self._values[number]
        if value is None:
            raise ShapeError(f"'{self.program.names[number]}' has no value here")
        return value

    def shapes(self) -> list[tuple[int, ...] | None]:
        """The shape of every value of the program."""
        return [None if value is None else value.shape for value in self._values]

    def numbers_of(self, index: int) -> list[int]:
        """Numbers of the values that are one tensor of the graph."""
        return [number for number, value in enumerate(self._values) if value is not None and value.index == index]

    def made_up(self, batch: int) -> list[int]:
        """Stored tensors of the graph that hold the same numbers for each of ``batch`` samples, as no table does.

        Where the numbers were not read, the name tells.
        """
        return [
            value.index
            for value, role in self._tensors
            if role is not TensorRole.ACTIVATION
            and len(value.shape) > 1
            and value.shape[0] == batch > 1
            and (is_made_name(value.name) if value.data is None else bool((value.data == value.data[:1]).all()))
        ]

    def graph(self, source: str) -> Graph:
        """Everything that was written down, as a graph with fixed sizes."""
        outputs: list[int] = []
        for number in self.program.outputs:
            value = self._values[number]
            if value is None:
                raise ModelReadError(f"Output '{self.program.names[number]}' is never made.", code="onnx.invalid")
            try:
                outputs.extend(self._materialize(item) for item in ([value] if value.items is None else value.items))
            except ShapeError as exc:
                raise ModelReadError(f"Output '{self.program.names[number]}': {exc}.", code="onnx.shape") from exc
        # Nothing that leads to no output is counted; what a branch made that is not taken is gone.
        written = {index for node in self._nodes for index in node.outputs}.difference(outputs)
        outputs += [index for index in self._deciding if index in written]
        return Graph(
            source=source,
            framework="onnx",
            tensors=tuple(
                TensorSpec(name=value.name, shape=self._shapes[value.shape], dtype=value.dtype, role=role)
                for value, role in self._tensors
            ),
            nodes=tuple(self._nodes),
            inputs=tuple(self._input_indices),
            outputs=tuple(outputs),
            unsupported_ops=dict(self.unsupported),
            warnings=tuple(self.warnings),
        )

    # What rules use ------------------------------------------------------------------------------------------------

    def native_shape(self, number: int) -> tuple[int, ...] | None:
        """Shape of a value at the batch that the file fixes, None where that is not this run's concern."""
        if self._native_shapes is None or number == ABSENT:
            return None
        return self._native_shapes[number]

    def constant(self, data: Array, like: Iterable[Value | None]) -> Value:
        """A value known while reading, made from ``like``."""
        sources = [value for value in like if value is not None]
        return Value(
            data.shape,
            from_numpy(data.dtype),
            data if data.size <= self.data_limit else None,
            role=TensorRole.CONSTANT,
            is_static=all(value.is_static for value in sources),
            is_computed=bool(sources),
        )

    def emit(
        self,
        kind: OpKind,
        inputs: Sequence[Value | None],
        outputs: Sequence[tuple[tuple[int, ...], DType]],
        attributes: Mapping[str, Attribute],
        op: Op,
        source_op: str,
    ) -> list[Value]:
        """Write a node down."""
        if len(self._nodes) >= _NODE_LIMIT:
            raise ModelReadError(f"The model runs more than {_NODE_LIMIT} operators.", code="onnx.too_large")
        indices = []
        is_static = kind is not OpKind.RANDOM and kind is not OpKind.DROPOUT
        for value in inputs:
            if value is None:
                indices.append(-1)
                continue
            indices.append(value.index if value.index >= 0 else self._materialize(value, op.scope))
            is_static = is_static and value.is_static
        while indices and indices[-1] == -1:
            indices.pop()
        results = []
        for shape, dtype in outputs:
            value = Value(shape, dtype, is_static=is_static)
            self._add_tensor(value, TensorRole.ACTIVATION)
            results.append(value)
        self._nodes.append(
            Node(
                kind=kind,
                inputs=tuple(indices),
                outputs=tuple(value.index for value in results),
                attributes=dict(attributes),
                scope=op.scope,
                source_op=source_op or (f"{op.domain}.{op.op_type}" if op.domain else op.op_type),
            )
        )
        return results

    def node_count(self) -> int:
        """Number of nodes written down so far."""
        return len(self._nodes)

    def kinds_since(self, first: int) -> set[OpKind]:
        """Kinds of the nodes written down from that number on."""
        return {node.kind for node in self._nodes[first:]}

    def mark_open(self, first: int, most_runs: float) -> None:
        """Note that the nodes from a number on may run more often than they are written down.

        Args:
            first: The number.
            most_runs: How many times as often they may run.
        """
        for place, node in enumerate(self._nodes[first:], first):
            most = most_runs * most_runs_of(node.attributes)
            self._nodes[place] = replace(node, attributes={**node.attributes, MOST_RUNS: most})

    def count_unsupported(self, op: Op) -> None:
        """Remember an operator without a rule."""
        name = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
        self.unsupported[name] = self.unsupported.get(name, 0) + 1

    def warn(self, message: str) -> None:
        """Tell the user once."""
        if message not in self.warnings and len(self.warnings) < 100:
            self.warnings.append(message)

    # Inside --------------------------------------------------------------------------------------------------------

    def _apply(self, call: Call) -> list[Value]:
        rule = find_rule(call.op.domain, call.op.op_type)
        if rule is None:
            return infer_unknown(call)
        known = evaluate_known(call)
        if known is not None:
            return known
        result = rule(call)
        outputs = [result] if isinstance(result, Value) else result
        note_choices(call.op, call.inputs, outputs)
        return outputs

    def _follow_batch(self, number: int, value: Value) -> None:
        """Let a value that the file's batch is written into follow the batch of this run."""
        native = self.native_shape(number)
        shape = None if self.rebatching is None or native is None else self.rebatching.held_shape(number, native)
        if self.rebatching is None or shape is None or value.shape != native:
            return
        if value.data is not None:
            value.data = self.rebatching.held_data(number, value.data)
        value.shape = shape
        value.is_static, value.is_computed = False, True
        if value.index < 0:
            value.role = TensorRole.CONSTANT
        elif shape not in self._shapes:
            self._shapes[shape] = fixed_shape(*shape)

    def _materialize(self, value: Value, scope: str = "") -> int:
        """The tensor of a value in the graph, made now if it has none."""
        if value.index >= 0:
            return value.index
        if value.items is not None:
            raise ShapeError("a sequence stands where a tensor must")
        role = value.role
        if value.quantised is not None:
            stored = [-1 if part is None else self._materialize(part) for part in value.quantised]
            while stored[-1] == -1:
                stored.pop()
            self._add_tensor(value, TensorRole.ACTIVATION)
            self._append_on_demand(
                Node(
                    kind=OpKind.DEQUANTIZE,
                    inputs=tuple(stored),
                    outputs=(value.index,),
                    scope=scope,
                    source_op="DequantizeLinear",
                )
            )
        elif role is TensorRole.CONSTANT and value.is_computed and not value.is_static:
            # Its size or values follow the input's size, so the program fills it at every call.
            self._add_tensor(value, TensorRole.ACTIVATION)
            self._append_on_demand(
                Node(kind=OpKind.FILL, inputs=(), outputs=(value.index,), attributes={"function": "computed"})
            )
        else:
            self._add_tensor(value, role)
        return value.index

    def _append_on_demand(self, node: Node) -> None:
        """Add a node for a value that was made earlier and is read only now."""
        self._on_demand.add(len(self._nodes))
        self._nodes.append(node)

    def _add_tensor(self, value: Value, role: TensorRole) -> None:
        if value.shape not in self._shapes:
            _check_size(value.shape)
            self._shapes[value.shape] = fixed_shape(*value.shape)
        value.index = len(self._tensors)
        self._tensors.append((value, role))

    def _wrong_shape(
        self, op: Op, inputs: Sequence[Value | None], reason: str, *, cure: str | None = None
    ) -> ModelReadError:
        shapes = ", ".join("-" if value is None else str(list(value.shape)) for value in inputs[:8])
        outputs = ["" if number == ABSENT else self.program.names[number] for number in op.outputs]
        node = describe_node(op.op_type, op.name, outputs)
        if cure is None and self.unsupported:
            names = ", ".join(list(self.unsupported)[:5])
            cure = (
                f"What operators without a rule make ({names}) is taken to be shaped as what they read, where the file "
                "does not state it: state it there (value_info)."
            )
        return ModelReadError(
            f"{node[:1].upper()}{node[1:]} cannot run on inputs of shape {shapes}: {reason[:500]}.",
            code="onnx.shape",
            cure=cure,
        )


def _check_size(shape: tuple[int, ...]) -> None:
    total = 1
    for size in shape:
        if not 0 <= size <= _SIZE_LIMIT:
            raise ShapeError(f"a dimension of {size} is out of range")
        total *= max(size, 1)
    if total > _NUMEL_LIMIT or len(shape) > _RANK_LIMIT:
        raise ShapeError(f"a tensor of shape {list(shape[:8])} is out of range")
