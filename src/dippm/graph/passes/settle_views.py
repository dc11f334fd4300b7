"""Settles which rearrangements are views and which are copies, and adds the copies that eager PyTorch makes silently.

An exported graph says *reshape*; whether PyTorch copies depends on the strides of its input. This pass follows strides
through the graph as PyTorch would choose them, lets views share the storage of their source, turns the others into
copies, and puts a copy in front of kernels that want their input row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from dippm.graph.dim import Dim, Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.einstein_sum import Rearrangement, plan_contraction, product_of
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import ACTIVATION_KINDS, ARITHMETIC_KINDS, RECURRENT_KINDS, OpKind
from dippm.graph.passes import strides as layout

__all__ = ["WANTS_CONTIGUOUS", "settle_views"]

_PROBE_BATCH = 3
_ELEMENTWISE = (
    ACTIVATION_KINDS
    | ARITHMETIC_KINDS
    | {OpKind.UNARY, OpKind.BINARY, OpKind.CAST, OpKind.QUANTIZE, OpKind.DEQUANTIZE, OpKind.DROPOUT}
)
_IMAGE_KINDS = frozenset(
    {
        OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.BATCH_NORM, OpKind.MAX_POOL, OpKind.AVG_POOL, OpKind.GLOBAL_POOL,
        OpKind.RESIZE, OpKind.PAD,
    }
)  # fmt: skip
WANTS_CONTIGUOUS = frozenset(
    {
        OpKind.LAYER_NORM, OpKind.GROUP_NORM, OpKind.INSTANCE_NORM, OpKind.RMS_NORM, OpKind.SOFTMAX,
        OpKind.LOG_SOFTMAX,
    }
)  # fmt: skip
"""Kinds whose CUDA kernels copy an input that is not laid out row by row."""

Sizes = tuple[int, ...]


def settle_views(editor: GraphEditor) -> None:
    """Resolve every view of the graph."""
    _Settling(editor).run()


class _Settling:
    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._shapes: list[Sizes] = [tuple(dim.at(_PROBE_BATCH) for dim in tensor.shape) for tensor in editor.tensors]
        self._strides: list[Sizes] = [layout.contiguous(shape) for shape in self._shapes]

    def run(self) -> None:
        for position in range(len(self._editor.nodes)):
            node = self._editor.nodes[position]
            if node is not None:
                self._visit(position, node)

    def _visit(self, position: int, node: Node) -> None:
        kind = node.kind
        if kind is OpKind.VIEW:
            self._visit_view(position, node)
        elif kind in _ELEMENTWISE:
            output = node.outputs[0]
            operands = [(self._shapes[i], self._strides[i]) for i in node.inputs if i >= 0]
            self._strides[output] = layout.elementwise(self._shapes[output], operands)
        elif kind in _IMAGE_KINDS:
            self._visit_image(position, node)
        elif kind in WANTS_CONTIGUOUS:
            self._copy_inputs(position, node, [node.inputs[0]])
        elif kind is OpKind.LINEAR:
            self._visit_linear(position, node)
        elif kind is OpKind.MATMUL:
            self._visit_matmul(position, node)
        elif kind is OpKind.ATTENTION:
            shape = self._shapes[node.outputs[0]]
            if len(shape) == 4:
                # The fused kernels write [batch, length, heads, size].
                self._strides[node.outputs[0]] = layout.permuted(shape, (0, 2, 1, 3))
        elif kind is OpKind.CONCAT:
            parts = [i for i in node.inputs if i >= 0]
            if parts and all(self._is_channels_last(i) for i in parts):
                self._strides[node.outputs[0]] = layout.channels_last(self._shapes[node.outputs[0]])
        elif kind in RECURRENT_KINDS:
            shape = self._shapes[node.outputs[0]]
            if len(shape) == 4:
                # Both directions stand side by side in the features.
                order = (0, 2, 1, 3) if not node.attributes.get("batch_first", False) else (1, 0, 2, 3)
                self._strides[node.outputs[0]] = layout.permuted(shape, order)

    def _visit_view(self, position: int, node: Node) -> None:
        source = node.inputs[0]
        strides = [self._view_strides(node, output) for output in node.outputs]
        if None in strides:
            attributes = {"function": "clone"}
            copied = self._editor.make_node(OpKind.COPY, (source,), node.outputs, like=node, attributes=attributes)
            self._editor.replace(position, copied)
            return
        for output, found in zip(node.outputs, strides, strict=True):
            self._alias(output, source, found or ())

    def _alias(self, output: int, source: int, strides: Sizes) -> None:
        self._strides[output] = strides
        tensors = self._editor.tensors
        base = tensors[source].alias_of
        tensors[output] = replace(tensors[output], alias_of=source if base is None else base)

    def _view_strides(self, node: Node, output: int) -> Sizes | None:
        source = node.inputs[0]
        shape, strides, target = self._shapes[source], self._strides[source], self._shapes[output]
        function = node.attributes.get("function")
        perm, steps, axis = (node.attributes.get(name) for name in ("perm", "steps", "axis"))
        if function == "transpose":
            return tuple(strides[a] for a in perm) if isinstance(perm, tuple) and len(perm) == len(strides) else None
        if function == "expand":
            offset = len(target) - len(shape)
            grown = (a < offset or shape[a - offset] != target[a] for a in range(len(target)))
            return tuple(0 if is_grown else strides[a - offset] for a, is_grown in enumerate(grown))
        if function in ("slice", "split") and len(shape) == len(target):
            return tuple(a * b for a, b in zip(strides, steps, strict=True)) if isinstance(steps, tuple) else strides
        if function in ("select", "unbind") and isinstance(axis, int):
            return (*strides[:axis], *strides[axis + 1 :])
        if function == "bitcast":
            return strides
        axes = node.attributes.get("axes")
        if function == "diagonal" and isinstance(axes, tuple) and len(target) == len(shape) - 1:
            first, second = (int(a) for a in axes)
            rest = (stride for a, stride in enumerate(strides) if a not in (first, second))
            return (*rest, strides[first] + strides[second])
        if 0 in shape or prod(shape) != prod(target):
            return layout.contiguous(target)
        return layout.view(shape, strides, target)

    def _is_channels_last(self, tensor: int) -> bool:
        shape, strides = self._shapes[tensor], self._strides[tensor]
        if len(shape) not in (4, 5) or layout.is_contiguous(shape, strides):
            return False
        wanted = layout.channels_last(shape)
        return all(size == 1 or a == b for size, a, b in zip(shape, strides, wanted, strict=True))

    def _visit_image(self, position: int, node: Node) -> None:
        x, output = node.inputs[0], node.outputs[0]
        if self._is_channels_last(x):
            if len(self._shapes[output]) == len(self._shapes[x]):
                self._strides[output] = layout.channels_last(self._shapes[output])
        elif node.kind not in (OpKind.GLOBAL_POOL, OpKind.PAD):
            self._copy_inputs(position, node, [x])

    def _visit_linear(self, position: int, node: Node) -> None:
        """An input whose strides do not fold to a matrix is copied.

        PyTorch then adds the bias in a kernel of its own. That kernel is left out, as it is where a module is recorded:
        a batch of 1, where every transposed input counts as contiguous, has the same operators but for the copy.
        """
        x = node.inputs[0]
        shape = self._shapes[x]
        if len(shape) > 2 and layout.view(shape, self._strides[x], (prod(shape[:-1]), shape[-1])) is None:
            self._copy_inputs(position, node, [x])

    def _visit_matmul(self, position: int, node: Node) -> None:
        """More than two dimensions are expanded to common ones and flattened to a batch of matrices."""
        equation = node.attributes.get("equation")
        if isinstance(equation, str):
            self._lay_out(position, node, equation)
            return
        if "contracted" in node.attributes or len(node.inputs) != 2:
            return
        tensors = self._editor.tensors
        output = node.outputs[0]
        shape = tensors[output].shape
        count = product_of(shape[:-2])
        if len(shape) < 3 or count is None or any(len(tensors[index].shape) < 3 for index in node.inputs):
            return
        flat = [self._flatten(position, node, index, shape[:-2], count) for index in node.inputs]
        product = self._add_tensor(tensors[output].name, output, (count, *shape[-2:]))
        editor = self._editor
        editor.insert_before(position, editor.make_node(OpKind.MATMUL, flat, (product,), like=node))
        attributes = {"function": "reshape"}
        editor.replace(
            position,
            editor.make_node(OpKind.VIEW, (product,), (output,), like=node, source_op="view", attributes=attributes),
        )
        self._alias(output, product, layout.contiguous(self._shapes[output]))

    def _lay_out(self, position: int, node: Node, equation: str) -> None:
        """An Einstein sum of two tensors, as PyTorch runs it: a product of stacks of matrices between views."""
        editor = self._editor
        left, right, output = *node.inputs, node.outputs[0]
        plan = plan_contraction(equation, editor.tensors[left].shape, editor.tensors[right].shape)
        if plan is None:
            rest = {name: value for name, value in node.attributes.items() if name != "equation"}
            editor.replace(position, replace(node, attributes=rest))
            return
        factors = [
            self._rearrange(position, node, tensor, steps) for tensor, steps in ((left, plan.left), (right, plan.right))
        ]
        product = self._add_tensor(editor.tensors[output].name, output, plan.product)
        editor.insert_before(position, editor.make_node(OpKind.MATMUL, factors, (product,), like=node, source_op="bmm"))
        spread = self._rearrange(position, node, product, plan.result[:-1])
        attributes = {"function": plan.result[-1].function}
        last = editor.make_node(OpKind.VIEW, (spread,), (output,), like=node, source_op="view", attributes=attributes)
        editor.replace(position, last)
        strides = self._view_strides(last, output)
        self._alias(output, spread, layout.contiguous(self._shapes[output]) if strides is None else strides)

    def _rearrange(self, position: int, node: Node, tensor: int, steps: Sequence[Rearrangement]) -> int:
        """A tensor after some views, copied in front of those that strides forbid."""
        for step in steps:
            if step.function == "reshape":
                target = tuple(dim.at(_PROBE_BATCH) for dim in step.shape)
                if layout.view(self._shapes[tensor], self._strides[tensor], target) is None:
                    tensor = self._insert_copy(position, node, tensor)
            tensor = self._insert_view(position, node, tensor, step.shape, step.function, perm=step.perm)
        return tensor

    def _flatten(self, position: int, node: Node, tensor: int, batch: Shape, count: Dim) -> int:
        """An operand with all its leading dimensions in one, copied where its strides forbid that."""
        rows = self._editor.tensors[tensor].shape[-2:]
        expanded = self._insert_view(position, node, tensor, (*batch, *rows), "expand")
        shape = (*self._shapes[expanded][: len(batch)], *self._shapes[expanded][-2:])
        if layout.view(shape, self._strides[expanded], (prod(shape[:-2]), *shape[-2:])) is None:
            expanded = self._insert_copy(position, node, expanded)
        return self._insert_view(position, node, expanded, (count, *rows), "reshape")

    def _insert_view(
        self, position: int, node: Node, source: int, shape: Shape, function: str, *, perm: tuple[int, ...] = ()
    ) -> int:
        editor = self._editor
        output = self._add_tensor(editor.tensors[source].name, source, shape)
        attributes: dict[str, Attribute] = {"function": function, "perm": perm} if perm else {"function": function}
        view = editor.make_node(OpKind.VIEW, (source,), (output,), like=node, source_op=function, attributes=attributes)
        editor.insert_before(position, view)
        strides = self._view_strides(view, output)
        self._alias(output, source, layout.contiguous(self._shapes[output]) if strides is None else strides)
        return output

    def _add_tensor(self, name: str, like: int, shape: Shape | None = None) -> int:
        tensor = self._editor.tensors[like]
        dims = tensor.shape if shape is None else shape
        added = self._editor.add_tensor(name, dims, tensor.dtype)
        self._shapes.append(tuple(dim.at(_PROBE_BATCH) for dim in dims))
        self._strides.append(layout.contiguous(self._shapes[-1]))
        return added

    def _copy_inputs(self, position: int, node: Node, wanted: list[int]) -> Node:
        """Put a copy in row order in front of a node for each of the inputs that is not in that order."""
        inputs = list(node.inputs)
        for tensor in wanted:
            if not layout.is_contiguous(self._shapes[tensor], self._strides[tensor]):
                copy = self._insert_copy(position, node, tensor)
                inputs = [copy if index == tensor else index for index in inputs]
        if tuple(inputs) != node.inputs:
            node = replace(node, inputs=tuple(inputs))
            self._editor.replace(position, node)
        return node

    def _insert_copy(self, position: int, node: Node, tensor: int) -> int:
        copy = self._add_tensor(self._editor.tensors[tensor].name, tensor)
        attributes = {"function": "clone"}
        self._editor.insert_before(
            position,
            self._editor.make_node(
                OpKind.COPY, (tensor,), (copy,), like=node, source_op="contiguous", attributes=attributes
            ),
        )
        return copy
