"""The backward pass, as autograd would run it over the forward pass.

Nodes run in the reverse order of their forward twins. A gradient flows along every tensor that depends on a parameter.
Where several reach one tensor they are added, in place where nothing else needs the memory of the first, as autograd's
buffers do. A tensor that the rule of an operator reads is kept from the forward pass until then, and nothing else is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from dippm.costs.training_step.step_builder import StepBuilder, count_elements
from dippm.graph import OWN_GRADIENT, Attribute, Node, OpKind, OwnGradient, TensorRole

__all__ = ["ACCUMULATE", "RESHAPE", "Gradients", "Outputs", "Rule", "first_of", "function_of"]

ACCUMULATE = "accumulate"
"""``source_op`` of the nodes that add up gradients."""

RESHAPE = "reshape_backward"
"""``source_op`` of the copies of gradients that go back through a view."""


_NO_GRADIENT = frozenset({OpKind.FILL, OpKind.RANDOM, OpKind.QUANTIZE})
_CUT_FUNCTIONS = frozenset({"argmax", "argmin", "detach", "histc", "bincount", "unique", "unique2", "unique_dim"})


class Gradients:
    """The gradients that wait to be handed on, and which tensors need one.

    Args:
        builder: Where the nodes of the backward pass go.
        nodes: Nodes of the forward pass in their order.
        sparse_tables: Parameters whose gradient is the rows that were looked up.
        own: By name the gradients that the model defines itself.

    Attributes:
        rows: For each of the sparse tables which rows its gradient has.
        free_after: Storages that the model's own backward passes keep until a node, whether it reads them or not.
        held: Tensors that they keep until the whole backward pass has run.
    """

    def __init__(
        self,
        builder: StepBuilder,
        nodes: Sequence[Node],
        *,
        sparse_tables: Collection[int] = frozenset(),
        own: Mapping[str, OwnGradient] | None = None,
    ) -> None:
        self.builder = builder
        self.free_after: dict[int, int] = {}
        self.held: list[int] = []
        self._own = own or {}
        self._again: dict[int, int] = {}
        self.sparse_tables = sparse_tables
        self.rows: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._users: defaultdict[int, int] = defaultdict(int)
        self._viewed: dict[int, int] = {}
        self._wanted = {
            index
            for index, tensor in enumerate(builder.tensors)
            if tensor.role is TensorRole.PARAMETER and tensor.dtype.is_differentiable
        }
        self.add_wanted(nodes)

    def add_wanted(self, nodes: Sequence[Node]) -> None:
        """Let what depends on a parameter need a gradient.

        Args:
            nodes: More nodes of the forward pass, in their order.
        """
        for node in nodes:
            if node.kind is OpKind.VIEW:
                self._viewed.update(dict.fromkeys(node.outputs, node.inputs[0]))
            own = self.own_gradient(node)
            if own is not None:
                if self.wants_any(list(map(self.current, own.inputs))):
                    made = map(self.current, own.outputs)
                    self._wanted.update(index for index in made if self.builder.dtype(index).is_differentiable)
                continue
            if self.goes_through(node):
                self._wanted.update(index for index in node.outputs if self.builder.dtype(index).is_differentiable)
                self._wanted.update(self.written_through(node))

    def wants(self, tensor: int) -> bool:
        """Whether a tensor needs a gradient."""
        return tensor in self._wanted

    def wants_any(self, tensors: Sequence[int]) -> bool:
        """Whether any of some tensors needs a gradient."""
        return not self._wanted.isdisjoint(tensors)

    def goes_through(self, node: Node) -> bool:
        """Whether a gradient of a node's results becomes one of its inputs."""
        own = self.own_gradient(node)
        if own is not None:
            return self.wants_any(list(map(self.current, own.inputs)))
        if node.kind in _NO_GRADIENT or node.attributes.get("function") in _CUT_FUNCTIONS:
            return False
        return self.wants_any(node.inputs)

    def own_gradient(self, node: Node) -> OwnGradient | None:
        """The gradient that the model defines itself for a node and others, None where it does not."""
        return self._own.get(str(node.attributes.get(OWN_GRADIENT, ""))) if self._own else None

    def current(self, tensor: int) -> int:
        """A tensor of the forward pass, or its second computation where there is one."""
        return self._again.get(tensor, tensor)

    def start(self, tensor: int) -> None:
        """Begin with the gradient of the loss, which is one."""
        one = self.builder.new_like(tensor)
        self.builder.run(OpKind.FILL, (), (one,), function="ones")
        self.put(tensor, one)

    def share(self, node: Node) -> None:
        """Hand the result of a node that writes through a view its part of the gradients of what is seen through it.

        Its own gradient goes that way too where it is a view of all: what overwrites it is a node of what is seen.
        """
        seen = self.written_through(node)
        if seen and node.outputs[0] in self._pending:
            whole, shape = seen[-1], self.builder.shape(node.outputs[0])
            if count_elements(self.builder.shape(whole)) == count_elements(shape):
                own = first_of(self.take(node.outputs[:1]))
                self.give(whole, self.builder.view(own, self.builder.shape(whole)))
        for tensor in seen:
            gradient = self._pending.get(tensor)
            if gradient is None:
                continue
            builder, result = self.builder, node.outputs[0]
            copy = builder.new_like(tensor)
            builder.run(OpKind.COPY, (gradient,), (copy,), "copy_slices", function="clone")
            self.take((tensor,))
            self.put(tensor, copy)
            part = builder.view(copy, builder.shape(result), "as_strided", dtype=builder.dtype(result))
            clone = builder.new_like(result)
            builder.run(OpKind.COPY, (part,), (clone,), "copy_slices", function="clone")
            self.give(result, clone)

    def take(self, tensors: Sequence[int]) -> list[int | None]:
        """The gradients of a node's outputs, all contributions added up; None where there is none."""
        taken = []
        for tensor in tensors:
            gradient = self._pending.pop(tensor, None)
            if gradient is not None:
                self._users[self.builder.base(gradient)] -= 1
            taken.append(gradient)
        return taken

    def rename(self, old: int, new: int) -> None:
        """Let the gradient of a tensor be that of another, its second computation."""
        self._again[old] = new
        if old in self._pending:
            self._pending[new] = self._pending.pop(old)

    def of_parameter(self, tensor: int) -> int | None:
        """The gradient of a parameter once the backward pass is over."""
        return self._pending.get(tensor)

    def is_shared(self, gradient: int) -> bool:
        """Whether another tensor's gradient lies in the same memory."""
        return self._users[self.builder.base(gradient)] > 1

    def give(self, tensor: int, gradient: int) -> None:
        """Hand a gradient on to a tensor: the real part if it is real, summed over what was broadcast, in its type."""
        if not self.wants(tensor):
            return
        builder = self.builder
        if builder.dtype(gradient).is_complex and not builder.dtype(tensor).is_complex:
            real = builder.dtype(gradient).real
            gradient = builder.view(gradient, builder.shape(gradient), "real", dtype=real)
        if builder.shape(gradient) != builder.shape(tensor):
            gradient = self._summed(gradient, tensor)
        if builder.dtype(gradient) is not builder.dtype(tensor):
            cast = builder.new_like(tensor)
            builder.run(OpKind.CAST, (gradient,), (cast,))
            gradient = cast
        old = self._pending.get(tensor)
        if old is None:
            self.put(tensor, gradient)
            return
        base = builder.base(old)
        is_own = self._users[base] == 1 and base != builder.base(gradient)
        # Autograd sums in place what a kernel wrote, and not what it was handed as a view, whose base is held.
        if is_own and builder.is_whole(old) and old not in builder.views:
            total = builder.new_tensor(builder.shape(old), builder.dtype(old), alias_of=old)
        else:
            total = builder.new_like(tensor)
        builder.run(OpKind.ADD, (old, gradient), (total,), source_op=ACCUMULATE)
        self._users[base] -= 1
        self.put(tensor, total)

    def make(
        self,
        kind: OpKind,
        inputs: Sequence[int],
        tensor: int,
        function: str,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> int:
        """Run a node that computes the gradient of a tensor, and return it (not handed on yet)."""
        gradient = self.builder.new_like(tensor)
        self.builder.run(kind, inputs, (gradient,), function=function, attributes=attributes)
        if kind is OpKind.ELEMENTWISE_GRAD and self.builder.is_permuted(inputs[0]):
            self.builder.permuted.add(gradient)
        return gradient

    def dense(self, gradient: int, source_op: str = "") -> int:
        """A gradient row by row: a copy where it is a piece of another one, was expanded, or is in another order."""
        if self.builder.is_whole(gradient) and not self.builder.is_permuted(gradient):
            return gradient
        copy = self.builder.new_like(gradient)
        self.builder.run(OpKind.COPY, (gradient,), (copy,), source_op, function="contiguous")
        return copy

    def put(self, tensor: int, gradient: int) -> None:
        """Begin a tensor's gradient: what is given to it from then on is added."""
        self._pending[tensor] = gradient
        self._users[self.builder.base(gradient)] += 1

    def written_through(self, node: Node) -> list[int]:
        """The tensors of which a node overwrites what its first input, a view of them, shows."""
        seen: list[int] = []
        if node.kind is OpKind.VIEW or not node.inputs or not self.wants_any(node.outputs[:1]):
            return seen
        target = node.inputs[0]
        if self.builder.base(node.outputs[0]) == self.builder.base(target):
            # A file may say that a view is one of itself.
            while target in self._viewed and self._viewed[target] not in seen:
                target = self._viewed[target]
                seen.append(target)
        return seen

    def _summed(self, gradient: int, tensor: int) -> int:
        builder = self.builder
        if count_elements(builder.shape(gradient)) == count_elements(builder.shape(tensor)):
            return builder.view(gradient, builder.shape(tensor))
        total = builder.new_tensor(builder.shape(tensor), builder.dtype(gradient))
        builder.run(OpKind.REDUCE, (gradient,), (total,), function="sum")
        return total


Outputs = Sequence[int | None]
"""The gradient of each output of a node, None where there is none."""

Rule = Callable[[Gradients, Node, Outputs], None]
"""Appends what runs for a node, and hands its inputs their gradients."""


def first_of(taken: Outputs) -> int:
    """The gradient of the first output that has one."""
    return next(gradient for gradient in taken if gradient is not None)


def function_of(node: Node) -> str:
    """What a node computes, in one word."""
    function: Attribute = node.attributes.get("function", "")
    return str(function) if function else node.kind.value
